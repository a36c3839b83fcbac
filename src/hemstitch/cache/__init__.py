"""Takes a key and a function that computes a record, gives the record, from disk if an earlier
process computed it."""
