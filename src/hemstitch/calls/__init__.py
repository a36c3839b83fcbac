"""Takes compiled graphs, gives what the program calls: with the checks, zeros and parts that a call
needs."""
