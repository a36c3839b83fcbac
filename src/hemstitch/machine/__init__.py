"""Hardware numbers of a processor, nominal and measured, by which planning and scheduling rank
candidates."""
