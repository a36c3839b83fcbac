"""Rewrites of the graph IR, each of which keeps its meaning."""
