"""Procedural scenes with full ground truth: scenes, pictures, captions, an oracle and splits.

`sampling.scene_for` draws scenes, `render.render` paints them, `captions.captions_for` describes
them, `oracle.Oracle` decides any caption of the grammar, `contrast` makes hard negatives, hard
positives and minimal pairs, `splits` says which compounds stay unseen.
"""
