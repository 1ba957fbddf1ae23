"""Loss terms: pure functions of features and batch layout, one family a file."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
