"""Models over HTTP: embeddings and scores for programs, a playground for people.

`app` has routes and limits, `images` reads images of requests, `batches` encodes together what
waits, `service` and `playground` answer.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
