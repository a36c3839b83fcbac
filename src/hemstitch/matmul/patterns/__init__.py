"""Takes a library call that multiplies matrices under another name (convolution, attention, a
gradient of weights), gives the matmuls that it is; or none."""
