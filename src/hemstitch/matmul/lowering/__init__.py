"""Lowering of contractions for CPUs. It takes a kernel and gives one with M/N/K blocking, packed
panels, and tile matmuls for the micro-kernel."""
