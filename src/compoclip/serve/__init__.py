"""A model over HTTP: scores and embeddings, with requests of many clients encoded together.

`http` is a server that strangers cannot wear down (the playground stands on it, too), `images`
reads pictures that they send, `batches` encodes what waits, `service` answers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
