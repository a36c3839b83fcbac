"""Lowering of contractions for CPUs: M/N/K blocking, packed panels, and tile matmuls for the
micro-kernel."""
