"""Is one server the same model as another, against its own noise."""
