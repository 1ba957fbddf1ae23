"""Corpora of captions in shards: each shard rewritten or parsed into a shard of its own."""
