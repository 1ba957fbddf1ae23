"""Captions: tokens, noun chunks, scene graphs, the lexicon and the parse store. No torch here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
