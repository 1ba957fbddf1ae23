"""Captions: tokens, noun chunks, scene graphs, the lexicon and the parse store. No torch here."""
