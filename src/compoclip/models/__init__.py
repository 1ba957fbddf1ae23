"""Dual encoders over open_clip parameters: features, checkpoints and identity.

from compoclip.models import load_model

model = load_model("ViT-B-32-quickgelu:openai")
text = model.encoder.encode_texts(model.tokenizer(["a red star", "a blue star"])).pooled
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
