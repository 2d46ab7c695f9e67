"""The sentences of the stall watch: which rank, where it runs, at which group, for how long, slow or dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stemdl.comm.items import shortened

if TYPE_CHECKING:
    from stemdl.comm.watch_verdict import Judge, Stall

_RANKS_NAMED = 3
_TENSORS_NAMED = 3
_REASON_MOST = 4000  # characters
LOST = "stopped, or its node or network is gone"


def seconds(time_s: float) -> str:
    """12 s, or 3.4 s."""
    return f"{time_s:.0f} s" if time_s >= 9.95 else f"{time_s:.1f} s"


def place(rank: int, host: str, pid: int) -> str:
    """A rank, and the process to look for."""
    return f"rank {rank} ({host}, pid {pid})" if host else f"rank {rank}"


def ended_itself(who: str) -> str:
    """A process is gone."""
    return f"{who}: its process ended"


def no_sign(who: str, silence_s: float) -> str:
    """A process may be gone."""
    return f"{who}: no sign of life for {seconds(silence_s)} ({LOST})"


def ended(judge: Judge, ranks: Sequence[int]) -> str:
    """Connections that closed without a goodbye."""
    text = ended_itself(_first(judge, ranks))
    return text if len(ranks) == 1 else text.replace("its process", "their processes")


def silent(judge: Judge, ranks: Sequence[int], now_s: float) -> str:
    """Ranks that say nothing."""
    silence_s = max(now_s - judge.ranks[rank].heard_s for rank in ranks)
    text = no_sign(_first(judge, ranks), silence_s)
    others = sum(state.presence == "here" for state in judge.ranks) - 1
    if len(ranks) > 1 and len(ranks) >= others:
        text += f"; so many at once ({len(ranks)} of {len(judge.ranks)}): perhaps it is the network of rank 0's node"
    return text


def absent(ranks: Sequence[int], join_s: float) -> str:
    """Ranks that never came."""
    names = shortened([str(rank) for rank in ranks])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {names}: has not joined the watch within {seconds(join_s)}"


def failed(judge: Judge, rank: int) -> str:
    """What a rank says why it cannot go on."""
    reason = judge.failures[rank].reason
    if len(reason) > _REASON_MOST:
        reason = reason[:_REASON_MOST] + " ..."
    if not judge.failures[rank].is_own:
        return reason
    others = len(judge.failures) - 1
    after = f" (after it {_count(others, 'other rank')} failed too)" if others else ""
    return f"{_who(judge, rank)} failed: {reason}{after}"


def stalled(judge: Judge, stall: Stall, others: int, now_s: float, *, is_end: bool) -> str:
    """A group that is waited for. others: groups that are so, too."""
    step, group = stall.key
    tensors, count = judge.tensors_of(stall.key)
    name = group if group.startswith("group ") else f"group {group!r}"
    what = f"{name} of step {step}{_tensors(tensors, count)}"
    ranks = shortened([str(rank) for rank in stall.waiting])
    waiting = f"{len(stall.waiting)} of {len(judge.ranks)} ranks ({ranks})"
    verb = "waits" if len(stall.waiting) == 1 else "wait"
    also = f"; {_count(others, 'other group')} wait{'s' if others == 1 else ''} too" if others else ""
    limit = f"limit {seconds(judge.limits.stall_end_s)}"
    end = limit if is_end else f"the job ends at {seconds(judge.limits.stall_end_s)}"
    if not stall.missing:
        return (
            f"{what}: {waiting} {verb} for its sum for {seconds(stall.age_s)} ({end}), and all ranks have "
            f"submitted it: the exchange itself hangs{also}. Likely the network, or {_quiet_ones(judge, now_s)}"
        )
    missing = "; ".join(_doing(judge, rank, now_s) for rank in stall.missing[:_RANKS_NAMED])
    more = len(stall.missing) - _RANKS_NAMED
    missing += f"; and {more} more" if more > 0 else ""
    return (
        f"{what}: {waiting} {verb} for {seconds(stall.age_s)} ({end}) for {missing}{also}{_likely(judge, stall, now_s)}"
    )


def _who(judge: Judge, rank: int) -> str:
    state = judge.ranks[rank]
    return place(rank, state.host, state.pid)


def _first(judge: Judge, ranks: Sequence[int]) -> str:
    named = ", ".join(_who(judge, rank) for rank in ranks[:_RANKS_NAMED])
    more = len(ranks) - _RANKS_NAMED
    return named + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tensors(tensors: Sequence[str], count: int) -> str:
    if not count:
        return ""
    more = count - len(tensors[:_TENSORS_NAMED])
    return f" ({', '.join(tensors[:_TENSORS_NAMED])}{f' ... and {more} more' if more > 0 else ''})"


def _is_quiet(judge: Judge, rank: int, now_s: float) -> bool:
    """Fewer signs of life than there should be; not yet silent."""
    few_s = max(3 * judge.limits.sign_period_s(len(judge.ranks)), judge.limits.silence_s / 4)
    return now_s - judge.ranks[rank].heard_s > few_s


def _quiet_ones(judge: Judge, now_s: float) -> str:
    quiet = [r for r in range(len(judge.ranks)) if judge.ranks[r].presence == "here" and _is_quiet(judge, r, now_s)]
    if not quiet:
        return "a collective of the transport that ranks have called in different order"
    return no_sign(_first(judge, quiet), max(now_s - judge.ranks[rank].heard_s for rank in quiet))


def _doing(judge: Judge, rank: int, now_s: float) -> str:
    """A rank that is missing, and what it does instead."""
    state, who = judge.ranks[rank], _who(judge, rank)
    if state.presence == "absent":
        return f"{who}, which has not joined the watch"
    if state.presence == "left":
        return f"{who}, which has ended its work in good order"
    if _is_quiet(judge, rank, now_s):
        return no_sign(who, now_s - state.heard_s)
    where = f"{who}: alive, in step {state.step}"
    if state.busy is not None:
        what, since_s, allowed_s = state.busy
        return f"{where}, busy with {what!r} for {seconds(now_s - since_s)} ({seconds(allowed_s)} allowed)"
    if state.waiting:
        (step, group), one = min(state.waiting.items(), key=lambda item: item[1].since_s)
        of = f" of step {step}" if step != state.step else ""
        return f"{where}, waits itself for {group}{of} for {seconds(now_s - one.since_s)}"
    return f"{where}, computing"


def _likely(judge: Judge, stall: Stall, now_s: float) -> str:
    """The usual cause of what is seen."""
    states = [judge.ranks[rank] for rank in stall.missing]
    here = [state for rank, state in zip(stall.missing, states, strict=True) if not _is_quiet(judge, rank, now_s)]
    if any(state.presence == "left" or state.step != stall.key[0] for state in states):
        return ". Likely different numbers of batches"
    if any(state.waiting for state in here):
        return ". Likely a branch that depends on the rank, so that ranks use different parameters"
    if any(state.presence == "here" and state.busy is None for state in here):
        return ". Likely a slow rank, or a branch that depends on the rank"
    return ""
