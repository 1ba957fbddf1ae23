"""Benchmarks that the literature reports together, by one name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from compoclip.benchmarks.zero_shot_sets import ELEVATER, IMAGENET, SHIFTS

SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "comp": (
            "aro",
            "crepe_prod",
            "eqben",
            "imagecode",
            "sugarcrepe",
            "svo_probes",
            "valse",
            "vl_checklist",
            "whatsup",
            "winoground",
            "spec",
        ),
        "elevater": tuple(f"zero_shot:{name}" for name in (*ELEVATER, *IMAGENET)),
        "elevater_20": tuple(f"zero_shot:{name}" for name in ELEVATER),
        "imagenet_shifts": tuple(f"zero_shot:{name}" for name in SHIFTS),
        "retrieval_3": ("retrieval:coco", "retrieval:flickr30k", "retrieval:coco_cf"),
    }
)
"""Suite -> what `load_benchmark` is asked for. comp, retrieval_3: of FSC-CLIP (Oh et al., EMNLP
2024); elevater: the 21 sets of its zero-shot mean, elevater_20 without ImageNet-1K. The average of
vl_compo itself is over twelve: comp without spec, with colorswap and mmvp_vlm."""
