"""Everything that wants a GPU, in one command and one budget of time: see README.md here."""
