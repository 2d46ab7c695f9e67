"""Where the ranks are: nodes, the meeting point of all ranks, which device a rank uses; all from what is given."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stemdl.errors import UserError

SINGLE_PROCESS = "single process"
FLUX = "flux run"
SRUN = "srun (Slurm)"

# Linux gives ports from 32768 on to any program that asks for one: a port chosen in advance has to lie below.
FIRST_PORT = 20000
PORTS = 12000
# Jobs that follow one another have other ports than a restart of one of them.
_PORTS_PER_JOB = 31

# The batch and login hosts that LSF puts before the compute hosts.
_NO_COMPUTE_HOST = re.compile("batch|login")
_LSF_LISTS = ("LSB_MCPU_HOSTS", "LSB_HOSTS")
_LISTED = 8
"""So many ranks, devices or hosts does a message name; of thousands it says how many more there are."""


@dataclass(frozen=True)
class Topology:
    """This process among the ranks.

    Attributes
    ----------
    launcher : str
        Who started the ranks, or "single process".
    rank, size : int
        This process's number, from 0, and how many there are.
    local_rank, local_size : int or None
        The same among the ranks of this node; None where the launcher does not say: `with_hosts` fills them.
    node : str
        Name of this node.
    node_index, nodes : int or None
        This node's number, in the order of its lowest rank, and how many nodes there are; None before `with_hosts`.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    node: str
    node_index: int | None = None
    nodes: int | None = None


def with_hosts(topology: Topology, hosts: Sequence[str]) -> Topology:
    """`topology` with all that the node names of all ranks say; `hosts[r]` is `Topology.node` of rank r.

    Raises
    ------
    UserError
        The names contradict the launcher: another number of ranks, this rank on another node, another local rank or
        size than announced.
    """
    if len(hosts) != topology.size:
        raise UserError(
            f"{topology.launcher} announced {topology.size} ranks, found {len(hosts)} that answer: are this MPI and "
            "this launcher made for one another?"
        )
    there = hosts[topology.rank]
    if there != topology.node:
        raise UserError(
            f"{topology.launcher} says that rank {topology.rank} is this process on {topology.node}, but the rank "
            f"{topology.rank} that answers is on {there}: the ranks are numbered in two ways; start with one launcher"
        )
    here = [rank for rank, host in enumerate(hosts) if host == there]
    names = list(dict.fromkeys(hosts))
    local_rank, local_size = here.index(topology.rank), len(here)
    for what, announced, found in (
        ("local rank", topology.local_rank, local_rank),
        ("local size", topology.local_size, local_size),
    ):
        if announced is not None and announced != found:
            raise UserError(
                f"{topology.launcher} gave rank {topology.rank} the {what} {announced}, but by the names of all nodes "
                f"it is {found}: {there} has {_ranks(here)}. Has each node a name of its own, is there one launcher?"
            )
    return replace(
        topology, local_rank=local_rank, local_size=local_size, node_index=names.index(there), nodes=len(names)
    )


def rendezvous(environment: Mapping[str, str], topology: Topology) -> tuple[str, int] | None:
    """Host and port where rank 0 waits for the others; None where the environment says none.

    MASTER_ADDR and MASTER_PORT count first. Else, for several ranks, Slurm's or LSF's first host, and a port below
    those that Linux gives out, made of the job's number and, in Slurm, of how often it was restarted: the ranks of a
    restarted job never meet those of its first run. With None, rank 0 takes a free port and tells it (through MPI).

    Raises
    ------
    UserError
        MASTER_ADDR without MASTER_PORT or the reverse; no port; a list of hosts or a job number that cannot be read; in
        an srun, rank 0 on another host than the first.
    """
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if address and port:
        return address, whole_number("MASTER_PORT", port, lowest=1, highest=65535)
    if address or port:
        given, missing = ("MASTER_ADDR", "MASTER_PORT") if address else ("MASTER_PORT", "MASTER_ADDR")
        raise UserError(f"found {given}={address or port} without {missing}: give both, or none of them")
    # Flux gives the nodes of a Slurm job to jobs of its own: rank 0 may be on any of them.
    if topology.size == 1 or topology.launcher == FLUX:
        return None
    return _slurm_rendezvous(environment, topology) or _lsf_rendezvous(environment)


def _slurm_rendezvous(environment: Mapping[str, str], topology: Topology) -> tuple[str, int] | None:
    # A step may use some of the job's nodes; outside of a step the variable would be one of another program's step.
    lists = ("SLURM_STEP_NODELIST",) if topology.launcher == SRUN else ()
    name = next((name for name in (*lists, "SLURM_JOB_NODELIST") if environment.get(name)), None)
    if name is None:
        return None
    if not environment.get("SLURM_JOB_ID"):
        raise UserError(f"found {name} without SLURM_JOB_ID, which gives the port: set MASTER_ADDR and MASTER_PORT")
    first = slurm_hosts(environment[name], name)[0]
    here = environment.get("SLURMD_NODENAME", first)
    if topology.launcher == SRUN and topology.rank == 0 and here != first:
        raise UserError(
            f"rank 0 is on {here}, but the first host of {name}={environment[name]} is {first}, where the other ranks "
            "look for it: set MASTER_ADDR and MASTER_PORT, or leave the order of the tasks to srun"
        )
    job = whole_number("SLURM_JOB_ID", environment["SLURM_JOB_ID"])
    restarts = whole_number("SLURM_RESTART_COUNT", environment.get("SLURM_RESTART_COUNT") or "0")
    return first, FIRST_PORT + (job * _PORTS_PER_JOB + restarts) % PORTS


