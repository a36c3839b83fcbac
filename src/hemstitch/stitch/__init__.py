"""How a group of nodes becomes one kernel: axes, thread mapping, where every value lives."""
