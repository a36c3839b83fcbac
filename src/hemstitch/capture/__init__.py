"""Takes functional ATen graphs as AOTAutograd makes them, gives the graph IR; what has no rule
becomes a library call."""
