"""Takes a group of nodes, gives one kernel: which axes are loops, rows and lanes, when each part
runs and where each value waits; or the reason why it cannot be one."""
