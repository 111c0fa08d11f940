"""Find one fact in texts of exact lengths."""
