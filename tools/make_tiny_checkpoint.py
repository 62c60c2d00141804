"""Write a tiny random MiniMax-H3 checkpoint: `python tools/make_tiny_checkpoint.py --output DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

from vflash_adapters.tiny_checkpoint import StoredDtype, Variant, write_tiny_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="a folder that does not exist yet")
    parser.add_argument("--variant", type=Variant, choices=list(Variant), default=Variant.SMALL)
    parser.add_argument("--dtype", type=StoredDtype, choices=list(StoredDtype), default=StoredDtype.FLOAT32)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_tiny_checkpoint(arguments.output, dimensions=arguments.variant, dtype=arguments.dtype, seed=arguments.seed)


if __name__ == "__main__":
    main()
