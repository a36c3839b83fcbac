"""Takes a graph as captured, gives one that means the same: simplified, with views where planning
wants them. Each rewrite keeps every value."""
