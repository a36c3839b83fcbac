"""Takes a kernel, gives one that means the same in an order that runs faster, whatever the target.
Each module is one pass; `pipeline.py` says which run, and when."""
