"""A directory or file that appears under its name complete and on disk, or not at all, and replaces nothing."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from vflash_ports.errors import BusyError, ContractError, ExecutionError

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A work directory beside `final` that is renamed to `final` when the block ends well, else removed.

    It is locked while in use: a second writer of the same name is refused (`BusyError`), and what a killed writer left
    behind is removed by the next. `final` must not exist (`ContractError`), now or at the end. What the system refuses
    in the block, a full disk say, is an `ExecutionError`.
    """
    refuse_existing(final)
    if not final.parent.is_dir():
        raise ContractError(f"{final.parent}: no such folder; create it first")
    work = final.with_name(f".{final.name}.preparing")
    lock = _lock_directory(work)
    try:
        with _refusals_told(final):
            _empty(work)
            yield work
            _sync_tree(work)
            _rename_without_replacing(work, final)
            _sync_directory(final.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def new_file(final: Path, content: bytes) -> None:
    """Write `final` as a whole; an existing file is refused (`ContractError`), a full disk told (`ExecutionError`)."""
    refuse_existing(final)
    work = final.with_name(f".{final.name}.{os.getpid()}.writing")
    try:
        with _refusals_told(final):
            with work.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _rename_without_replacing(work, final)
    except BaseException:
        work.unlink(missing_ok=True)
        raise
    _sync_directory(final.parent)


def refuse_existing(final: Path) -> None:
    if os.path.lexists(final):
        raise ContractError(f"{final}: exists already; choose another name, or remove it")


@contextmanager
def _refusals_told(final: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ExecutionError(
            f"{final}: could not be written ({error}); nothing of it was kept; free space there, then run it again"
        ) from error


def _lock_directory(work: Path) -> int:
    """Create `work` if need be and hold its lock; the kernel lets go of it when this process dies."""
    while True:
        try:
            work.mkdir(exist_ok=True)
        except OSError as error:
            raise ContractError(
                f"{work.parent}: cannot be written ({error.strerror}); choose another folder"
            ) from error
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(f"{work}: another process is preparing this; wait for it to end") from None
        if _is_still_named(descriptor, work):
            return descriptor
        os.close(descriptor)  # published or removed between open and lock


def _is_still_named(descriptor: int, work: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), work.lstat())
    except FileNotFoundError:
        return False


def _empty(work: Path) -> None:
    for path in work.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            _sync_file(Path(folder, name))
        _sync_directory(Path(folder))


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename_without_replacing(work: Path, final: Path) -> None:
    code = _renameat2(work, final)
    if code in (errno.EINVAL, errno.ENOSYS):
        code = _rename_by_claim(work, final)
    if code == errno.EEXIST:
        raise ContractError(f"{final}: appeared while it was being prepared; the new one was discarded")
    if code:
        raise OSError(code, os.strerror(code), str(final))


def _renameat2(work: Path, final: Path) -> int:
    """0, or an errno; ENOSYS where the C library lacks the call, EINVAL where the file system lacks the flag."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return errno.ENOSYS
    failed = rename(_AT_FDCWD, os.fsencode(work), _AT_FDCWD, os.fsencode(final), _RENAME_NOREPLACE)
    return ctypes.get_errno() if failed else 0


def _rename_by_claim(work: Path, final: Path) -> int:
    """Claim the name with an empty directory, or a link, which only one process can do."""
    try:
        if work.is_dir():
            final.mkdir()
            work.rename(final)
        else:
            os.link(work, final)
            work.unlink()
    except FileExistsError:
        return errno.EEXIST
    return 0
