"""The skills of the models x skills table: a small fixed vocabulary with definitions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SKILLS: Mapping[str, str] = MappingProxyType(
    {
        "object": "notice that a named object was replaced by another",
        "attribute": "notice that a property of an object was replaced",
        "relation": "notice that an action or a relation was replaced",
        "binding": "know which attribute belongs to which object, when attributes are swapped",
        "role": "know which object plays which part, when objects are swapped",
        "addition": "notice that the text names something that the image does not show",
        "spatial": "know where things are, in the image and relative to one another",
        "counting": "know how many things there are",
        "negation": "notice that the text denies something or says that it is absent",
        "order": "prefer the written order of the words to a shuffled one",
        "invariance": "keep a true rewording above a false one",
        "recognition": "name the main thing that the image shows",
        "retrieval": "find the matching text or image among thousands",
    }
)
"""Skill -> what a model that has it can do. Every sub-task of a benchmark maps to one of these."""
