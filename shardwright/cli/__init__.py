"""Click commands: the only room that prints or exits."""
