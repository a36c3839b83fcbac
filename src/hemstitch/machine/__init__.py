"""Takes what is known of a processor, gives the hardware numbers, nominal and measured, by which
planning and scheduling rank candidates."""
