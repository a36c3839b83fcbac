"""Takes a captured graph, gives a callable: the stages in order, builds side by side or in the
background."""
