"""Search of one's own photos: an index of their features, and queries to it.

`index` encodes photos and keeps their features in one file, `query` ranks them exactly, `rerank`
orders the best anew by patches or parts, `page` shows them, and `before_after` those
of two models.
"""

import lazy_loader

from compoclip.notebook import make_callable

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
make_callable(__name__, "search")
