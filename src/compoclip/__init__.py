"""compoclip: fine-tune CLIP-style models for compositionality and measure it honestly.

Importing this package is cheap: it imports neither torch nor any optional extra.
"""

__version__ = "0.1.0"
