"""A losslessly compressed copy of weight payloads, read instead of them; the originals stay and are still needed."""
