"""Train, evaluate, tune, sweep and reproduce, as functions with all options.

The command line and the API call them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
