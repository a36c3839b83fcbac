"""What each planner, and the planner without a part of it, makes of whole models."""
