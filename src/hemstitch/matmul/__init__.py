"""Takes library calls that multiply matrices, gives matmuls of the graph IR; takes kernels with
contractions, gives them cut into tiles of a processor."""
