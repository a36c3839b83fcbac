"""Takes numbered vertices, the values that pass between them and their bytes, gives patterns of
vertices that become one kernel each: the best plan that beams or an integer program find. It knows
nothing of what a vertex computes. Read `planning/search/search.py` first."""
