"""`python -m vflash` is `vflash`."""

from __future__ import annotations

from vflash.cli import main

main()
