"""A run, or a comparison of two, as a page and as a short table; pure over what the bundle holds."""
