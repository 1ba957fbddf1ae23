"""One training loop for every recipe: settings, run, loop, step, state on disk, logs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
