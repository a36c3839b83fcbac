"""Takes a key and what makes a record, gives the record: from disk where an earlier process has
made it."""
