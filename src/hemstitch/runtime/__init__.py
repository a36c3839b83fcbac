"""From a plan to something that runs: machine code, memory, one call list a graph."""
