"""Loss terms: pure functions of features and batch layout, one family a file.

Notation of all formulas: u_i is image i of B (`image`), t_i its first CAPTION, n_i its NEGATIVE and
v_i its POSITIVE texts (`text`), s is `logit_scale`, b `logit_bias`, CE(z, k) a softmax cross
entropy with target k, LSE the log of a sum of exponentials. Losses that read more say so. `Loss` in
`contract` states what holds for all of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
