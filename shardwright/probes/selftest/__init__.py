"""Every probe against a server with known faults."""
