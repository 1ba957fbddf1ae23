"""The zero-shot sets of the literature: ELEVATER's twenty, ImageNet-1K, and ImageNet's shifts.

Facts of BENCHMARKS 3.1 and 3.2: photos in the test split, classes, metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PER_CLASS, MAP11, AUC = "mean-per-class", "map11", "auc"


@dataclass(frozen=True)
class ZeroShotSet:
    """One set. photos, classes: how many the published scores use.

    section: its heading in `prompts.md` of the CLIP repository, "" when it has none there. squash:
    photos are squashed to the model's size instead of cropped.
    """

    photos: int
    classes: int
    section: str = ""
    metric: str = "accuracy"
    squash: bool = False


ELEVATER: Mapping[str, ZeroShotSet] = MappingProxyType(
    {
        "caltech-101": ZeroShotSet(6084, 102, "Caltech101", PER_CLASS),
        "cifar-10": ZeroShotSet(10000, 10, "CIFAR10"),
        "cifar-100": ZeroShotSet(10000, 100, "CIFAR100"),
        "country211": ZeroShotSet(21100, 211, "Country211"),
        "dtd": ZeroShotSet(1880, 47, "DescribableTextures"),
        "eurosat_clip": ZeroShotSet(5000, 10, "EuroSAT"),
        "fer-2013": ZeroShotSet(3589, 7, "FacialEmotionRecognition2013"),
        "fgvc-aircraft-2013b": ZeroShotSet(3333, 100, "FGVCAircraft", PER_CLASS),
        "food-101": ZeroShotSet(25250, 101, "Food101"),
        "gtsrb": ZeroShotSet(12630, 43, "GTSRB"),
        "hateful-memes": ZeroShotSet(500, 2, "HatefulMemes", AUC),
        "kitti-distance": ZeroShotSet(711, 4, "KITTI", squash=True),
        "mnist": ZeroShotSet(10000, 10, "MNIST"),
        "oxford-flower-102": ZeroShotSet(6149, 102, "Flowers102", PER_CLASS),
        "oxford-iiit-pets": ZeroShotSet(3669, 37, "OxfordPets", PER_CLASS),
        "patch-camelyon": ZeroShotSet(32768, 2, "PatchCamelyon"),
        "rendered-sst2": ZeroShotSet(1821, 2, "SST2"),
        "resisc45_clip": ZeroShotSet(25200, 45, "RESISC45"),
        "stanford-cars": ZeroShotSet(8041, 196, "StanfordCars"),
        "voc-2007": ZeroShotSet(4952, 20, "PascalVOC2007", MAP11),
    }
)
IMAGENET: Mapping[str, ZeroShotSet] = MappingProxyType({"imagenet-1k": ZeroShotSet(50000, 1000)})
SHIFTS: Mapping[str, ZeroShotSet] = MappingProxyType(
    {
        "imagenet-a": ZeroShotSet(7500, 200),
        "imagenet-r": ZeroShotSet(30000, 200),
        "imagenet-sketch": ZeroShotSet(50889, 1000),
        "imagenet-v2": ZeroShotSet(10000, 1000),
    }
)
SETS: Mapping[str, ZeroShotSet] = MappingProxyType({**ELEVATER, **IMAGENET, **SHIFTS})
