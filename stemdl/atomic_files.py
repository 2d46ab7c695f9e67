"""Files that are either whole or absent: used for manifests, checkpoints and small records.

Standard library alone and free of the layers, so that every part may use it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
from pathlib import Path

_log = logging.getLogger(__name__)

TEMPORARY_PREFIX = ".tmp-"
"""Every unfinished file starts with this, and no finished one does."""

# What a file system answers that cannot sync a folder (FUSE, CIFS). It then keeps names safe by itself or not at all.
_CANNOT_SYNC_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a rename outlives a power cut only after this.

    Raises
    ------
    OSError
        The folder is missing or the disk failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
        _log.warning("%s: this file system cannot sync a folder (%s); a power cut may lose names", folder, error)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of a file durable that somebody else wrote and closed. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Hash of a file's content, 64 hexadecimal digits, read in pieces. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def temporary_name(stem: str) -> str:
    """A name for an unfinished file that says which process of which host was writing it."""
    return f"{TEMPORARY_PREFIX}{stem}-{_host()}-{os.getpid()}"


def is_of_dead_process(name: str) -> bool:
    """Say whether a temporary name is that of a process of this host which is not there any more.

    False where that cannot be told: other hosts, other names.
    """
    stem, _, number = name.removesuffix(".h5").rpartition("-")
    if not number.isdecimal() or not stem.endswith(f"-{_host()}"):
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _host() -> str:
    return "".join(c if c.isalnum() or c == "-" else "_" for c in socket.gethostname())


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte: `os.write` may stop early (a signal, or a disk that fills up). Raises OSError."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def replace_atomically(path: Path, content: bytes) -> None:
    """Put `content` under `path`: at any moment, also after a kill or a power cut, the old or the new content is there.

    The temporary file lies in the same folder, since a rename across file systems is a copy. It is removed if anything
    fails; the old content is never removed first.

    Raises
    ------
    OSError
        The folder is missing or read-only, or the disk is full; `path` is then as it was.
    """
    temporary = path.with_name(temporary_name(path.name))
    # No O_EXCL: a file of this name can only be the remains of a dead process that had our number.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)
