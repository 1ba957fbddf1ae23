"""A small model in this process, through transformers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from compoclip.errors import CompoclipError
from compoclip.language.engine import Answer, Sampling
from compoclip.language.task import Message


class InProcessModel:
    """A causal language model of transformers, one prompt after the other.

    Answers depend on prompt, sampling and device only: no batches, the seed set for each. Models
    with a chat template get the conversation in it, others the plain text.
    """

    concurrency = 1

    def __init__(self, model: str, device: str = "cpu") -> None:
        """model: folder or repository of the Hugging Face hub. Raises CompoclipError when
        transformers is not installed, or the model cannot be loaded; code in it is not run.
        """
        if importlib.util.find_spec("transformers") is None:
            raise CompoclipError(
                "models in this process need transformers: pip install 'compoclip[hf]', or name a "
                "server with --server URL"
            )
        transformers: Any = importlib.import_module("transformers")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            network = transformers.AutoModelForCausalLM.from_pretrained(model, use_safetensors=True)
        except Exception as error:  # many kinds: no such folder, no network, other architecture
            first = " ".join(str(error).split())[:200] or type(error).__name__
            raise CompoclipError(
                f"{model}: not a causal language model that transformers can load ({first}); give "
                "a folder or hub id, or a server with --server URL"
            ) from error
        self._model = network.to(device).eval()
        self._device = device
        self.name = f"transformers {transformers.__version__}"
        self.model = model

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer:
        """The continuation of the prompt."""
        import torch

        inputs = self._inputs(messages).to(self._device)
        room = self._room() - inputs.shape[1]
        draw = sampling.temperature > 0
        options: dict[str, Any] = {"do_sample": draw}
        if draw:
            options["temperature"] = sampling.temperature
        padding = self._tokenizer.pad_token_id
        if padding is None:
            padding = self._tokenizer.eos_token_id
        if room < 1:
            return Answer("", cut_off=True, tokens_in=inputs.shape[1], tokens_out=0)
        devices = [torch.device(self._device)] if self._device.startswith("cuda") else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed(sampling.seed)
            made = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=min(sampling.max_tokens, room),
                pad_token_id=padding,
                **options,
            )[0, inputs.shape[1] :]
        ends = self._ends()
        return Answer(
            self._tokenizer.decode(made, skip_special_tokens=True),
            cut_off=not ends.intersection(made.tolist()),
            tokens_in=inputs.shape[1],
            tokens_out=len(made),
        )

    def _inputs(self, messages: Sequence[Message]) -> Any:
        if getattr(self._tokenizer, "chat_template", None):
            made = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:
            text = "\n\n".join(message["content"] for message in messages)
            made = self._tokenizer(text, return_tensors="pt")
        return made["input_ids"]

    def _room(self) -> int:
        config = self._model.config
        return int(getattr(config, "max_position_embeddings", None) or 1 << 20)

    def _ends(self) -> set[int]:
        ends = self._model.generation_config.eos_token_id
        listed = ends if isinstance(ends, list) else [ends, self._tokenizer.eos_token_id]
        return {end for end in listed if end is not None}
