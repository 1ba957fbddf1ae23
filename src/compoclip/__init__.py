"""compoclip: fine-tune CLIP-style models for compositionality, and measure gains and costs.

From Python: `load` a `Model` to score, evaluate and train it, `rewrite` captions, `train` and
`evaluate` as the command line does; `losses`, `methods`, `rewrites` and `benchmarks` are there to
build on.
Importing this package is cheap: it imports neither torch nor any optional extra, and the names
above only when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
