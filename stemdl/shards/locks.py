"""Locks that die with their holder: which process may write what in a folder of shards."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
from pathlib import Path

from stemdl.shards.schema import ShardError

_log = logging.getLogger(__name__)

_PROBE_S = 0.2
"""`is_held` takes a lock for microseconds; a writer that starts in them is not to take that for another writer."""

MERGE_LOCK_NAME = ".lock-merge"

_LOCK_NAME = re.compile(r"\.lock-(\d{5,9})")

# Lustre mounted without "flock" and NFS without a lock daemon answer with one of these.
_NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


def lock_descriptor(descriptor: int, path: Path, *, timeout_s: float) -> bool:
    """Take the exclusive `flock` of an open file; it ends when the descriptor is closed, so also by kill -9.

    `flock` and not a POSIX lock: the latter is lost as soon as any other descriptor of the same file is closed in this
    process, which a reader of the manifest does. On NFS the kernel turns one into the other, across hosts.

    Returns
    -------
    bool
        False if this file system has no locks (logged); the caller then relies on what it can do without.

    Raises
    ------
    ShardError
        Another process held the lock for all of `timeout_s` seconds.
    OSError
        Anything else.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                _log.warning("%s: this file system has no file locks (%s)", path, error)
                return False
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() >= deadline:
                raise ShardError(f"{path}: another process holds the lock; waited {timeout_s:g} s for it") from error
        else:
            return True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def lock_name(rank: int) -> str:
    """File name of a rank's lock."""
    return f".lock-{rank:05d}"


def parse_lock_name(name: str) -> int | None:
    """Rank of a lock's file name, None for any other name."""
    match = _LOCK_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def is_held(path: Path) -> bool | None:
    """Say whether a living process holds the lock of this file, whose file is left as it is.

    None where that cannot be told: no locks on this file system, or no right to open the file. A file that is gone is
    not held.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # NFS gives exclusive locks to writers alone
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
    else:
        return False
    finally:
        os.close(descriptor)


class FileLock:
    """A lock file held by this process, and removed when it is given back."""

    def __init__(self, path: Path, refusal: str) -> None:
        """Take the lock, without waiting for another holder to end.

        Raises
        ------
        ShardError
            Another process holds it; the message is `refusal`.
        OSError
            The folder cannot be written.
        """
        self.path = path
        while True:
            # A file object, so that the lock ends even if the owner is only garbage collected.
            stream = self.path.open("ab")
            try:
                locked = lock_descriptor(stream.fileno(), self.path, timeout_s=_PROBE_S)
            except ShardError as error:
                stream.close()
                raise ShardError(refusal) from error
            except BaseException:
                stream.close()
                raise
            if not locked or self._still_named(stream.fileno()):
                self._stream = stream
                return
            stream.close()  # the holder before us removed the file after we had opened it: lock the new one

    def _still_named(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock back and remove its file; a second call does nothing."""
        if not self._stream.closed:
            self.path.unlink(missing_ok=True)  # before closing: afterwards it could be another writer's
            self._stream.close()


class RankLock(FileLock):
    """Says that a writer of this rank is alive in this folder.

    Whoever holds it knows that every temporary file of the rank belongs to a dead process, on whatever host that ran; a
    process number could not say so (numbers come again, and mean nothing on another host). It also catches a launch
    in which every process believes to be rank 0.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        """Take the lock. Raises ShardError where another writer of this rank is alive, OSError as FileLock."""
        super().__init__(
            folder / lock_name(rank),
            f"{folder}: another writer of rank {rank} (or a process forked from it) is alive; "
            "two processes must not have the same rank: is the launcher's rank variable set?",
        )


class MergeLock(FileLock):
    """Says that shards are being merged into this folder."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises ShardError where another merge is at work, OSError as FileLock."""
        super().__init__(folder / MERGE_LOCK_NAME, f"{folder}: another merge into this folder is at work; wait for it")
