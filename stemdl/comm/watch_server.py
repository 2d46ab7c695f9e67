"""The stall watch's server on rank 0: one connection to each rank, one thread, which hears, judges and tells."""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn

from stemdl.comm.errors import CommError
from stemdl.comm.watch_verdict import Judge, Verdict, WatchLimits
from stemdl.comm.watch_wire import (
    HELLO_MOST_BYTES,
    LINE_MOST_BYTES,
    VERSION,
    Channel,
    ProcessEnd,
    allow_descriptors,
    decode,
    encode,
    listen,
    not_for_children,
    number,
    report_of,
    text,
)

REASON_MOST = 16 * 1024  # characters
_TICK_S = 0.1
_HELLO_WAIT_S = 10.0
_UNKNOWN_MOST = 64  # more than there are ranks
_ACCEPTED_AT_ONCE = 256
_SPARE_DESCRIPTORS = 512


@dataclass(eq=False)
class _Peer:
    """A connection. rank: None before it has said who it is."""

    channel: Channel
    since_s: float
    rank: int | None = None
    is_written_to: bool = False


class WatchServer:
    """Hears all ranks, concludes who is late or lost, and tells every rank why the job ends.

    token: a secret of this job; whoever does not know it is cut off, and counted in `strangers`. limits: as given; for
    very many ranks they are lengthened. log: file to which warnings and the verdict are appended, a JSON object a line.
    end: ends this process, where this rank's own `Watch` is not there to do it. say: prints a warning. join_s: how long
    a rank may take to come.
    """

    def __init__(
        self,
        *,
        size: int,
        token: str,
        limits: WatchLimits,
        log: Path | None = None,
        end: Callable[[str], NoReturn] | None = None,
        say: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        join_s: float = 30.0,
    ) -> None:
        self.size, self.limits = size, limits.for_size(size)
        self.warnings = self.strangers = 0
        self.verdict: Verdict | None = None
        self.others_gone = threading.Event()
        self.end = end or ProcessEnd(0, self.limits.grace_s, self.others_gone.wait)
        self.own_address: tuple[str, int] | None = None
        self._token, self._log, self._say, self._clock, self._join_s = token, log, say or _say, clock, join_s
        self._log_works = True
        self._period_s = self.limits.sign_period_s(size)
        self._look_every_s = max(_TICK_S, self._period_s / 4)
        self._gap_s = max(2 * _TICK_S, self.limits.silence_s / 4)
        self._turned_s = self._next_look_s = clock()
        self._judge = Judge(size, self.limits, self._turned_s, join_s)
        self._peers: dict[int, _Peer] = {}
        self._unknown: set[_Peer] = set()
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._close_by_s: float | None = None
        self._tell_until_s = 0.0

    # -- for rank 0 ----------------------------------------------------------------------------------------------------

    def start(self, host: str | None = None) -> tuple[str, int]:
        """Listen, in a thread; returns host and port.

        host: an address of this machine; None: all of them, IPv4 and IPv6. Raises CommError where that is not possible,
        or this process may not have so many connections.
        """
        allow_descriptors(self.size + _SPARE_DESCRIPTORS)
        try:
            listener = not_for_children(listen(host, min(self.size + 16, 4096)))
        except OSError as error:
            raise CommError(f"the watch of rank 0 cannot listen on {host or 'any address'}: {error}") from error
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        found, port = listener.getsockname()[:2]
        self.own_address = ("127.0.0.1" if ip_address(found).is_unspecified else found, port)
        self._turned_s = self._next_look_s = self._clock()
        self._judge = Judge(self.size, self.limits, self._turned_s, self._join_s)
        self._thread = threading.Thread(target=self._serve, name="stemdl-watch-server", daemon=True)
        self._thread.start()
        return found, port

    def close(self, wait_s: float | None = None) -> None:
        """The orderly end: wait for the others' goodbye, watching over them meanwhile, and tell those left to go on.

        wait_s: how long at most; by default as long as a stall may take.
        """
        if self._thread is None:
            return
        wait_s = self.limits.stall_end_s + self.limits.grace_s if wait_s is None else wait_s
        self._close_by_s = self._clock() + wait_s
        self._thread.join(wait_s + 2 * self.limits.grace_s)
        self._thread = None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_done():
                self._turn()
            if self.verdict is None:
                self._tell_all(encode("bye"))
        except Exception as error:
            self._tell_all(encode("end", reason=f"the stall watch on rank 0 failed: {error!r}"))
            raise
        finally:
            self.others_gone.set()
            for key in list(self._selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
            self._selector.close()

    def _is_done(self) -> bool:
        if self._close_by_s is None:
            return False
        if self.verdict is not None:
            return self.others_gone.is_set()
        are_gone = all(state.presence in ("left", "ended") for state in self._judge.ranks[1:])
        return are_gone or self._clock() >= self._close_by_s

    def _turn(self) -> None:
        """Hear whoever has spoken, then judge."""
        events = self._selector.select(_TICK_S)
        now_s = self._clock()
        gap_s = now_s - self._turned_s - _TICK_S
        if gap_s > self._gap_s:  # this process was stopped, or the machine: it has heard nobody, and nobody is to blame
            self._judge.paused(gap_s)
        self._turned_s = now_s
        for key, mask in events:
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj, now_s)
                continue
            if mask & selectors.EVENT_WRITE:
                key.data.channel.flush()
                self._mind(key.data)
            if mask & selectors.EVENT_READ:
                self._hear(key.data, now_s)
        self._look(now_s)

    def _accept(self, listener: socket.socket, now_s: float) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connected, _ = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                return  # nobody more, or gone again
            if len(self._unknown) >= self.size + _UNKNOWN_MOST:
                self.strangers += 1
                connected.close()
                continue
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = _Peer(Channel(connected, HELLO_MOST_BYTES), now_s)
            self._unknown.add(peer)
            self._selector.register(connected, selectors.EVENT_READ, peer)

    def _hear(self, peer: _Peer, now_s: float) -> None:
        try:
            lines, is_open = peer.channel.receive()
            for line in lines:
                if not self._understand(peer, decode(line), now_s):
                    return
        except ValueError as error:
            if peer.rank is not None:
                reason = f"its watch sent what this one does not understand ({error}): another version of stemdl?"
                self._judge.failed(peer.rank, reason, 0.0, now_s)
            self._drop(peer, now_s)
            return
        if not is_open:
            self._drop(peer, now_s)

    def _understand(self, peer: _Peer, message: dict[str, Any], now_s: float) -> bool:
        """Take in a message; False where its sender is gone by now. Raises ValueError for what it does not know."""
        kind, rank = message["t"], peer.rank
        if rank is None:
            return self._greet(peer, message, now_s)
        if kind == "same":
            self._judge.heard(rank, now_s)
        elif kind == "state":
            self._judge.reported(rank, report_of(message), now_s)
        elif kind == "fail":
            wait_s = number(message, "wait_s", high=60.0)
            reason, is_own = text(message, "reason", REASON_MOST), message.get("is_own") is not False
            self._judge.failed(rank, reason, wait_s, now_s, is_own=is_own)
            return True
        elif kind == "bye":
            self._judge.left(rank)
            self._drop(peer, now_s)
            return False
        else:
            raise ValueError(f"message {kind!r}")
        self._send(peer, _answer(self._judge.wants_detail, self.warnings), may_drop=True)
        return True

    def _greet(self, peer: _Peer, hello: dict[str, Any], now_s: float) -> bool:
        """Let a rank in. Raises ValueError for a stranger, who is not answered."""
        if hello["t"] != "hello" or not hmac.compare_digest(text(hello, "token").encode(), self._token.encode()):
            raise ValueError("a stranger")
        rank, host = int(number(hello, "rank")), text(hello, "host")
        pid = int(number(hello, "pid"))
        refusal = self._refusal(hello, rank)
        self._unknown.discard(peer)
        if refusal:
            peer.channel.send(encode("refused", reason=refusal))
            self._forget(peer)
            return False
        peer.rank, peer.channel.limit_bytes = rank, LINE_MOST_BYTES
        self._peers[rank] = peer
        self._judge.joined(rank, host, pid, now_s)
        self._send(peer, encode("welcome", host=socket.gethostname(), pid=os.getpid()))
        if self.verdict is not None:
            self._send(peer, encode("end", reason=self.verdict.text))
        return True

    def _refusal(self, hello: dict[str, Any], rank: int) -> str:
        if number(hello, "v") != VERSION:
            return "another version of stemdl runs on rank 0"
        if number(hello, "size") != self.size or rank >= self.size:
            return f"rank {rank} of {hello['size']}, but rank 0 is one of {self.size}"
        state = self._judge.ranks[rank]
        if state.presence != "absent":
            return f"rank {rank} is there already ({state.host}, pid {state.pid})"
        return ""

    def _look(self, now_s: float) -> None:
        """Judge; where a verdict has fallen, see whether all have heard it."""
        if self.verdict is None:
            verdict = self._judge.quick(now_s)
            if verdict is None and now_s >= self._next_look_s:
                self._next_look_s = now_s + self._look_every_s
                verdict, warning = self._judge.thorough(now_s)
                if warning is not None:
                    self.warnings += 1
                    self._note("warning", warning)
                    self._say(f"warning: {warning.text}")
                for peer in [peer for peer in self._unknown if now_s > peer.since_s + _HELLO_WAIT_S]:
                    self._drop(peer, now_s)
            if verdict is not None:
                self.verdict = verdict
                self._note("verdict", verdict)
                self._tell_until_s = now_s + self.limits.grace_s
                self._tell_all(encode("end", reason=verdict.text))
        elif not self.others_gone.is_set() and (self._peers.keys() <= {0} or now_s >= self._tell_until_s):
            self.others_gone.set()
            if 0 not in self._peers:
                self.end(self.verdict.text)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _tell_all(self, line: bytes) -> None:
        for peer in self._peers.values():
            self._send(peer, line)

    def _send(self, peer: _Peer, line: bytes, *, may_drop: bool = False) -> None:
        peer.channel.send(line, may_drop=may_drop)
        self._mind(peer)

    def _mind(self, peer: _Peer) -> None:
        """Wait for a peer to take what is unsent, where something is."""
        if peer.channel.has_unsent != peer.is_written_to:
            peer.is_written_to = peer.channel.has_unsent
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.is_written_to else 0)
            self._selector.modify(peer.channel.socket, mask, peer)

    def _drop(self, peer: _Peer, now_s: float) -> None:
        """A connection is over."""
        if peer.rank is None:
            self.strangers += 1
        else:
            self._judge.closed(peer.rank, now_s)
            del self._peers[peer.rank]
        self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        self._unknown.discard(peer)
        self._selector.unregister(peer.channel.socket)
        peer.channel.close()

    def _note(self, event: str, found: Verdict) -> None:
        """Append to the log. One that cannot be written is told once, and the watch goes on."""
        if self._log is None or not self._log_works:
            return
        entry = {"time": datetime.now(UTC).isoformat(), "event": event, **vars(found)}
        try:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            self._log_works = False
            self._say(f"warning: the watch's log {self._log} cannot be written: {error.strerror}")


@lru_cache(maxsize=2)
def _answer(detail: bool, warnings: int) -> bytes:
    return encode("ok", detail=detail, warnings=warnings)


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        sys.stderr.write(f"stemdl: rank 0: {line}\n")
        sys.stderr.flush()
