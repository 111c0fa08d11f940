"""`Deployment` to a container or process command line; pure, returns lists."""
