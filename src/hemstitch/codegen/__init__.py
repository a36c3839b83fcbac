"""Kernel IR to source text, one printer per target. Imports the kernel IR only."""
