"""From image-text data on disk to batches: sources, caption and image plans, decoding, loading."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
