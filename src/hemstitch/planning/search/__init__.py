"""Takes numbered vertices, the values that pass between them and their bytes, gives patterns: sets
of vertices that become one kernel each. The plan comes from a beam search or an integer program.
The package does not know what a vertex computes. Read `planning/search/search.py` first."""
