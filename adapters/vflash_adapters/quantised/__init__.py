"""Row-scaled FP8 model folders: made once from full-width ones."""
