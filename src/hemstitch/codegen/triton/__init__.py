"""The GPU target: takes a kernel, gives Triton source in which a task is a program, a lane loop a
tile, a row buffer a tile that stays in registers. Text only: nothing here imports Triton."""
