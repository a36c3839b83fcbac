"""Which stages and rules of the compiler find work in models that we did not write, and what it is
worth."""
