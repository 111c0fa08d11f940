"""Does the server answer at all, and the same in each of its ways."""
