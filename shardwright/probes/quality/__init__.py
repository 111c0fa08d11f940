"""Does the engine answer in the right form, and the model rightly: deterministic checks."""
