"""The judge: what a delivered clip of the small world shows and sounds like, measured and held against a caption."""
