from .job import CorpusJob as CorpusJob
from .job import ParseJob as ParseJob
from .job import RewriteJob as RewriteJob
from .run import CorpusOutcome as CorpusOutcome
from .run import process as process
from .shard import find_shards as find_shards
