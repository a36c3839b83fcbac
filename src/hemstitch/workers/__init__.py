"""Processes of our own, for what may crash, hang or run out of memory: takes questions and gives
answers, in bytes."""
