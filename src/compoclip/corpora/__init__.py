"""Corpora of captions in shards: each shard rewritten or parsed into a shard of its own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
