"""The kernel IR as Triton source: a task is a program, a lane loop a tile, a row buffer a tile that
stays in registers. Text only: nothing here imports Triton."""
