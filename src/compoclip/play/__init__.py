"""The web playground: a picture, a caption, and what the models make of its rewrites.

`answers` makes the answers, `server` serves them and the page; no metrics are computed here.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
