"""Programs that run the peers in their own environments, for `python -m bench peers`.

    python bench/peer_programs.py PROGRAM ARGUMENT ... [NAME=VALUE ...]

A program writes its numbers to numbers.json. It imports nothing of compoclip, which is not in these
environments.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NUMBERS = "numbers.json"
ARCHITECTURE = "ViT-B-32-quickgelu"
BATCH = 64
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


def faiss_search(weights: str, photos: str, queries: str) -> dict[str, float]:
    """Encode photos into an exact index of faiss, write and read it, and search it by texts."""
    import faiss

    model, paths = OpenClip(weights), sorted(Path(photos).iterdir())
    features = model.images(paths).numpy()
    index = faiss.IndexFlatIP(features.shape[1])
    index.add(features)
    faiss.write_index(index, "photos.faiss")
    texts = model.texts(Path(queries).read_text(encoding="utf-8").splitlines()).numpy()
    scores, places = faiss.read_index("photos.faiss").search(texts, 10)
    names = [[paths[place].name for place in row] for row in places]
    return scores_of_photos([list(zip(*row)) for row in zip(names, scores.tolist())])


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
        faiss_search,
    )
    name, *arguments = words
    program = next(program for program in programs if program.__name__ == name)
    named = dict(word.split("=", 1) for word in arguments if "=" in word)
    numbers = program(*(word for word in arguments if "=" not in word), **named)
    Path(NUMBERS).write_text(json.dumps(numbers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
