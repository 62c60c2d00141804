"""A checkpoint folder in two small files, and the trained tiny H3, which is shipped so."""
