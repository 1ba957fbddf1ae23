"""Can a text-only model tell rewrites from captions? The less, the better.

    python scripts/tell_rewrites.py ANNOTATIONS [--texts 3000]

For each negative rewrite, and for the official negatives of NegCLIP and SugarCrepe: captions and
texts made of them, one each, as many of both. Four fifths of the captions train, one fifth tests. A
logistic regression on hashed words and word pairs, and a transformer of one layer, are trained in
seconds on one core; the figure is the area under the ROC curve on the held-out fifth. 50 % is
chance. Case, punctuation and blanks are taken away first, as official files differ in them.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import random
import re
import sys
from pathlib import Path
from zlib import crc32

import torch
from torch import nn

from compoclip.captions.parser import parse_many
from compoclip.console import table
from compoclip.rewrites.base import Rewritten, get_rewrite, rewrite_names, rng_for

WORDS, LENGTH, WIDTH = 4096, 24, 48
Pair = tuple[str, str]


def words_of(text: str) -> list[str]:
    """The words in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


def hashed(text: str, pairs: bool) -> list[int]:
    """Hashes of the words, and of neighbouring ones, from 1."""
    words = words_of(text)
    if pairs:
        words += [f"{a} {b}" for a, b in zip(["^", *words], [*words, "$"])]
    return [1 + crc32(word.encode()) % (WORDS * (8 if pairs else 1) - 1) for word in words]


def area(scores: torch.Tensor, truth: torch.Tensor) -> float:
    """Area under the ROC curve, ties counted half."""
    mine, others = scores[truth > 0], scores[truth == 0]
    wins = (mine[:, None] > others[None]).float() + 0.5 * (mine[:, None] == others[None]).float()
    return float(wins.mean())


class Bag(nn.Module):
    """Logistic regression on hashed words and word pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.EmbeddingBag(WORDS * 8, 1, mode="sum", padding_idx=0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Score of each row of hashes (B, L)."""
        return self.weight(rows)[:, 0]


class Reader(nn.Module):
    """One transformer layer over hashed words, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.1, batch_first=True)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Score of each row of hashes (B, L)."""
        empty = rows == 0
        found = self.layer(self.word(rows) + self.place, src_key_padding_mask=empty)
        kept = found.masked_fill(empty[..., None], 0).sum(1)
        return self.score(kept / (~empty).sum(1, keepdim=True).clamp(min=1))[:, 0]


def told(pairs: list[Pair], kind: type[Bag | Reader], epochs: int) -> float:
    """Held-out area of a model that tells the second text of each pair from the first."""
    torch.manual_seed(0)
    bag = kind is Bag
    length = 2 * LENGTH if bag else LENGTH
    texts = [text for pair in pairs for text in pair]
    rows = torch.zeros(len(texts), length, dtype=torch.long)
    for number, text in enumerate(texts):
        found = hashed(text, bag)[:length]
        rows[number, : len(found)] = torch.tensor(found)
    truth = torch.tensor([0.0, 1.0] * len(pairs))
    cut = 2 * (len(pairs) * 4 // 5)
    model = kind()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01 if bag else 2e-3, weight_decay=0.01)
    for _ in range(epochs):
        order = torch.randperm(cut)
        for batch in order.split(64):
            optimiser.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(rows[batch]), truth[batch])
            loss.backward()
            optimiser.step()
    model.eval()
    with torch.no_grad():
        return area(model(rows[cut:]), truth[cut:])


def main() -> int:
    """Make the pairs, train, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with (options.data / "negclip" / "valid_neg_clip.tsv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file, delimiter="\t"))
    captions = [" ".join(line["title"].split()) for line in lines]
    parsed = parse_many(captions)
    sets: dict[str, list[Pair]] = {}
    for name in rewrite_names():
        rewrite = get_rewrite(name)
        if rewrite.keeps_meaning or name.startswith("graph-"):
            continue  # sub-graphs are no captions: anything tells them
        made = ((c.text, rewrite(c, rng_for(0, str(i), 0, name))) for i, c in enumerate(parsed))
        sets[name] = [(text, r.text) for text, r in made if isinstance(r, Rewritten)]
    rng = random.Random(0)
    sets["official NegCLIP"] = [
        (text, rng.choice(ast.literal_eval(line["neg_caption"])))
        for text, line in zip(captions, lines)
    ]
    sets["official SugarCrepe"] = [
        (item["caption"], item["negative_caption"])
        for path in sorted((options.data / "sugarcrepe").glob("*.json"))
        if not path.stem.startswith("add")
        for item in json.loads(path.read_text(encoding="utf-8")).values()
    ]
    body = []
    for name, pairs in sets.items():
        rng.shuffle(pairs)
        some = pairs[: options.texts]
        areas = [told(some, kind, options.epochs) for kind in (Bag, Reader)]
        body.append([name, str(len(some)), *(f"{100 * value:.1f} %" for value in areas)])
        print(*body[-1], file=sys.stderr, flush=True)
    print(table(body, ["negatives", "pairs", "words and pairs", "transformer"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
