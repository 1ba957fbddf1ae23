"""Which items can be scored with the images at hand. Readers yield all; this splits them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from compoclip.benchmarks.case import Benchmark, Case, Classification, ImageRef, Retrieval

Content = tuple[Case, ...] | Retrieval | Classification


def present(benchmark: Benchmark) -> tuple[Content, tuple[str, ...]]:
    """The content whose images all exist as files, and the sorted names of the absent images.

    Every distinct path is looked up once, an archive as a whole. A case is kept when all its images
    exist. From a retrieval set absent images go, and texts that lose their last image with them.
    From a classification set absent images go, the classes stay.
    """
    content = benchmark.content
    if isinstance(content, Retrieval):
        refs: Iterable[ImageRef] = content.images
    elif isinstance(content, Classification):
        refs = content.images
    else:
        refs = (ref for case in content for ref in case.images)
    distinct = dict.fromkeys(refs)
    missing = {path for path in {ref.path for ref in distinct} if not path.is_file()}
    if not missing:
        return content, ()
    absent = sorted({ref.photo for ref in distinct if ref.path in missing})
    return without(content, lambda ref: ref.path in missing), tuple(absent)


def without(content: Content, absent: Callable[[ImageRef], bool]) -> Content:
    """The content without the images for which `absent` holds, by the rules of `present`."""
    if isinstance(content, Classification):
        kept = [k for k, image in enumerate(content.images) if not absent(image)]
        return replace(
            content,
            images=tuple(content.images[k] for k in kept),
            labels=tuple(content.labels[k] for k in kept if content.labels),
            tags=tuple(content.tags[k] for k in kept if content.tags),
        )
    if isinstance(content, Retrieval):
        return _retrieval_without(content, absent)
    return tuple(case for case in content if not any(map(absent, case.images)))


def _retrieval_without(content: Retrieval, absent: Callable[[ImageRef], bool]) -> Retrieval:
    images = [i for i, image in enumerate(content.images) if not absent(image)]
    image_at = {old: new for new, old in enumerate(images)}
    pairs = [(image, text) for image, text in content.pairs if image in image_at]
    texts = sorted({text for _, text in pairs})
    text_at = {old: new for new, old in enumerate(texts)}
    return Retrieval(
        images=tuple(content.images[i] for i in images),
        texts=tuple(content.texts[t] for t in texts),
        pairs=tuple((image_at[image], text_at[text]) for image, text in pairs),
    )
