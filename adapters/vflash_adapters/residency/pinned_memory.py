"""Page-aligned host memory that a CUDA device reads at full bus speed, given back to the system the moment it dies."""

from __future__ import annotations

import mmap

import torch

from vflash_ports.errors import UnsupportedError

_HUGE_PAGE = 2 * 2**20


class HostSlab:
    """`bytes` uint8 [size] of this process's own, page-locked if `pinned`.

    The framework's own pinned allocator rounds to powers of two and keeps what it was given back; a mapping that is
    registered with the driver does neither.
    """

    def __init__(self, size: int, *, pinned: bool) -> None:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(mapping, dtype=torch.uint8)
        self._pinned = False
        if pinned:
            _register(self.bytes)
            self._pinned = True

    def close(self) -> None:
        """Unlock the pages. The memory itself goes with the last view of it; idempotent."""
        if self._pinned:
            _check(torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr()), "unlock")
            self._pinned = False


def _register(memory: torch.Tensor) -> None:
    _check(
        torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0),
        f"page-lock {memory.nbytes / 2**30:.2f} GiB of",
    )


def _check(code: object, what: str) -> None:
    if int(code) != 0:  # type: ignore[call-overload]
        raise UnsupportedError(
            f"the CUDA driver could not {what} host memory (error {int(code)}); "  # type: ignore[call-overload]
            "free host memory, raise the locked-memory limit, or choose weight_residency 'resident'"
        )
