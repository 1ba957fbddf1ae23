"""Train a model with another library on our hard negatives, and measure it before and after.

pip install 'compoclip[st,hf]' 'sentence-transformers>=6' datasets accelerate
python examples/python/train_elsewhere.py openai/clip-vit-base-patch32 captions.csv photos out

The model may also be an embedder such as Qwen/Qwen3-VL-Embedding-2B. captions.csv has a column of
images and one of captions. Photos that belong to the splits val and test are not trained on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import compoclip
from compoclip.cli.main import main as command


def measure(model: str, captions: str, photos: str, out: Path) -> dict[str, float]:
    """Return the share of test captions that beat their rewrites, by the library that loads it."""
    suite = f"rewrites:{captions},images={photos},split=test"
    options = compoclip.EvaluateOptions(on=(suite,), out=out, device="cpu", resamples=200)
    models = {library: f"{library}:{model}" for library in ("st", "hf")}
    return {
        result.model: result.headline_score.value for result in compoclip.evaluate(options, models)
    }


def train(model: str, table: Path, out: Path, steps: int, batch_size: int, rate: float) -> None:
    """Train on a table of images, captions and negatives, and save the model in `out`/model."""
    from datasets import load_dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    rows = load_dataset("parquet", data_files=str(table), split="train", cache_dir=str(out))
    loaded = SentenceTransformer(model, device="cpu")
    loss = MultipleNegativesRankingLoss(
        loaded,
        scale=100,  # CLIP's temperature after pre-training is 1/100
        directions=("query_to_doc", "doc_to_query"),  # the default has the first one alone
        partition_mode="per_direction",  # with both directions this is NegCLIP's loss
    )
    arguments = SentenceTransformerTrainingArguments(
        str(out / "steps"),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=rate,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    SentenceTransformerTrainer(loaded, arguments, train_dataset=rows, loss=loss).train()
    loaded.save_pretrained(str(out / "model"))


def main(words: Sequence[str] | None = None) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores before and after, by library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("captions")
    parser.add_argument("photos")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-5)
    options = parser.parse_args(words)

    negatives = options.out / "negatives"
    rewriting = ["--to", "sentence-transformers", "--rewrites", "replace", "-o", str(negatives)]
    captions, photos = options.captions, options.photos
    if command(["rewrite", captions, "--images", photos, "--split", "train", *rewriting]):
        raise SystemExit(1)
    before = measure(options.model, captions, photos, options.out / "before")
    table = negatives / "train.parquet"
    train(options.model, table, options.out, options.steps, options.batch_size, options.lr)
    after = measure(str(options.out / "model"), captions, photos, options.out / "after")
    return before, after


if __name__ == "__main__":
    before, after = main()
    for library, score in before.items():
        print(f"{library}: {100 * score:.1f} before, {100 * after[library]:.1f} after")
