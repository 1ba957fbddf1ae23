"""Captions written by language models: prompted, checked, stored with their origin."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
