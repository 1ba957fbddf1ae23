"""Models of other libraries: sentence-transformers, transformers, mteb's registry.

A library is imported when a model of it is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from compoclip.errors import UsageError, optional
from compoclip.evaluation.encoder import Precision
from compoclip.models import names

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class ModelOptions:
    """How a model from outside is loaded.

    text_prompt: put before every text, or the instruction of a chat model; for "vqa" the question,
    with {} for the text. image_prompt: the instruction that goes with images. None: the model's
    own. trust_remote_code: run code that comes with the weights. score: "vqa" makes an
    image-text-to-text model a scorer.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    text_prompt: str | None = None
    image_prompt: str | None = None
    trust_remote_code: bool = False
    score: str = ""

    def place(self, model: Any) -> Any:
        """Return a torch module on the device, in the precision, in evaluation mode."""
        return model.to(DTYPES[self.precision]).to(self.device).eval()


def _commit(model: Any, revision: str | None) -> str:
    return getattr(getattr(model, "config", None), "_commit_hash", None) or revision or ""


# --- sentence-transformers. ---


class SentenceEmbedder:
    """A `SentenceTransformer` for images and texts, of the hub or a folder; pooling and default
    prompts are its own."""

    libraries = ("sentence-transformers", "transformers", "torch")

    def __init__(self, identifier: str, revision: str | None, options: ModelOptions) -> None:
        (library,) = _packages("st", identifier)
        self.model = options.place(
            library.SentenceTransformer(
                identifier,
                revision=revision,
                device="cpu",
                trust_remote_code=options.trust_remote_code,
            )
        )
        default = self.model.prompts.get(self.model.default_prompt_name, "")
        prompts = {"text": options.text_prompt, "image": options.image_prompt}
        self.prompt = {kind: default if text is None else text for kind, text in prompts.items()}
        first = self.model[0] if len(self.model) else None
        self.revision = _commit(getattr(first, "auto_model", None), revision)

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        """Return (N, D)."""
        return self._encode(images, "image")

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return (N, D)."""
        return self._encode(texts, "text")

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        """Return which texts are longer than the model's context."""
        prompted = [self.prompt["text"] + text for text in texts]
        return _longer(self.model.tokenizer, self.model.max_seq_length, prompted)

    def _encode(self, inputs: Sequence[Any], kind: str) -> Tensor:
        features: Tensor = self.model.encode(
            list(inputs),
            prompt=self.prompt[kind] or None,
            batch_size=len(inputs),
            show_progress_bar=False,
            convert_to_tensor=True,
        )
        return features


def _longer(tokenizer: Any, limit: int | None, texts: Sequence[str]) -> list[bool]:
    """Return the texts with more tokens than a limit; empty without tokenizer or limit."""
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    if not callable(tokenizer) or limit is None:
        return [False for _ in texts]
    return [len(ids) > limit for ids in tokenizer(list(texts), truncation=False)["input_ids"]]


# --- transformers. ---

_PADDED = ("siglip", "siglip2")  # read texts at their full length, padding included
INSTRUCTION = "Represent the user's input."
QUESTION = 'Does this figure show "{}"? Please answer yes or no.'
YES_OR_NO = "{}\nAnswer the question with a yes or no."  # of SimpleNeg's judge
ANSWER = "Yes"


class _Transformers:
    libraries = ("transformers", "torch")

    def __init__(self, model: Any, processor: Any, revision: str | None, device: Any) -> None:
        self.model, self.processor, self.device = model, processor, device
        self.revision = _commit(model, revision)

    def _inputs(self, **arguments: Any) -> dict[str, Any]:
        """Return the processor's inputs, on the device, in the model's precision."""
        inputs = self.processor(return_tensors="pt", **arguments)
        return {
            key: value.to(self.device, self.model.dtype if value.is_floating_point() else None)
            for key, value in inputs.items()
        }

    def _chats(self, contents: Sequence[list[dict[str, Any]]], system: str = "") -> list[str]:
        """One conversation per content as text, ready for the answer."""
        first = [{"role": "system", "content": [{"type": "text", "text": system}]}]
        return [
            self.processor.apply_chat_template(
                [*(first if system else []), {"role": "user", "content": content}],
                tokenize=False,
                add_generation_prompt=True,
            )
            for content in contents
        ]


