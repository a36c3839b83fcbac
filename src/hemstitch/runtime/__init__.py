"""Takes a plan, gives a callable: machine code, memory for intermediates, and a list of calls. Also
the interpreter of the graph IR, the reference for compiled code."""
