"""Corpora of captions in shards: each shard is rewritten or parsed into a new shard."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
