"""Tools of the tests and benchmarks that are not part of the package."""
