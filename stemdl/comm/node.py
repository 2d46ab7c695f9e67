"""The ranks of one node, joined by sockets of the operating system: meetings in microseconds, and a shared memory.

A process that is killed closes its socket, and everybody who waits for it knows at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stemdl.comm.errors import CommError

_LENGTH = struct.Struct("<I")
_FINE = b"\0"
_MOST_DESCRIPTORS = 253  # of one message, SCM_MAX_FD of Linux


def can_share() -> bool:
    """This system has what `NodeLink` and its shared memory need (Linux)."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def free_address() -> str:
    """A name for a node's leader to listen at, that nobody else on the node has."""
    return f"\0stemdl-{secrets.token_hex(16)}"


class NodeLink:
    """One rank among those of its node; local rank 0 leads, all others have a socket to it.

    Calls are made by one thread, by all ranks of the node in the same order. Raises CommError where one of the others
    is gone, or has not come within `limit_s`.
    """

    def __init__(
        self, ranks: Sequence[int], local_rank: int, address: str, limit_s: float, listener: socket.socket | None
    ) -> None:
        """ranks: of the job, by local rank. listener: the leader's, from `listen`."""
        self.ranks, self.local_rank = tuple(ranks), local_rank
        self.size = len(ranks)
        self._limit_s = limit_s
        self._peers: list[socket.socket] = []
        try:
            if listener is not None:
                self._peers = _accept(listener, self.size - 1, limit_s)
            else:
                self._peers = [_connect(address, local_rank, limit_s)]
        except (OSError, TimeoutError) as error:
            raise CommError(f"the {self.size} ranks of this node ({ranks[0]}, ...) do not meet: {error}") from error

    @property
    def leads(self) -> bool:
        """This is the node's first rank."""
        return self.local_rank == 0

    def meet(self, purpose: str, payload: bytes = b"", combine: Callable[[list[bytes]], bytes] | None = None) -> bytes:
        """Give a payload, get what the leader's `combine` makes of those of all ranks (by local rank).

        Nobody returns before everybody has called. Without a payload this is a barrier. All ranks come for the same
        purpose, or CommError says on each of them who came for what.
        """
        head = f"{purpose}\n".encode()
        if not self.leads:
            _send(self._peers[0], head + payload, self._who(0))
            answer = _receive(self._peers[0], self._limit_s, self._who(0))
        else:
            parts = [head + payload] + [
                _receive(peer, self._limit_s, self._who(number)) for number, peer in enumerate(self._peers, start=1)
            ]
            answer = self._agreed(head, parts, combine)
            for number, peer in enumerate(self._peers, start=1):
                _send(peer, answer, self._who(number))
        if not answer.startswith(_FINE):
            raise CommError(answer.decode())
        return answer[len(_FINE) :]

    def _agreed(self, head: bytes, parts: list[bytes], combine: Callable[[list[bytes]], bytes] | None) -> bytes:
        for number, part in enumerate(parts):
            if not part.startswith(head):
                other = part.partition(b"\n")[0].decode()
                return f"{self._who(number)} is at {other}, {self._who(0)} at {head.decode().strip()}".encode()
        return _FINE + (combine([part[len(head) :] for part in parts]) if combine is not None else b"")

    def share(self, size_bytes: int) -> list[mmap.mmap]:
        """A new piece of memory of every rank, by local rank, which all of them see. Freed with its last user.

        Raises CommError where there is no memory left.
        """
        self.meet(f"new buffers of {size_bytes} bytes")
        available = available_bytes()
        if size_bytes > available:  # the system would take it from other programs by killing them
            raise CommError(
                f"shared memory of {size_bytes / 2**20:.0f} MiB for this rank's gradients: {available / 2**20:.0f} MiB "
                "are free on this node; fewer ranks on it, or comm.intra_node: off"
            )
        own = os.memfd_create(f"stemdl-{os.getpid()}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(own, 0, size_bytes)  # now, with an error, and not later with a signal
        except OSError as error:
            os.close(own)
            raise CommError(f"shared memory of {size_bytes / 2**20:.0f} MiB: {error.strerror}") from error
        try:
            if self.leads:
                descriptors = [own, *(self._take(number) for number in range(1, self.size))]
                for number in range(1, self.size):
                    self._give(number, descriptors)
            else:
                self._give(0, [own])
                descriptors = self._take_all()
                descriptors[self.local_rank : self.local_rank + 1], replaced = [own], descriptors[self.local_rank]
                os.close(replaced)
        except OSError as error:
            raise CommError(f"shared memory: the ranks of this node do not meet ({error})") from error
        maps = [mmap.mmap(descriptor, size_bytes) for descriptor in descriptors]
        for descriptor in descriptors:
            os.close(descriptor)
        return maps

    def close(self) -> None:
        """Close the sockets."""
        for peer in self._peers:
            peer.close()

    def _who(self, number: int) -> str:
        return f"rank {self.ranks[number]}"

    def _give(self, number: int, descriptors: Sequence[int]) -> None:
        peer = self._peers[number - 1 if self.leads else 0]
        for start in range(0, len(descriptors), _MOST_DESCRIPTORS):
            socket.send_fds(peer, [b"m"], list(descriptors[start : start + _MOST_DESCRIPTORS]))

    def _take(self, number: int) -> int:
        peer = self._peers[number - 1]
        _wait_for(peer, self._limit_s, self._who(number))
        _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
        if not descriptors:
            raise CommError(f"{self._who(number)} is gone")
        return descriptors[0]

    def _take_all(self) -> list[int]:
        found: list[int] = []
        while len(found) < self.size:
            _wait_for(self._peers[0], self._limit_s, self._who(0))
            _, descriptors, _, _ = socket.recv_fds(self._peers[0], 1, _MOST_DESCRIPTORS)
            if not descriptors:
                raise CommError(f"{self._who(0)} is gone")
            found += descriptors
        return found


def available_bytes() -> int:
    """Memory that programs can have without any being pushed out."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def listen(address: str) -> socket.socket:
    """The leader's socket, open before the others are told the address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(1024)
    return listener


def _accept(listener: socket.socket, count: int, limit_s: float) -> list[socket.socket]:
    """The others' sockets, by local rank."""
    by_number: dict[int, socket.socket] = {}
    listener.settimeout(limit_s)
    with contextlib.closing(listener):
        while len(by_number) < count:
            peer, _ = listener.accept()
            by_number[int.from_bytes(_receive(peer, limit_s, "a rank"), "little")] = peer
    return [by_number[number] for number in sorted(by_number)]


def _connect(address: str, local_rank: int, limit_s: float) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + limit_s
    while True:
        try:
            peer.connect(address)
            break
        except BlockingIOError:  # more ranks at once than the listener's queue takes
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    _send(peer, local_rank.to_bytes(4, "little"), "the node's first rank")
    return peer


def _send(peer: socket.socket, payload: bytes, who: str) -> None:
    try:
        peer.sendall(_LENGTH.pack(len(payload)) + payload)
    except OSError as error:
        raise CommError(f"{who} is gone ({error.strerror})") from error


def _receive(peer: socket.socket, limit_s: float, who: str) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(peer, _LENGTH.size, limit_s, who))
    return _exactly(peer, length, limit_s, who) if length else b""


def _exactly(peer: socket.socket, count: int, limit_s: float, who: str) -> bytes:
    data = b""
    while len(data) < count:
        _wait_for(peer, limit_s, who)
        try:
            part = peer.recv(count - len(data))
        except OSError as error:
            raise CommError(f"{who} is gone ({error.strerror})") from error
        if not part:
            raise CommError(f"{who} is gone")
        data += part
    return data


def _wait_for(peer: socket.socket, limit_s: float, who: str) -> None:
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    if not poll.poll(limit_s * 1000):
        raise CommError(f"{who} has not come for {limit_s:g} s")
