"""A launch as shell text, read into a layout."""
