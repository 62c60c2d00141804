"""Scratch folders beside a target, and publishing out of them: whole or not at all, never over anything."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vflash_ports.errors import DeliveryError, MediaError

PREFIX = ".vflash-scratch-"
OWNER = "owner"
NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
AT_FDCWD = -100
RENAME_NOREPLACE = 1


def check_target(
    path: Path, suffix: str, *, what: str = "output", taken: str = ": choose another name or move it away"
) -> None:
    """`MediaError` unless `path` could be published now: right suffix, folder there and writable, nothing at `path`.

    `taken` ends the sentence that `what` exists already."""
    if suffix and path.suffix.lower() != suffix:
        raise MediaError(f"output {path} must end in {suffix}")
    if os.path.lexists(path):
        raise MediaError(f"{what} {path} exists already{taken}")
    if not path.parent.is_dir():
        raise MediaError(f"output folder {path.parent} does not exist: create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise MediaError(f"output folder {path.parent} is not writable: choose another, or change its permissions")
    _scratch_folder(path).rmdir()  # what permissions do not tell: some folders take nothing new, whoever asks


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """A private folder on the target's file system, removed at the end.

    It holds a locked file while its owner lives; one whose owner was killed is swept by the next run in that folder.
    """
    sweep_abandoned(target.parent)
    folder = _scratch_folder(target)
    try:
        with (folder / "owner.new").open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            (folder / "owner.new").rename(folder / OWNER)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scratch_folder(target: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=target.parent.absolute()))
    except OSError as error:
        raise MediaError(f"output folder {target.parent} cannot be written: {error.strerror}") from error


def sweep_abandoned(folder: Path) -> None:
    """Remove scratch folders whose owner is gone. A folder without its lock file is left alone: it may be starting."""
    for owner in folder.glob(f"{PREFIX}*/{OWNER}"):
        try:
            with owner.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
        except OSError:
            continue  # alive, or another run swept it first


def publish(finished: Path, target: Path) -> None:
    """Make `finished` (a file in the same file system) appear at `target`, durable, or raise and change nothing there.

    A hard link or, where the file system has none, a no-replace rename: both refuse whatever stands at `target`.
    """
    sync(finished)
    try:
        os.link(finished, target)
    except FileExistsError:
        raise MediaError(f"output {target} appeared while the clip was made and is kept as it is") from None
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise DeliveryError(f"output {target} cannot be published: {error.strerror}") from error
        rename_no_replace(finished, target)
    _sync_entry(target)


def publish_folder(finished: Path, target: Path) -> None:
    """As `publish`, for a folder, whose files are synced already."""
    sync(finished)
    rename_no_replace(finished, target)
    _sync_entry(target)


def rename_no_replace(source: Path, target: Path) -> None:
    """Linux renameat2 with RENAME_NOREPLACE, for files and folders."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 is None:
        raise DeliveryError(f"the file system of {target} has no hard links and this system no no-replace rename")
    if renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), RENAME_NOREPLACE) != 0:
        code = ctypes.get_errno()
        if code == errno.EEXIST:
            raise MediaError(f"output {target} appeared while the clip was made and is kept as it is")
        raise DeliveryError(f"output {target} cannot be published: {os.strerror(code)}")


def _sync_entry(target: Path) -> None:
    try:
        sync(target.parent)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOTSUP}:
            return  # this file system syncs no folders: nothing more can be done for the entry
        raise DeliveryError(
            f"output {target} is there and whole, but its folder could not be synced: {error.strerror}"
        ) from error


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
