"""Takes machine code for a GPU as bytes or text, gives what can be said of it without running it:
facts, findings, and an estimate of its time. Knows neither torch nor Triton."""
