"""The CPU target: kernel IR to LLVM IR with explicit vectors, for any width the host has."""
