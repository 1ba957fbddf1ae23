"""Random tiny models of transformers in folders: a CLIP, and a language model that sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = (
    "Represent the user's input. Does this figure show Please answer yes or no. Yes No a cat dog"
)
MARKS = ["<pad>", "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"]
MARKS += ["<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %} {% endfor %}<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def word_tokenizer(
    words: Sequence[str], template: str = "$A", lower: bool = False, **tokens: Any
) -> Any:
    """Return a tokenizer of words between blanks; template: with the marks around a text."""
    import tokenizers
    import transformers

    vocabulary = {word: i for i, word in enumerate(words)}
    unknown = tokens["unk_token"]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=unknown))
    if lower:
        inner.normalizer = tokenizers.normalizers.Lowercase()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if template != "$A":
        marks = [(mark, vocabulary[mark]) for mark in template.split() if mark != "$A"]
        inner.post_processor = tokenizers.processors.TemplateProcessing(template, None, marks)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **tokens)


def tokenizer_of(texts: list[str], ends: bool) -> Any:
    """A tokenizer of the words of some texts; ends: <s> and </s> around them, as CLIP has it."""
    words = sorted({word for text in (*texts, WORDS) for word in text.replace('"', ' " ').split()})
    tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    template = "<s> $A </s>" if ends else "$A"
    return word_tokenizer([*MARKS, *words], template, **tokens, additional_special_tokens=MARKS[4:])


def write_clip(folder: Path, texts: list[str]) -> None:
    """A random CLIP of 16 numbers, images of 32 pixels and texts of 24 tokens."""
    import torch
    import transformers

    tokenizer = tokenizer_of(texts, ends=True)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes["num_attention_heads"] = 2
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 24, "eos_token_id": 3}
    config = transformers.CLIPConfig(
        text_config={**sizes, **text, "bos_token_id": 2, "pad_token_id": 0},
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    torch.manual_seed(0)
    transformers.CLIPModel(config).save_pretrained(folder)
    pixels = transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    tokenizer.model_max_length = 24
    transformers.CLIPProcessor(pixels, tokenizer).save_pretrained(folder)


def write_qwen(folder: Path, texts: list[str]) -> None:
    """A random Qwen3-VL of two layers; images have about 16 tokens."""
    import torch
    import transformers

    tokenizer = tokenizer_of(texts, ends=False)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in MARKS}
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    size = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    pixels = transformers.Qwen2VLImageProcessor(patch_size=8, size=size)
    video = transformers.Qwen3VLVideoProcessor(patch_size=8, size=size)
    processor = transformers.Qwen3VLProcessor(pixels, tokenizer, video, chat_template=CHAT)
    processor.save_pretrained(folder)


def write_slices(data: Path, annotations: Path, photos: Path, items: int) -> list[str]:
    """The first items of SugarCrepe and SugarCrepe++ that have a photo, per sub-task; the texts."""
    texts: list[str] = []
    (data / "coco").mkdir(parents=True)
    (data / "coco" / "val2017").symlink_to(photos / "images")
    for name, keys in (
        ("sugarcrepe", ("caption", "negative_caption")),
        ("sugarcrepe_pp", ("caption", "caption2", "negative_caption")),
    ):
        (data / name).mkdir()
        for file in sorted((annotations / name).glob("*.json")):
            rows = json.loads(file.read_text())
            rows = list(rows.values()) if isinstance(rows, dict) else rows
            here = [row for row in rows if (photos / "images" / row["filename"]).is_file()][:items]
            stored = dict(enumerate(here)) if name == "sugarcrepe" else here
            (data / name / file.name).write_text(json.dumps(stored))
            texts += [row[key] for row in here for key in keys]
    return texts
