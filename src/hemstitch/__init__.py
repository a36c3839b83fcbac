"""Hemstitch: a fusing compiler backend for PyTorch."""
