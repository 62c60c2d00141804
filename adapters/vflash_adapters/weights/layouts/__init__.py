"""Layouts that checkpoints come in, as tables; each is read as the canonical (diffusers) names and row order."""
