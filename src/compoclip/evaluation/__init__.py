"""From a model and benchmarks to scores that can be quoted: intervals, chance, ties, coverage.

From targets to a score: `targets` names the benchmarks, `run.evaluate` refuses incomplete data,
`encode` encodes each distinct image and text once, `forms` scores and judges the items, `summary`
and `aggregate` compute means, `results` stores them. `comparison` and `groups` test two models on
the same items, `tables` and `published` print results.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