def _lsf_rendezvous(environment: Mapping[str, str]) -> tuple[str, int] | None:
    listed = _lsf_hosts(environment)
    if listed is None:
        return None
    name, hosts = listed
    if not environment.get("LSB_JOBID"):
        raise UserError(f"found {name} without LSB_JOBID, which gives the port: set MASTER_ADDR and MASTER_PORT")
    first = next((host for host in hosts if not _NO_COMPUTE_HOST.search(host.partition(".")[0])), None)
    if first is None:
        shown = ", ".join(dict.fromkeys(hosts)) or "no host"
        raise UserError(f"{name}: found {shown}, no compute host: set MASTER_ADDR and MASTER_PORT")
    return first, FIRST_PORT + whole_number("LSB_JOBID", environment["LSB_JOBID"]) % PORTS


def _lsf_hosts(environment: Mapping[str, str]) -> tuple[str, list[str]] | None:
    """Where LSF lists the hosts of the job, and the hosts, first to last: a file, "host n host n" or "host host"."""
    lists = [name for name in _LSF_LISTS if environment.get(name)]
    file = environment.get("LSB_DJOB_HOSTFILE", "")
    # The file need not be on a disk that the compute hosts see; the lists say the same, but are left out in big jobs.
    if file and (os.access(file, os.R_OK) or not lists):
        try:
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as problem:
            raise UserError(
                f"LSB_DJOB_HOSTFILE={file}: {problem.strerror}: set MASTER_ADDR and MASTER_PORT"
            ) from problem
        return f"LSB_DJOB_HOSTFILE={file}", [line.split()[0] for line in lines if line.strip()]
    if not lists:
        return None
    return lists[0], [word for word in environment[lists[0]].split() if not word.isdecimal()]


def slurm_hosts(nodelist: str, source: str = "SLURM_JOB_NODELIST") -> list[str]:
    """The hosts of Slurm's short form, in its order: "node[01-02,7],x5" is node01, node02, node7, x5.

    As `scontrol show hostnames` lists them, which containers often lack. Raises UserError, which names `source`, for
    what is no such list.
    """
    # Commas inside of brackets part ranges, those outside part hosts.
    words = re.split(r",(?![^\[]*\])", nodelist.strip())
    return [host for word in words for host in _word_hosts(word, nodelist, source)]


def _word_hosts(word: str, nodelist: str, source: str) -> list[str]:
    """The hosts of one word, which may have several brackets; the last one counts fastest."""
    parts = re.split(r"\[([^\[\]]*)\]", word)
    if not word or any(set("[], ") & set(part) for part in parts[::2]):
        raise _no_host_list(nodelist, source)
    choices = [_numbers(part, nodelist, source) if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _numbers(ranges: str, nodelist: str, source: str) -> list[str]:
    """The numbers of "01-03,7" as text: 01, 02, 03, 7; the width of a range's first number is that of all."""
    numbers = []
    for word in ranges.split(","):
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", word)
        if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
            raise _no_host_list(nodelist, source)
        first, last = found[1], found[2] or found[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _no_host_list(nodelist: str, source: str) -> UserError:
    return UserError(f"{source}: found {nodelist!r}, allowed a list of hosts such as node[01-03,7],x5")


def visible_device(local_rank: int, visible: int) -> int:
    """The device of this rank among the `visible` ones of this process.

    A launcher that binds devices (srun --gpus-per-task=1) shows each rank its own as number 0; else a node's ranks see
    all of the node's devices. Two ranks that share one in spite of that are found by `check_devices`.

    Raises
    ------
    UserError
        No device, or fewer than this local rank needs.
    """
    assert local_rank >= 0
    if visible == 1:
        return 0
    if local_rank < visible:
        return local_rank
    raise UserError(
        f"local rank {local_rank}: found {visible or 'no'} visible devices, allowed one of its own, or {local_rank + 1}"
        " or more: start no more ranks on a node than it has devices (in Slurm: --ntasks-per-node=N --gpus-per-node=N)"
    )


def check_devices(hosts_and_uuids: Sequence[tuple[str, str]]) -> None:
    """Raise UserError where ranks share a device; entry r is the node of rank r and the UUID of its device."""
    users: dict[tuple[str, str], list[int]] = {}
    for rank, device in enumerate(hosts_and_uuids):
        users.setdefault(device, []).append(rank)
    shared = [f"{uuid} of {host} by {_ranks(ranks)}" for (host, uuid), ranks in users.items() if len(ranks) > 1]
    if shared:
        more = f"; {len(shared) - _LISTED} more devices" if len(shared) > _LISTED else ""
        raise UserError(
            f"found devices used by several ranks, allowed one rank for each: {'; '.join(shared[:_LISTED])}{more} (in "
            "Slurm: --ntasks-per-node=N --gpus-per-node=N --gpu-bind=none)"
        )


def whole_number(name: str, text: str, *, lowest: int = 0, highest: int | None = None) -> int:
    """The number in the variable `name`. Raises UserError for what is none, or is out of its bounds."""
    number = int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text) else None
    if number is None or number < lowest or (highest is not None and number > highest):
        bounds = f"from {lowest} to {highest}" if highest is not None else f"{lowest} or more"
        raise UserError(f"{name}: found {text!r}, allowed a whole number, {bounds}")
    return number


def _ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_LISTED]))}{more}"
