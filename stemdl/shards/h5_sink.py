"""A file for HDF5 to write to that never fails in its hands.

HDF5 that meets a full disk keeps the file open with what it could not write, tries again whenever it is asked to close
it and at the end of the process, and crashes there (HDF5 2.0: segmentation fault). So it is told that all went well,
and the first error is raised here, by `check`, to whoever writes.
"""

from __future__ import annotations

import os
from pathlib import Path


class DiskSink:
    """A new file with the methods that h5py's driver for Python objects asks for. Memory is as long as one write."""

    def __init__(self, path: Path) -> None:
        """Make the file, empty. Raises OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._error: OSError | None = None
        self._position = 0

    def check(self) -> None:
        """Raise OSError, with the file's name, where anything could not be written or read; the file is of no use."""
        if self._error is not None:
            raise OSError(self._error.errno, os.strerror(self._error.errno or 0), str(self.path)) from self._error

    def write(self, content: bytes | memoryview) -> int:
        """At the position; after the first error nothing more."""
        num_bytes = len(memoryview(content).cast("B"))
        if self._error is None:
            try:
                left, position = memoryview(content).cast("B"), self._position
                while left:  # a disk that fills up takes a part first
                    done = os.pwrite(self._descriptor, left, position)
                    left, position = left[done:], position + done
            except OSError as error:
                self._error = error
        self._position += num_bytes
        return num_bytes

    def read(self, num_bytes: int) -> bytes:
        """As `readinto`; h5py tells a file by it."""
        content = bytearray(num_bytes)
        self.readinto(memoryview(content))
        return bytes(content)

    def readinto(self, buffer: memoryview) -> int:
        """From the position; what is not there is zeros."""
        view = memoryview(buffer).cast("B")
        try:
            found = os.pread(self._descriptor, len(view), self._position)
        except OSError as error:
            found, self._error = b"", self._error or error
        view[:] = found.ljust(len(view), b"\0")
        self._position += len(view)
        return len(view)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = offset + (os.fstat(self._descriptor).st_size if start is None else start)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Give the file a length: the position if none is said."""
        size = self._position if size is None else size
        if self._error is None:
            try:
                os.ftruncate(self._descriptor, size)
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Make it durable, unless it failed, and close it; a second call does nothing. `check` says how that went."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if self._error is None:
                os.fsync(descriptor)
        except OSError as error:
            self._error = error
        finally:
            os.close(descriptor)
