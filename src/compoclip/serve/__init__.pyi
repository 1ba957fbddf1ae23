from .batches import Batcher as Batcher
from .batches import BatchSettings as BatchSettings
from .service import ModelServer as ModelServer
from .service import Service as Service
