"""The bounds on every number and object that comes from a file, a model folder or a request.

A stranger's number is compared with its bound before it is used as an amount: of memory, of time or
of rounds. Each bound lies far above what honest files hold, and its comment says why that much.
"""

from __future__ import annotations

# --- Options. ---

MAX_WORKERS = 1024  # processes, or requests to a server, at once; large machines have 256 cores

# --- Text files and tables. ---

MAX_CONFIG_CHARACTERS = 1 << 16  # of a YAML configuration; a run's own has 2,000
MAX_CONFIG_DEPTH = 100  # of lists and objects in one another; options have three levels at most
MAX_LINE_BYTES = 1 << 24  # of a line, and characters of a cell; a long list of captions has 100,000
MAX_LITERAL_CHARACTERS = 1 << 20  # of a list written as text in a cell: Python's parser is slow
MAX_UNPACKED_RATIO = 100  # unpacked to packed size; captions reach 30
MAX_UNPACKED_FREE = 1 << 26  # bytes that a file may unpack to whatever its own size
MAX_PATTERN_NAMES = 1_000_000  # that a brace pattern stands for; LAION-5B has 231,350 shards
MAX_EXACT = 2**53  # of a number: larger ones are not exact as floats, and JSON allows any
MAX_SEED = 2**63 - 1  # what all generators take

# --- Captions, labels and photos. ---

MAX_TEXT_CHARACTERS = 1 << 16  # of a caption; models read 77 tokens, the rest only takes memory
MAX_CAPTION_BYTES = 1 << 20  # of a .txt or .json member of a shard; a longer one is no caption
MAX_BOX_CHARACTERS = 100_000  # of a cell of boxes; a photo has a few
MAX_MIXTURE_WEIGHT = 1_000_000  # of a data set in a mixture
MAX_PIXELS = 89_478_485  # of an image: a quarter of a gigabyte as RGB, Pillow's threshold of a bomb
MAX_ASPECT = 50  # times that one side of an image is as long as the other
MAX_WORK = 10 * MAX_PIXELS  # pixels times scans: the largest image in the scans of an ordinary JPEG
MAX_SCANS = 500  # of a small JPEG: each scan costs time, whatever the pixels
MAX_HEADER_READS = 10_000  # of the header of an image, which Pillow parses in Python
MAX_IMAGE_BYTES = 1 << 30  # of the file of an image; the largest that is read has half of that
MIN_READ_BYTES = 64  # of an image per further read; the parts of a PNG have thousands

# --- Archives and benchmarks. ---

MAX_MEMBER_BYTES = 1 << 28  # of one image, or of the annotations in an archive: more is a bomb
MAX_ANNOTATION_BYTES = 1 << 28  # of a file of a benchmark; the largest published one has 90 MB
MAX_ANNOTATION_ROWS = 1 << 21  # of a table of a benchmark
MAX_ANNOTATION_VALUES = 1 << 24  # of a column of lists in such a table
MAX_ARCHIVE_GROWTH = 200  # times the packed size that a downloaded archive may unpack to
MAX_NAME_BYTES = 255  # of a file or folder, on the usual file systems
MAX_PATH_CHARACTERS = 1024  # of the name of an image in annotations

# --- Models. ---

MAX_MODEL_FILE_BYTES = 128 * 2**20  # a tokenizer.json of a vocabulary of 256,000 has 35 MB
MAX_LAYERS = 1000  # of a tower; published ones have far fewer
MAX_POSITIONS = 2**26  # numbers in a table of positions, some computed in double precision first
MAX_CONTEXT = 32_768  # tokens per text
MAX_MERGES_BYTES = 16 * 2**20  # of unpacked merges; CLIP's own file has 3.2 million
MAX_TOKENIZED_CHARACTERS = 100_000  # of a text that are read; a context of 77 tokens has some 300
MAX_IMAGE_SIDE = 8192  # pixels of a model's input
MAX_RESIZED_PIXELS = MAX_PIXELS  # of a whole image before its middle is cut out
MAX_WRAPPERS = 8  # prefixes such as "module." around the names of a checkpoint
MAX_SHARED = 4  # times its file that the tensors of a model may have: some name one tensor twice
MAX_PATTERN_SECONDS = 1.0  # that a regular expression of an adapter may take

# --- Results and bundles. ---

MAX_RESAMPLES = 100_000  # of a bootstrap: the default is 2,000, and each costs memory and time

# --- Requests to `serve` and `play`. ---

MAX_SERVED_CHARACTERS = 20_000  # of a text; what is beyond the model's context is cut anyway
MAX_SERVED_HITS = 100  # photos per text or image of a search
MAX_SENT_BYTES = 8_000_000  # of an encoded image
MAX_SENT_PIXELS = 24_000_000  # of a decoded one
MAX_PLAY_CHARACTERS = 300  # of a caption of the playground
MAX_PLAY_BODY = MAX_SENT_BYTES * 4 // 3 + 20_000  # bytes: the image in base64, and the rest
MAX_BODY_SECONDS = 120.0  # for the body of a request to arrive
MAX_REQUEST_VALUES = 100_000  # commas and brackets: parsed values take far more memory
MAX_OPEN_REQUESTS = 256  # at once
MAX_CONNECTIONS = 512  # at once, and at most half of the files that the process may open
MAX_HEAD_SECONDS = 10.0  # for the head of a request, which fits into one packet, to arrive
MAX_ANSWER_SECONDS = 120.0  # for the client to read its answer
