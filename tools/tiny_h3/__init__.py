"""The trained tiny H3: its world, its training, its export."""
