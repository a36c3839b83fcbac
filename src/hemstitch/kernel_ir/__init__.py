"""The kernel IR: what one launch computes, for any target. This package has its nodes, text form,
verifier, and interpreter in NumPy. It takes a kernel, as stitching builds it, and gives it to
a target."""
