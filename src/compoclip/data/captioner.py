"""Captions of photos by models that write what they see: open_clip's CoCa, BLIP of transformers.

FSC-CLIP (Oh et al., EMNLP 2024, section 4) trains on photos of CC3M with captions by CoCa ViT-L/14,
and on photos of LAION with captions by BLIP.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from PIL import Image

from compoclip.console import note
from compoclip.data.decode import decode, photo_hash
from compoclip.data.sources import Source
from compoclip.data.transform import normalised, pixels_of
from compoclip.errors import CompoclipError, UsageError, optional, require
from compoclip.files import bytes_hash, reason
from compoclip.language.engine import PHOTOS, Answer, Sampling, answer_seed
from compoclip.language.rows import TEXT, Outputs, write_rows
from compoclip.recordfile import Record, appending

HUGGING_FACE = "hf:"
MAX_TOKENS = 30
"""Most tokens of a caption unless another number is asked for, as in open_clip."""
_MIN_TOKENS = 5
"""A caption of CoCa has so many tokens, the start included, before it may end, as in open_clip."""
EMPTY, UNREADABLE = "empty", "unreadable-photo"


class Captioner(Protocol):
    """Writes a caption for each photo of a batch.

    name: program and version, for provenance.
    """

    @property
    def name(self) -> str: ...

    def caption(
        self, photos: Sequence[Image.Image], samplings: Sequence[Sampling]
    ) -> list[Answer]: ...


class CocaCaptioner:
    """CoCa of open_clip, which reads a photo and continues the start of a text.

    At temperature 0 each token is the likeliest one: `CoCa.generate` of open_clip with
    generation_type "top_k" and k = 1, without the parts of transformers that it needs and that
    transformers from 4.57 on lacks. Otherwise tokens are sampled, with a generator per photo.

    Args:
        spec: As for `load_model`: coca_ViT-L-14:TAG, coca_ViT-L-14@FILE, hf-hub:ID or a folder.
        device: For torch.

    Raises:
        CompoclipError: For a model that cannot be loaded, is no CoCa, or has another tokenizer than
            CLIP's.
    """

    def __init__(self, spec: str, device: str = "cpu") -> None:
        import open_clip
        from open_clip.coca_model import CoCa

        from compoclip.models.checkpoint import load_model

        loaded = load_model(spec, device=device)
        model: Any = loaded.encoder.model
        if not isinstance(model, CoCa):
            raise UsageError(
                f"{spec}: writes no captions; name a CoCa, such as coca_ViT-L-14:TAG, or "
                f"{HUGGING_FACE}ID for BLIP"
            )
        simple = loaded.tokenizer.simple
        require(simple, spec, "only a CoCa with CLIP's tokenizer can write captions")
        assert simple is not None
        self._model, self._tokenizer = model, simple
        self._preprocess, self._device = loaded.preprocess, device
        self._context = min(loaded.identity.context_length, model.context_length)
        self.name = f"open_clip {open_clip.__version__}"

    def caption(self, photos: Sequence[Image.Image], samplings: Sequence[Sampling]) -> list[Answer]:
        """Return a caption per photo."""
        preprocess, start = self._preprocess, self._tokenizer.sot_token_id
        framed = torch.stack([pixels_of(preprocess.framed(photo)) for photo in photos])
        pixels = normalised(framed.to(self._device), preprocess.mean, preprocess.std)
        generators = [torch.Generator().manual_seed(sampling.seed) for sampling in samplings]
        ids: list[list[int]] = [[start] for _ in photos]
        ended: list[bool] = [False for _ in photos]
        with torch.inference_mode():
            latent, tokens = self._model._encode_image(pixels)
            for length in range(1, min(samplings[0].max_tokens, self._context)):
                rows = [row for row, over in enumerate(ended) if not over]
                if not rows:
                    break
                text = torch.tensor([ids[row] for row in rows], device=self._device)
                outputs = self._model(
                    pixels[rows],
                    text,
                    image_latent=latent[rows],
                    image_embs=tokens[rows],
                    output_labels=False,
                )
                logits = outputs["logits"][:, -1].float().cpu()
                if length < _MIN_TOKENS:
                    logits[:, self._tokenizer.eot_token_id] = -torch.inf
                for row, row_logits in zip(rows, logits):
                    token = _choice(row_logits, samplings[row].temperature, generators[row])
                    ended[row] = token in (self._tokenizer.eot_token_id, self._model.pad_id)
                    ids[row] += [] if ended[row] else [token]
        texts = [self._tokenizer.decode(row[1:]) for row in ids]
        return [
            Answer(text, not over, 0, len(row) - 1) for text, over, row in zip(texts, ended, ids)
        ]


def _choice(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    """Return the likeliest token at temperature 0, else a sampled one."""
    if not temperature:
        return int(logits.argmax())
    shares = (logits / temperature).softmax(0)
    return int(torch.multinomial(shares, 1, generator=generator))


class TransformersCaptioner:
    """An image captioner of transformers, such as BLIP; photos are captioned one by one.

    Remote code of a model is never run.

    Args:
        model: Folder or repository of the Hugging Face hub.
        device: For torch.

    Raises:
        CompoclipError: When transformers is not installed, or the model cannot be loaded.
    """

    def __init__(self, model: str, device: str = "cpu") -> None:
        transformers = optional("transformers", "hf", f"--model {HUGGING_FACE}{model}")
        try:
            self._processor = transformers.AutoProcessor.from_pretrained(model)
            network = transformers.AutoModelForImageTextToText.from_pretrained(
                model, use_safetensors=True
            )
        except Exception as error:  # many kinds: no such folder, no network, other architecture
            raise CompoclipError(
                f"{model}: not a model that transformers can caption photos with "
                f"({reason(error)}); give a folder or hub id, such as "
                "Salesforce/blip-image-captioning-large"
            ) from error
        self._model, self._device = network.to(device).eval(), device
        tokenizer = self._processor.tokenizer
        self._ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
        self.name = f"transformers {transformers.__version__}"

    def caption(self, photos: Sequence[Image.Image], samplings: Sequence[Sampling]) -> list[Answer]:
        """Return a caption per photo."""
        devices = [torch.device(self._device)] if self._device.startswith("cuda") else []
        answers = []
        for photo, sampling in zip(photos, samplings):
            inputs = self._processor(images=photo, return_tensors="pt").to(self._device)
            warm = {"temperature": sampling.temperature} if sampling.temperature else {}
            with torch.random.fork_rng(devices), torch.inference_mode():
                torch.manual_seed(sampling.seed)
                ids = self._model.generate(
                    **inputs, max_new_tokens=sampling.max_tokens, do_sample=bool(warm), **warm
                )[0]
            text = self._processor.decode(ids, skip_special_tokens=True)
            answers.append(Answer(text, self._ends.isdisjoint(ids.tolist()), 0, len(ids)))
        return answers


def open_captioner(model: str, device: str) -> Captioner:
    """Load a captioner: hf:ID of transformers, any other name of open_clip."""
    if model.startswith(HUGGING_FACE):
        return TransformersCaptioner(model.removeprefix(HUGGING_FACE), device)
    return CocaCaptioner(model, device)


# --- From photos to a table that `train` reads. ---


@dataclass(frozen=True)
class PhotoAsking:
    """How photos are captioned; seed and photo fix a caption. batch_size: photos at once."""

    temperature: float = 0.0
    max_tokens: int = MAX_TOKENS
    seed: int = 0
    batch_size: int = 16

    def sampling(self, id: str) -> Sampling:
        """Return the parameters for one photo."""
        return Sampling(self.temperature, self.max_tokens, answer_seed(self.seed, id))


@dataclass
class PhotoTally:
    """Counts of photos: with a caption, captioned by an earlier run, left out by reason. cut:
    captions that end at the token limit."""

    photos: int = 0
    captions: int = 0
    before: int = 0
    cut: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def caption_photos(
    source: Source,
    captioner: Captioner,
    asking: PhotoAsking,
    provenance: Mapping[str, Any],
    out: Outputs,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> PhotoTally:
    """Caption all photos and write a table that `train` reads: a row per photo with a caption.

    OUT.answers.jsonl records each caption at once, so that the same call resumes after an
    interruption; photos whose bytes have changed since are captioned anew. Photos without a caption
    are in OUT.rejected.jsonl, so rows and rejections are as many as photos; the same call tries
    them again.

    Args:
        source: The photos, each in a file of its own.
        captioner: Writes the captions.
        asking: Settings of the sampling.
        provenance: Fields added to every row.
        out: The files.
        track: Wraps the stream of batches, for progress.

    Raises:
        UsageError: For photos inside of tables or tar files, which no row can name.
        CompoclipError: When no photo can be captioned, or a file cannot be written.
    """
    places = []
    for path, member in source.located():
        if member:
            raise UsageError(
                f"{source.describe()}: its photos lie in tables or tar files, and a caption needs "
                "a photo with a file of its own"
            )
        places.append(path)
    ids = list(source.column("id"))
    rejected: dict[int, tuple[str, str]] = {}
    records: dict[int, Record] = {}
    of_earlier: set[int] = set()  # recorded without the hash of the photo
    photos_hash = bytes_hash(repr(list(zip(ids, map(str, places)))).encode())
    made_from = {"photos": photos_hash, **provenance, "max_tokens": asking.max_tokens}
    tally = PhotoTally(photos=len(ids))

    def resume(record: Record) -> None:
        number = record["n"]
        if not 0 <= number < len(ids) or record["id"] != ids[number]:
            raise ValueError("a record of another photo")
        if not isinstance(record["caption"], str) or type(record["cut_off"]) is not bool:
            raise TypeError("not a record of a caption")
        if "photo" not in record:
            of_earlier.add(number)
        elif record["photo"] == photo_hash(places[number]):
            records.setdefault(number, record)

    with appending(out.answers, made_from, resume) as (append, _):
        if again := len(of_earlier - records.keys()):
            note(f"{out.answers}: {again} of an earlier version, without hashes; captioned anew")
        tally.before = len(records)
        todo = [number for number in range(len(ids)) if number not in records]
        starts = range(0, len(todo), asking.batch_size)
        for start in track(starts):
            photos: dict[int, Image.Image] = {}
            for number in todo[start : start + asking.batch_size]:
                try:
                    photos[number] = decode(places[number], upright=source.upright)
                except CompoclipError as error:
                    rejected[number] = (UNREADABLE, str(error))
            samplings = [asking.sampling(ids[number]) for number in photos]
            answers = captioner.caption(list(photos.values()), samplings) if photos else []
            for number, answer in zip(photos, answers):
                text = " ".join(answer.text.split())
                if not text:
                    rejected[number] = (EMPTY, "")
                    continue
                record = {"n": number, "id": ids[number], "photo": photo_hash(places[number])}
                record |= {"caption": text, "cut_off": answer.cut_off}
                records[number] = {**record, "engine": captioner.name}
                append(records[number])
    tally.captions = len(records)
    tally.cut = sum(record["cut_off"] for record in records.values())
    tally.left_out = Counter(cause for cause, _ in rejected.values())
    first = next((detail for _, detail in rejected.values()), "")
    require(records, out.rows, f"no photo has got a caption ({first or EMPTY})")

    def rows() -> Iterator[Record]:
        for number, record in sorted(records.items()):
            image = os.path.relpath(places[number], out.rows.parent)
            row = {"id": record["id"], "image": image, "caption": record["caption"]}
            yield {**row, **provenance, "engine": record["engine"]}

    def lost() -> Iterator[Record]:
        for number, (cause, detail) in sorted(rejected.items()):
            row = {"id": ids[number], "image": str(places[number]), "task": PHOTOS}
            yield {**row, "reason": cause, "detail": detail or None}

    columns = dict.fromkeys(("id", "image", "caption"), TEXT)
    write_rows(out, columns, provenance, rows(), lost())
    return tally
