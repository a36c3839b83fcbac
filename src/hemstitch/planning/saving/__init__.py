"""What a forward pass saves for its backward pass, and what backward computes again. Takes values
by number, with their bytes and what they are made of; gives those to save. Nothing here knows what
a value is."""
