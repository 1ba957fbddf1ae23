"""ImageNet's class names, prompt templates and WordNet ids, as installed libraries carry them.

Names and templates are OpenAI's (Radford et al., ICML 2021), in open_clip (MIT); the ids of the
classes of ImageNet-1K, -A and -R are in timm (Apache-2.0). Both are read without importing the
libraries, which would load torch.
"""

from __future__ import annotations

from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.errors import CompoclipError

_UPDATE = "install the libraries that compoclip asks for"
_SYNSETS = {"imagenet-a": "imagenet_a_synsets.txt", "imagenet-r": "imagenet_r_synsets.txt"}


@cache
def imagenet_prompts(name: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(WordNet ids, class names, templates) of imagenet-1k or a shift of it, in label order.

    ImageNet-A and -R have 200 of the 1,000 classes. Raises CompoclipError when a library does not
    carry them as expected.
    """
    every = _synsets("imagenet_synsets.txt")
    own = _synsets(_SYNSETS[name]) if name in _SYNSETS else every
    path = _folder("open_clip") / "zero_shot_metadata.py"
    loader = SourceFileLoader("compoclip_imagenet_metadata", str(path))
    spec = spec_from_loader(loader.name, loader)
    try:
        module = module_from_spec(spec)  # type: ignore[arg-type]
        loader.exec_module(module)
        names = tuple(str(each) for each in module.IMAGENET_CLASSNAMES)
        templates = tuple(str(fill("{}")) for fill in module.OPENAI_IMAGENET_TEMPLATES)
    except (OSError, AttributeError, TypeError) as error:
        raise CompoclipError(f"{path}: no ImageNet class names ({error}); {_UPDATE}") from error
    if len(names) != len(every):
        raise CompoclipError(f"{path}: {len(names)} class names, not {len(every)}; {_UPDATE}")
    name_of = dict(zip(every, names))
    return own, tuple(name_of[each] for each in own), templates


def _synsets(file: str) -> tuple[str, ...]:
    path = _folder("timm") / "data" / "_info" / file
    return tuple(files.read_text(path, _UPDATE).split())


def _folder(library: str) -> Path:
    spec = find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise CompoclipError(f"the library {library} is not installed; {_UPDATE}")
    return Path(spec.submodule_search_locations[0])
