"""Models and measurements. Not part of the package; run from the root of the repository."""
