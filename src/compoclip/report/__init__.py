"""Results as one HTML page that needs nothing else, and as tables and figures; no metrics here.

`study` puts the results of several models side by side, `findings` says in sentences and
rows what changed, `cards` and `plotting` make what the page shows, `write` puts it together.
"""

import lazy_loader

from compoclip.notebook import make_callable

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
make_callable(__name__, "report")
