"""Explaining models: what tuning gained and cost, and how a model computes. Nothing trains here.

`interpolation` measures models between a base and a tuned one, and how much each tower gains;
`trees` how tree-like a text tower computes; `maps` which patches each word aligns with; `probe` the
scores of a caption's rewrites.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
