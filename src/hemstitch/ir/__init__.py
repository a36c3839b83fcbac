"""What a program computes: takes calls of a `Builder` or text, gives an immutable graph of typed
operations from a closed set. Knows nothing of torch."""
