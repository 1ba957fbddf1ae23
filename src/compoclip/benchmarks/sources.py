"""Where official files that anybody may fetch come from: one table for all benchmarks.

Annotations of repositories are named at the commit whose bytes were checked (`Meta.hashes`), or at
the newest one where none was. Where neither a hash nor an md5 is known, a fetched file is checked
for its kind alone and said to be not verified. Nothing here is fetched unless `compoclip data
fetch` is told to.
"""

from __future__ import annotations

from dataclasses import dataclass

from compoclip.benchmarks import (
    cola,
    hard_positives,
    sugarcrepe,
    sugarcrepe_pp,
    svo_probes,
    valse,
    vl_checklist,
    vsr,
)

_RAW = "https://raw.githubusercontent.com"
_COCO = "http://images.cocodataset.org/zips"
_BLIP = "https://storage.googleapis.com/sfr-vision-language-research/datasets"
_GENOME = "https://cs.stanford.edu/people/rak248/VG_100K_2"
NEWEST = "HEAD"


@dataclass(frozen=True)
class Source:
    """One file to fetch.

    target: the file below the data root that it becomes or, for an archive, the folder that it is
    unpacked into (a folder that holds the whole archive is dropped). size: bytes, 0 where not
    known. md5: of the file as published, "" where not known. archive: ".zip" or ".tar" file.
    keys: what each row of the file must have, told where nothing else says that it is the right
    file.
    """

    target: str
    url: str
    size: int = 0
    md5: str = ""
    archive: bool = False
    keys: tuple[str, ...] = ()


def _repository(
    name: str,
    commit: str,
    places: dict[str, str],
    sizes: dict[str, int] | None = None,
    keys: tuple[str, ...] = (),
) -> list[Source]:
    """places: target -> path in the repository."""
    return [
        Source(target, f"{_RAW}/{name}/{commit}/{path}", (sizes or {}).get(target, 0), keys=keys)
        for target, path in places.items()
    ]


def _below(folder: str, files: tuple[str, ...], into: str) -> dict[str, str]:
    """Every file of `folder` (below the root) at the same place in the repository's `into`."""
    return {file: f"{into}/{file.removeprefix(f'{folder}/')}" for file in files}


_SUGARCREPE_SIZES = {
    "sugarcrepe/replace_obj.json": 361_126,
    "sugarcrepe/replace_att.json": 176_843,
    "sugarcrepe/replace_rel.json": 312_629,
    "sugarcrepe/swap_obj.json": 57_569,
    "sugarcrepe/swap_att.json": 154_665,
    "sugarcrepe/add_obj.json": 484_593,
    "sugarcrepe/add_att.json": 158_863,
    "sugarcrepe_pp/replace_obj.json": 456_601,
    "sugarcrepe_pp/replace_att.json": 226_275,
    "sugarcrepe_pp/replace_rel.json": 392_738,
    "sugarcrepe_pp/swap_obj.json": 74_611,
    "sugarcrepe_pp/swap_att.json": 198_206,
}
_VALSE_SIZES = {
    "valse/existence.json": 420_403,
    "valse/plurals.json": 1_097_122,
    "valse/counting-hard.json": 537_197,
    "valse/counting-small-quant.json": 534_996,
    "valse/counting-adversarial.json": 407_394,
    "valse/relations.json": 664_587,
    "valse/action-replacement.json": 664_129,
    "valse/actant-swap.json": 503_017,
    "valse/coreference-standard.json": 592_329,
    "valse/coreference-hard.json": 95_649,
    "valse/foil-it.json": 538_911,
}
_VSR_SIZES = {
    "vsr/random_dev.jsonl": 338_049,
    "vsr/random_test.jsonl": 674_712,
    "vsr/zeroshot_dev.jsonl": 107_245,
    "vsr/zeroshot_test.jsonl": 380_380,
}

