from .app import Server as Server
from .app import Website as Website
from .batches import Batcher as Batcher
from .limits import BatchSettings as BatchSettings
from .playground import Playground as Playground
from .playground import play_site as play_site
from .service import Service as Service
from .service import model_site as model_site
