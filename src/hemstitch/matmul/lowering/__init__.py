"""Takes a kernel with contractions, gives one over blocks of rows, with packed panels and tiles
that a micro-kernel computes."""