class DualTransformer(_Transformers):
    """A model with `get_image_features` and `get_text_features`: CLIP, SigLIP, ALIGN, ...;
    `text_prompt` is put before texts."""

    def __init__(self, options: ModelOptions, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prompt = {"text": options.text_prompt or ""}
        padded = self.model.config.model_type in _PADDED
        config = getattr(self.model.config, "text_config", self.model.config)
        self._longest = getattr(config, "max_position_embeddings", None)
        self._padding = {"padding": "max_length" if padded else True, "max_length": self._longest}

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        """Return (N, D)."""
        return _pooled(self.model.get_image_features(**self._inputs(images=list(images))))

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return (N, D)."""
        prompted = [self.prompt["text"] + text for text in texts]
        inputs = self._inputs(text=prompted, truncation=self._longest is not None, **self._padding)
        return _pooled(self.model.get_text_features(**inputs))

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        """Return which texts are longer than the model's context."""
        prompted = [self.prompt["text"] + text for text in texts]
        return _longer(self.processor, self._longest, prompted)


def _pooled(output: Any) -> Tensor:
    """The features, which newer versions of transformers return inside of an output."""
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features


class LastTokenEmbedder(_Transformers):
    """A language model that sees, as in Qwen3-VL-Embedding: the last state of a conversation.

    The instruction (the prompts, by default Qwen3-VL-Embedding's) is the system's message, the text
    or image the user's; the vector is the state of the last token, where the answer would begin.
    """

    def __init__(self, options: ModelOptions, *arguments: Any) -> None:
        super().__init__(*arguments)
        prompts = {"text": options.text_prompt, "image": options.image_prompt}
        self.prompt = {k: INSTRUCTION if text is None else text for k, text in prompts.items()}

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        """Return (N, D)."""
        contents = [[{"type": "image"}] for _ in images]
        chats = self._chats(contents, self.prompt["image"])
        return self._last(self._inputs(text=chats, images=list(images), padding=True))

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return (N, D)."""
        contents = [[{"type": "text", "text": text}] for text in texts]
        return self._last(
            self._inputs(text=self._chats(contents, self.prompt["text"]), padding=True)
        )

    def _last(self, inputs: dict[str, Any]) -> Tensor:
        states: Tensor = self.model(**inputs).last_hidden_state
        mask = inputs["attention_mask"]  # padding is on either side
        last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)
        return states[torch.arange(len(states), device=states.device), last]


class VqaScorer(_Transformers):
    """VQAScore: the log-odds that the first token of the answer to a question is "Yes".

    `text_prompt` is the question, with {} for the text. Log-odds have the order of the probability,
    and do not round to ties near 0 and 1. Reference: Lin et al., Evaluating Text-to-Visual
    Generation with Image-to-Text Generation, 2024.
    """

    def __init__(self, options: ModelOptions, *arguments: Any) -> None:
        super().__init__(*arguments)
        question = options.text_prompt or QUESTION
        if "{}" not in question:
            raise UsageError(f"--text-prompt {question!r}: write {{}} where the text goes")
        self.prompt = {"text": question}
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        tokenizer.padding_side = "left"  # so that the answer begins at the end of every row
        self._yes = tokenizer(ANSWER, add_special_tokens=False)["input_ids"][0]
        takes = inspect.signature(self.model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def score(self, image: Image.Image, texts: Sequence[str]) -> Tensor:
        """Return (T,) log-odds."""
        before, after = self.prompt["text"].split("{}", 1)
        questions = [{"type": "text", "text": f"{before}{text}{after}"} for text in texts]
        chats = self._chats([[{"type": "image"}, question] for question in questions])
        inputs = self._inputs(text=chats, images=[image for _ in texts], padding=True)
        logits = self.model(**inputs, **self._last_only).logits[:, -1].float()
        yes = logits[:, self._yes].clone()
        logits[:, self._yes] = -torch.inf
        odds: Tensor = yes - logits.logsumexp(-1)
        return odds


def _transformer(identifier: str, revision: str | None, options: ModelOptions) -> _Transformers:
    (library,) = _packages("hf", identifier)
    remote: dict[str, Any] = {"trust_remote_code": options.trust_remote_code, "revision": revision}
    vqa = options.score == "vqa"
    kind = library.AutoModelForImageTextToText if vqa else library.AutoModel
    model = options.place(kind.from_pretrained(identifier, **remote))
    processor = library.AutoProcessor.from_pretrained(identifier, **remote)
    arguments = (model, processor, revision, options.device)
    if not vqa and all(
        hasattr(model, f"get_{modality}_features") for modality in ("image", "text")
    ):
        return DualTransformer(options, *arguments)
    if getattr(processor, "chat_template", None) is None:
        raise UsageError(
            f"hf:{identifier}: {type(model).__name__} has neither features of images and texts nor "
            "a chat template with images; write a file for it: compoclip new model NAME"
        )
    return VqaScorer(options, *arguments) if vqa else LastTokenEmbedder(options, *arguments)


# --- mteb. ---


class MtebEmbedder:
    """A model of mteb's registry, with the prompts that mteb's SugarCrepe gives it.

    `trust_remote_code` is required: mteb's own loaders allow such code.
    """

    libraries = ("mteb", "torch")

    def __init__(self, identifier: str, revision: str | None, options: ModelOptions) -> None:
        name = f"mteb:{identifier}"
        customised = (
            options.precision != "fp32" or (options.text_prompt or options.image_prompt) is not None
        )
        if not options.trust_remote_code:
            raise UsageError(f"{name}: its weights bring code; add --trust-remote-code to run it")
        if customised:
            raise UsageError(f"{name}: has its own precision and prompts; leave yours out")
        library, self._datasets = _packages("mteb", identifier)
        self.model = library.get_model(identifier, revision, device=str(options.device))
        about = self.model.mteb_model_meta
        if not {"image", "text"} <= {*about.modalities}:
            raise UsageError(f"{name}: reads {', '.join(about.modalities)}, not images and texts")
        self.revision = about.revision or ""
        self._task = library.get_task("SugarCrepe").metadata

    def images(self, images: Sequence[Image.Image]) -> Any:
        """Return (N, D)."""
        return self._encode("image", images)

    def texts(self, texts: Sequence[str]) -> Any:
        """Return (N, D)."""
        return self._encode("text", texts)

    def _encode(self, kind: str, inputs: Sequence[Any]) -> Any:
        def batch(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
            return {kind: [row[kind] for row in rows]}

        rows = self._datasets.Dataset.from_dict({kind: list(inputs)})
        loader = DataLoader(rows, batch_size=len(inputs), collate_fn=batch)
        task = {"task_metadata": self._task, "hf_split": "test", "hf_subset": "default"}
        return self.model.encode(loader, **task)


def _packages(library: str, identifier: str) -> list[Any]:
    """Import the packages that a model of a library needs."""
    packages = names.LIBRARIES[library]
    return [optional(package, library, f"{library}:{identifier}") for package in packages]


LIBRARIES: Mapping[str, Callable[[str, str | None, ModelOptions], Any]] = MappingProxyType(
    {"st": SentenceEmbedder, "hf": _transformer, "mteb": MtebEmbedder}
)
"""Prefix of a model's name -> what loads it: identifier, revision and options to a model."""
