"""Ask a running server and judge its answers."""
