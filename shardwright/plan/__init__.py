"""Pure arithmetic over layers, stages and shards; no I/O."""
