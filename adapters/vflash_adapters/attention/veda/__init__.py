"""Veda: learned block-sparse attention over three-dimensional tiles of video tokens."""
