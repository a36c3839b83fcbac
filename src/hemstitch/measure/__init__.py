"""Takes probes and candidates, gives seconds: of the library, of kernels, of one blocking or
another."""
