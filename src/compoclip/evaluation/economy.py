"""How much encoding an evaluation is spared by encoding what is the same only once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from compoclip.benchmarks.case import Benchmark, Classification, ImageRef, Retrieval
from compoclip.benchmarks.coverage import Content
from compoclip.evaluation.encode import by_content, distinct_images, distinct_texts
from compoclip.evaluation.encoder import TextKey


@dataclass(frozen=True)
class Economy:
    """Encodings that some benchmarks need. naive: every image and text of every item on its own,
    as scripts that go through the items do. once: each distinct image (bytes and box; where the
    file is absent: path and box) and each distinct token sequence."""

    name: str
    items: int
    naive_images: int
    naive_texts: int
    once_images: int
    once_texts: int

    @property
    def ratio(self) -> float:
        """Naive encodings for each one that is made."""
        return (self.naive_images + self.naive_texts) / max(1, self.once_images + self.once_texts)

    @property
    def text_ratio(self) -> float:
        """The same for texts alone."""
        return self.naive_texts / max(1, self.once_texts)


def economies(
    benchmarks: Sequence[Benchmark],
    text_keys: Callable[[Sequence[str]], Sequence[TextKey]],
    workers: int = 2,
) -> tuple[list[Economy], Economy]:
    """One a benchmark as if it were alone, and that of all of them evaluated together.

    text_keys: of the model (`Encoder.text_keys`). Nothing is encoded.
    """
    contents = [each.content for each in benchmarks]
    texts = distinct_texts(contents)
    tokens = {text: key.key for text, key in zip(texts, text_keys(texts))}
    _, rows = by_content(distinct_images(contents), workers)
    alone = [_economy(b.name, [b.content], tokens, rows) for b in benchmarks]
    return alone, _economy("all together", contents, tokens, rows)


def _economy(
    name: str,
    contents: Sequence[Content],
    tokens: Mapping[str, bytes],
    rows: Mapping[ImageRef, int],
) -> Economy:
    counts = [_naive(content) for content in contents]
    return Economy(
        name=name,
        items=sum(items for items, _, _ in counts),
        naive_images=sum(images for _, images, _ in counts),
        naive_texts=sum(texts for _, _, texts in counts),
        once_images=len({rows[ref] for ref in distinct_images(contents)}),
        once_texts=len({tokens[text] for text in distinct_texts(contents)}),
    )


def _naive(content: Content) -> tuple[int, int, int]:
    """Items, images and texts; sets that share a gallery are encoded once by everybody."""
    if isinstance(content, Retrieval):
        return (len(content.images) + len(content.texts), len(content.images), len(content.texts))
    if isinstance(content, Classification):
        return len(content.images), len(content.images), sum(map(len, content.prompts))
    return (
        len(content),
        sum(len(case.images) for case in content),
        sum(len(case.texts) for case in content),
    )
