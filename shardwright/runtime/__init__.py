"""Docker and local engines behind one interface: start, wait, status, logs, stop."""
