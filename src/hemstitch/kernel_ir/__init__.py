"""What one launch does, whatever the target: takes the statements that stitching builds, gives
their text, their verification and their meaning in NumPy."""
