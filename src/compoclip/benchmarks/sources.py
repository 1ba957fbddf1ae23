"""Where official files that anybody may fetch come from: what a benchmark states in `Meta.remote`.

Annotations of repositories are named at the commit whose bytes were checked (`Meta.hashes`), or at
the newest one where none was. Where neither a hash nor an md5 is known, a fetched file is checked
for its kind alone and reported as not verified. Nothing here is fetched unless `compoclip data
fetch` is told to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

NEWEST = "HEAD"


@dataclass(frozen=True)
class RemoteFile:
    """One file that can be fetched.

    Args:
        target: The file below the data root that it becomes or, for an archive, the folder that it
            is unpacked into (a folder that holds the whole archive is dropped).
        url: Its address.
        size: Bytes, 0 if unknown.
        md5: Checksum of the file as published, "" if unknown.
        archive: It is a .zip or .tar file.
        keys: What each row must have, for a file that no checksum identifies.
    """

    target: str
    url: str
    size: int = 0
    md5: str = ""
    archive: bool = False
    keys: tuple[str, ...] = ()


def repository(name: str, commit: str = NEWEST) -> str:
    """The address below which GitHub serves the files of a repository.

    Args:
        name: "owner/name".
        commit: The commit to take them from; by default the newest one.
    """
    return f"https://raw.githubusercontent.com/{name}/{commit}"


_COCO = "http://images.cocodataset.org/zips"
_BLIP = "https://storage.googleapis.com/sfr-vision-language-research/datasets"
_GENOME = "https://cs.stanford.edu/people/rak248/VG_100K_2"
_SWIG = "https://swig-data-weights.s3.us-east-2.amazonaws.com/images_512.zip"
_COCO_ARCHIVES = {
    "val2017": (815_585_330, "442b8da7639aecaf257c1dceb8ba8c80"),
    "train2017": (19_336_861_798, "cced6f7f71b7629ddf16f17bbcfab6b2"),
    "val2014": (6_645_013_297, "a3d79f5ed8d289b7a7554ce06a5782b3"),
    "train2014": (13_510_573_713, "0da8cfa0e090c266b78f30e2d2874f1a"),
}
_SHARED = (
    *(
        RemoteFile(f"coco/{split}", f"{_COCO}/{split}.zip", size, md5, archive=True)
        for split, (size, md5) in _COCO_ARCHIVES.items()
    ),
    RemoteFile("coco/coco_karpathy_test.json", f"{_BLIP}/coco_karpathy_test.json", 1_735_468),
    RemoteFile(
        "flickr30k/flickr30k_test.json",
        f"{_BLIP}/flickr30k_test.json",
        keys=("image", "caption"),
    ),
    RemoteFile("vg/VG_100K", f"{_GENOME}/images.zip", archive=True),
    RemoteFile("vg/VG_100K_2", f"{_GENOME}/images2.zip", archive=True),
    RemoteFile("swig", _SWIG, archive=True),
)
SHARED: Mapping[str, RemoteFile] = MappingProxyType({each.target: each for each in _SHARED})
"""Photos and captions that several benchmarks use, by target; a benchmark only names the target."""
