"""Models over HTTP: embeddings and scores for programs, a playground for people.

`app` has routes and bounds of requests, `images` reads images of requests, `batches` encodes
waiting requests together by the settings of `limits`, `service` and `playground` compute the
answers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
