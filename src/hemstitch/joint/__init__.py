"""Takes the joint graph of forward and backward, gives the two graphs: rewritten, and cut where
fewest bytes are saved."""
