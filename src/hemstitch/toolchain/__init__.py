"""Takes the text of a kernel, gives loaded machine code: LLVM and Triton, in worker processes. The
only user of llvmlite."""
