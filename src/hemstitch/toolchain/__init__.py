"""Takes the text of a kernel, gives machine code that is loaded: LLVM and Triton, in worker
processes. The only user of llvmlite."""
