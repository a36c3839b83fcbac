"""Random programs of PyTorch's functions, compiled and compared with eager, by hand and by the
thousand: `python -m benchmarks.random_functions --help`. A sample of them is a test."""
