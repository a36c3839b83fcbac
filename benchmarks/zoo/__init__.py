"""Models of public libraries, tiny, with random weights, in inference and in a training step: which
are built, right, crash, or fall back. Nothing is downloaded. `python -m benchmarks.zoo --help`."""
