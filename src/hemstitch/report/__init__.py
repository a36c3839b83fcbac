"""Takes a program, gives what became of it."""
