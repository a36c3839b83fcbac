"""Takes kernels, gives text for a target. Knows neither torch nor the JIT."""
