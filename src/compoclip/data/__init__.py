"""Image-text sources, decoding, transforms, and batches with ragged texts."""
