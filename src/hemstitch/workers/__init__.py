"""Worker processes, for code that may crash, hang or run out of memory: takes questions and gives
answers, in bytes."""
