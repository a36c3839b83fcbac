"""Takes a plan, gives something that can be called: machine code, memory for intermediates, a list
of calls; and the reference that everything compiled is compared with."""
