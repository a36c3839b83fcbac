"""The kernel IR: what one launch computes, for any target. This package has its nodes, text form,
verifier, and interpreter in NumPy."""
