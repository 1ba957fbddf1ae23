"""Dual encoders over open_clip parameters: features, checkpoints and identity."""
