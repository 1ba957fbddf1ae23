"""From a model and benchmarks to scores that can be quoted: intervals, chance, ties, coverage.

The way of a score: `targets` says what to measure, `run.evaluate` loads nothing twice and refuses
incomplete data, `encode` encodes each distinct image and text once, `forms` scores and judges the
items, `summary` and `aggregate` make scores of them, `results` keeps them on disk. `comparison` and
`groups` test two models on the same items, `tables` and `published` print what was found.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
