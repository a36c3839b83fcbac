"""Saved activations and rematerialisation between forward and backward. Takes numbered values with
their bytes and sources, gives the values to save. This package does not know what a value is."""
