"""The CPU target: takes a kernel, gives LLVM IR with explicit vectors, for any width the host
has."""
