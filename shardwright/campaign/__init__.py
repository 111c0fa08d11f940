"""Order over time: start flows that combine gates, overlays, runtimes and probes."""
