"""From torch to the graph IR: tracing, decompositions, partitioning, one rule for each ATen op."""