_ANNOTATIONS = [
    *_repository(
        "RAIVNLab/sugar-crepe",
        "0047054b243992f0fad63d6f64f7544862daf846",
        _below("sugarcrepe", sugarcrepe.META.files, "data"),
        _SUGARCREPE_SIZES,
    ),
    *_repository(
        "Sri-Harsha/scpp",
        "c083bbf039a5ca215acaf25e7ee736d2ea6f3864",
        _below("sugarcrepe_pp", sugarcrepe_pp.META.files, "data"),
        _SUGARCREPE_SIZES,
    ),
    *_repository(
        "Heidelberg-NLP/VALSE",
        "2152d90d4aecd11f7f74cf03420abcb63efff9c5",
        _below("valse", valse.META.files, "data"),
        _VALSE_SIZES,
    ),
    *_repository(
        "cambridgeltl/visual-spatial-reasoning",
        "b27a0af0ee1462d2b6b92c8c83e869d9254a241a",
        {
            file: f"data/splits/{file.removeprefix('vsr/').replace('_', '/')}"
            for file in vsr.META.files
        },
        _VSR_SIZES,
    ),
    *_repository(
        "arijitray1993/COLA",
        "1fa52fba9cff4e6ffb7bfcf3550838748347273b",
        _below("cola", cola.META.files, "data"),
        dict.fromkeys(cola.META.files, 56_746),
    ),
    *_repository(
        "om-ai-lab/VL-CheckList",
        NEWEST,
        _below("vl_checklist/data", vl_checklist.META.files, "data"),
    ),
    *_repository(
        "amitakamath/hard_positives",
        NEWEST,
        {
            file: file.removeprefix("hard_positives/")
            for file in hard_positives.META.files
            if "vl_checklist" in file
        },
        keys=("image_id", "image_path", "true_caption", "false_caption"),
    ),
    *_repository(
        "McGill-NLP/imagecode",
        "15b993f545c6e659d80afa133c313f2b377e89f5",
        {"imagecode/valid_data.json": "data/valid_data.json"},
    ),
    *_repository(
        "google-deepmind/svo_probes",
        NEWEST,
        {"svo_probes/svo_probes.csv": "svo_probes.csv"},
        keys=svo_probes.COLUMNS,
    ),
    Source(
        "mmvp_vlm/Questions.csv",
        "https://huggingface.co/datasets/MMVP/MMVP_VLM/resolve/main/Questions.csv",
    ),
    Source("coco/coco_karpathy_test.json", f"{_BLIP}/coco_karpathy_test.json", 1_735_468),
    Source(
        "flickr30k/flickr30k_test.json",
        f"{_BLIP}/flickr30k_test.json",
        keys=("image", "caption"),
    ),
]
_PHOTOS = [
    Source(
        "coco/val2017",
        f"{_COCO}/val2017.zip",
        815_585_330,
        "442b8da7639aecaf257c1dceb8ba8c80",
        archive=True,
    ),
    Source(
        "coco/train2017",
        f"{_COCO}/train2017.zip",
        19_336_861_798,
        "cced6f7f71b7629ddf16f17bbcfab6b2",
        archive=True,
    ),
    Source(
        "coco/val2014",
        f"{_COCO}/val2014.zip",
        6_645_013_297,
        "a3d79f5ed8d289b7a7554ce06a5782b3",
        archive=True,
    ),
    Source(
        "coco/train2014",
        f"{_COCO}/train2014.zip",
        13_510_573_713,
        "0da8cfa0e090c266b78f30e2d2874f1a",
        archive=True,
    ),
    Source("vg/VG_100K", f"{_GENOME}/images.zip", archive=True),
    Source("vg/VG_100K_2", f"{_GENOME}/images2.zip", archive=True),
    Source("visual7w", "http://vision.stanford.edu/yukezhu/visual7w_images.zip", archive=True),
    Source(
        "swig",
        "https://swig-data-weights.s3.us-east-2.amazonaws.com/images_512.zip",
        archive=True,
    ),
    Source(
        "imagecode/image-sets",
        "https://zenodo.org/record/6518944/files/image-sets.zip",
        archive=True,
    ),
]

SOURCES = {source.target: source for source in (*_ANNOTATIONS, *_PHOTOS)}
"""Target below the data root -> its source."""
