"""Processes of our own: what may crash, hang or run out of memory does it there. Take questions and
give answers, in bytes."""
