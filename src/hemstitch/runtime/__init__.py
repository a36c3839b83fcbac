"""Running compiled graphs on torch tensors."""
