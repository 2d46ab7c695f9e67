"""How the stall watch talks: lines of JSON over a socket that never blocks, with bounds on whatever a peer may send."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from stemdl.comm.errors import EXIT_COMM, CommError
from stemdl.comm.watch_verdict import Report, Wait, fingerprint

VERSION = 1
HELLO_MOST_BYTES = 4096
LINE_MOST_BYTES = 2**20
NAME_MOST = 200  # characters
WAITS_MOST = 64
WAITS_USUAL = 1  # as long as none is late, the oldest is enough
TENSORS_MOST = 3
SEEN_MOST = 8192  # groups of a step

_READ_BYTES = 64 * 1024
_UNSENT_MOST_BYTES = 64 * 1024

_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child (a worker that loads data) must not keep the connection open when its parent is killed."""
    for one in list(_OPEN):
        with contextlib.suppress(OSError):
            one.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def not_for_children(one: socket.socket) -> socket.socket:
    """Close a socket in processes that this one forks."""
    _OPEN.add(one)
    return one


class Channel:
    """Lines over a connected socket. Nothing blocks; what the other side does not take waits here, up to a bound.

    limit_bytes: of a line that comes in; may be changed.
    """

    def __init__(self, connected: socket.socket, limit_bytes: int) -> None:
        self.socket = not_for_children(connected)
        self.socket.setblocking(False)
        self.limit_bytes = limit_bytes
        self._in = bytearray()
        self._out = bytearray()

    @property
    def has_unsent(self) -> bool:
        """Something waits for the other side to take it."""
        return bool(self._out)

    def receive(self) -> tuple[list[bytes], bool]:
        """Complete lines, and whether the connection is still open. Raises ValueError for a line over the limit."""
        is_open = True
        try:
            data = self.socket.recv(_READ_BYTES)
            is_open = bool(data)
            self._in += data
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            is_open = False
        *lines, rest = self._in.split(b"\n")
        self._in = rest
        if any(len(line) > self.limit_bytes for line in (*lines, rest)):
            raise ValueError(f"a line of more than {self.limit_bytes} bytes")
        return [bytes(line) for line in lines], is_open

    def put_back(self, lines: Sequence[bytes]) -> None:
        """Have `receive` return lines once more."""
        self._in = bytearray(b"".join(line + b"\n" for line in lines)) + self._in

    def send(self, line: bytes, *, may_drop: bool = False) -> None:
        """Send a line, or as much of it as goes; the rest goes with `flush`.

        may_drop: not worth sending behind others that wait. A peer that takes nothing loses lines beyond a bound.
        """
        if self._out and (may_drop or len(self._out) + len(line) > _UNSENT_MOST_BYTES):
            return
        self._out += line
        self.flush()

    def flush(self) -> None:
        """Send what waits. A connection that is broken is noticed by `receive`."""
        if not self._out:
            return
        try:
            del self._out[: self.socket.send(self._out)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._out.clear()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def encode(kind: str, **content: object) -> bytes:
    """A message as a line."""
    return json.dumps({"t": kind, **content}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """A line as a message. Raises ValueError for anything else."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise ValueError("not a message")
    return message


def short_name(name: str) -> str:
    """A name of bounded length, still different from others."""
    return name if len(name) <= NAME_MOST else f"{name[: NAME_MOST - 9]}~{fingerprint(name):08x}"


def number(message: Mapping[str, Any], name: str, low: float = 0.0, high: float = 1e12) -> float:
    """A finite number of a message. Raises ValueError."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is no number")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}")
    return float(value)


def text(message: Mapping[str, Any], name: str, most: int = NAME_MOST) -> str:
    """A string of a message. Raises ValueError."""
    value = message.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{name} is no text of up to {most} characters")
    return value


def encode_report(report: Report) -> bytes:
    """A report as a line."""
    waits = [[w.step, w.group, w.serial, round(w.age_s, 3), list(w.tensors), w.tensor_count] for w in report.waits]
    seen = None if report.seen is None else [[step, sorted(marks)] for step, marks in report.seen.items()]
    return encode("state", step=report.step, waits=waits, busy=report.busy, excused=report.excused_ago_s, seen=seen)


def report_of(message: Mapping[str, Any]) -> Report:
    """A report out of a message. Raises ValueError where it is not one."""
    try:
        waits = tuple(
            Wait(int(step), str(group), int(serial), float(age_s), tuple(map(str, tensors)), int(tensor_count))
            for step, group, serial, age_s, tensors, tensor_count in message["waits"]
        )
        busy = message["busy"]
        if busy is not None:
            what, for_s, allowed_s = busy
            busy = (str(what), float(for_s), float(allowed_s))
        excused = message["excused"]
        seen = message["seen"]
        if seen is not None:
            seen = {int(step): frozenset(map(int, marks)) for step, marks in seen}
        report = Report(int(message["step"]), waits, busy, None if excused is None else float(excused), seen)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not a report: {error}") from None
    times_s = [*(wait.age_s for wait in waits), *(report.busy or ())[1:], report.excused_ago_s or 0.0]
    if not all(math.isfinite(time_s) for time_s in times_s):
        raise ValueError("a time that is not finite")
    return report


def listen(host: str | None, backlog: int) -> socket.socket:
    """A listening socket at a free port. On all addresses IPv6 takes IPv4 along, where this system has both."""
    if host is None and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is there, but switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0] if host else socket.AF_INET
    return socket.create_server((host or "", 0), family=family, backlog=backlog)


def allow_descriptors(needed: int) -> None:
    """Every connection is an open file, of which a process may often have 1024 unless it asks for more."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise CommError(f"rank 0 needs {needed} open files for the watch, allowed here: {hard}; raise it (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class ProcessEnd:
    """Says once why, and ends this process with EXIT_COMM, whatever its other threads do and whoever calls.

    wait: called before the end, with how long it may take (rank 0 stays until the others have heard).
    """

    def __init__(self, rank: int, grace_s: float, wait: Callable[[float], object] | None = None) -> None:
        self._rank, self._grace_s, self._wait = rank, grace_s, wait
        self._first = threading.Lock()

    def __call__(self, why: str) -> NoReturn:
        """Does not return."""
        while not self._first.acquire(blocking=False):
            time.sleep(60)  # another thread ends this process
        threading.Thread(target=self._at_the_latest, name="stemdl-end", daemon=True).start()
        for stream, line in ((sys.stderr, f"stemdl: rank {self._rank}: {why}\n"), (sys.stdout, "")):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads any more
                stream.write(line)
                stream.flush()
        if self._wait is not None:
            self._wait(self._grace_s)
        os._exit(EXIT_COMM)

    def _at_the_latest(self) -> None:
        """The output may be a pipe that nobody empties, or its lock is held by a thread that hangs."""
        time.sleep(2 * self._grace_s)
        os._exit(EXIT_COMM)
