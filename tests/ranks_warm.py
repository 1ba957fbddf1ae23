"""Imported once by the process that all ranks are forked from: what each of them would read again.

Nothing here may compute with torch, whose threads do not outlive a fork.
"""

from __future__ import annotations

from random import Random

from PIL import Image

from compoclip.captions import parse
from compoclip.methods.registry import method_names
from compoclip.models.tokenizer import build_tokenizer
from compoclip.rewrites.base import get_rewrite, rewrite_names

build_tokenizer({})
method_names()
Image.init()  # all of Pillow's formats
for _name in rewrite_names():  # each with its word lists
    get_rewrite(_name)(parse("two small dogs sit on a red bench to the left of a tree"), Random(0))
