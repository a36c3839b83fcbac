"""Passes over the kernel IR: each takes a kernel and gives an equivalent one. Each module is one
pass; `pipeline.py` has their order."""
