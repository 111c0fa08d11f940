"""How often answers loop, run on or rot."""
