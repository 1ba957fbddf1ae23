from .answers import Example as Example
from .answers import Playground as Playground
from .server import PlayServer as PlayServer
