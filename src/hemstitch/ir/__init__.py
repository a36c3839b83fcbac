"""The graph IR: sizes, types, nodes, their meaning as text. Knows nothing of torch."""
