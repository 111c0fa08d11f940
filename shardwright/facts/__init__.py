"""What is true: the model, the engine, the host."""
