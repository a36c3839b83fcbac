"""The kernel IR: loops over tiles, loads, arithmetic, stores. One program, several printers."""
