"""Procedural scenes with full ground truth: scenes, pictures, captions, an oracle and splits.

    from compoclip_world import Oracle, WorldConfig, captions_for, png_bytes, scene_for

    scene = scene_for(WorldConfig(), seed=0, split="test", index=3)
    picture = png_bytes(scene, 224)
    for caption in captions_for(scene, WorldConfig(), 0, 3, 5):
        print(caption.text, Oracle().verdict(caption.text, scene).truth)

`vocabulary` holds all words, `edits` makes hard negatives and hard positives, `pairs` minimal
pairs, `sampling` says which compounds stay unseen, `export` writes benchmarks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
