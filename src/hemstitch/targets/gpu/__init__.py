"""The GPU target: takes a kernel, gives Triton source. A task is a program, a lane loop a tile, a
row buffer a tile that stays in registers. Nothing here imports Triton."""
