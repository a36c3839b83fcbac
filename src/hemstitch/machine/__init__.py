"""Takes what is known of a processor, gives the numbers that planning and scheduling rank
candidates by: nominal ones, and those that were measured."""
