"""Whole models by every compiler that a user could take instead: each in a process of its own,
which may have other libraries, all in turns."""
