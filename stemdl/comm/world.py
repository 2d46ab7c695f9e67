"""The ranks of a job, met and checked: their planes, their nodes, and the watch over them."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from stemdl.comm.alone import Alone, AloneTransport
from stemdl.comm.buffers import FlatGroup
from stemdl.comm.control import Control, CountedControl
from stemdl.comm.counters import Counters
from stemdl.comm.data import Arena, FlatArena, NodeArena, SharedArena
from stemdl.comm.errors import CommError
from stemdl.comm.node import NodeLink, can_share, free_address, listen
from stemdl.comm.node_control import NodeControl
from stemdl.comm.timeline import Timeline
from stemdl.comm.transport.base import Members, Transport
from stemdl.comm.watch import Watch, WatchLimits
from stemdl.comm.watch_server import WatchServer
from stemdl.config.comm import Comm
from stemdl.launch import Topology, check_devices, rendezvous, topology, visible_device, with_hosts

CALL_TIMEOUT_S = 3600.0
"""Limit of a single call of a transport: a last resort, far beyond those of the stall watch, which knows the cause."""

Inside = Literal["shared_memory", "transport", "off"]


@dataclass
class World:
    """One rank's view of the job. `open_world` makes it.

    device: of this rank. inside: how sums are made within a node.
    """

    topology: Topology
    transport: Transport
    control: CountedControl
    counters: Counters
    device: torch.device
    inside: Inside
    link: NodeLink | None = None
    node_members: Members | None = None
    across: Members | None = None
    watch: Watch | None = None
    server: WatchServer | None = None
    timeline: Timeline | None = None
    trace_file: Path | None = None
    _step: int = field(default=0)
    _meetings: dict[str, int] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Of this process in the job."""
        return self.topology.rank

    @property
    def size(self) -> int:
        """Ranks of the job."""
        return self.topology.size

    def arena(self, elements: int, dtype: torch.dtype, device: torch.device) -> Arena:
        """Memory for flat buffers; on all ranks at once."""
        if self.link is not None and device.type == "cpu":
            return SharedArena(self.link, self.across, self.topology.nodes != 1, elements, dtype)
        if self.node_members is not None:
            return NodeArena(self.node_members, self.across, elements, dtype, device)
        return FlatArena(self.transport.everybody, elements, dtype, device)

    def submitted(self, group: FlatGroup) -> None:
        """Tell the watch that this rank waits for a group."""
        if self.watch is not None:
            self.watch.submitted(self._step, group.item.name, [slot.name for slot in group.slots])

    def completed(self, group: FlatGroup) -> None:
        """Tell the watch that it does so no more."""
        if self.watch is not None:
            self.watch.completed(self._step, group.item.name)

    def step_done(self, step: int) -> None:
        """Tell the watch that so many steps are done."""
        self._step = step
        if self.watch is not None:
            self.watch.step_done(step)

    @contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        """In the block this rank waits for all others to come to the same; the watch sees who does not."""
        number = self._meetings[what] = self._meetings.get(what, 0) + 1
        name, step = f"{what!r} ({number})", self._step
        if self.watch is not None:
            self.watch.submitted(step, name)
        yield
        if self.watch is not None:
            self.watch.completed(step, name)

    def busy(self, what: str, allowed_s: float) -> AbstractContextManager[None]:
        """In the block this rank does what others need not, for up to `allowed_s`; they wait without a verdict."""
        return nullcontext() if self.watch is None else self.watch.busy(what, allowed_s)

    def fail(self, reason: str) -> None:
        """This rank cannot go on: every rank ends, with the true cause where the watch knows it."""
        if self.watch is not None:
            self.watch.fail(reason)

    def leave(self) -> None:
        """This rank ends, with an exit code of its own, whether others do or not."""
        if self.watch is not None:
            self.watch.close()

    def close(self) -> None:
        """The orderly end, on all ranks."""
        if self.timeline is not None and self.trace_file is not None:
            self.timeline.write(self.trace_file)
        if self.watch is not None:
            self.watch.close()
        if self.link is not None:
            self.link.close()
        self.transport.close()
        if self.server is not None:
            self.server.close()


def open_world(
    config: Comm,
    *,
    environment: Mapping[str, str] = os.environ,
    node: str | None = None,
    log_folder: Path | None = None,
) -> World:
    """Meet the other ranks that the launcher of this process has started.

    node: this rank's node, where its name is not what tells nodes apart (virtual nodes in tests). log_folder: for the
    watch's log and the timelines.

    Raises
    ------
    CommError
        The ranks do not meet in time, the transport is not to be had, or a node has no memory to share.
    UserError
        The launcher's variables contradict each other, the nodes, or the devices.
    """
    alone = topology(environment)
    if node is not None:
        alone = Topology(alone.launcher, alone.rank, alone.size, None, None, node)
    if alone.size == 1:
        return _single(alone, config)
    transport = _open_transport(config, alone, environment)
    if transport.name == "mpi" and config.compression == "bf16":
        raise CommError("comm.compression: bf16, which MPI cannot add; allowed over mpi: none, fp16")
    counters = Counters()
    flat = CountedControl(transport.control, counters)
    hosts = [part.decode() for part in flat.allgather(alone.node.encode())]
    here = with_hosts(alone, hosts)
    device = _device(config, here, transport, flat)
    inside = _inside(config, here, device)
    world = World(here, transport, flat, counters, device, inside)
    _join_nodes(world, hosts, flat)
    if world.link is not None:
        world.control = CountedControl(
            NodeControl(world.link, _leaders_control(world, hosts), transport.control), counters
        )
    _start_watch(world, config, flat, environment, log_folder)
    if config.timeline:
        world.timeline = Timeline(here.rank)
        world.trace_file = (log_folder or Path()) / f"timeline-rank-{here.rank:05d}.json"
    atexit.register(_end_of_program, world)
    if here.rank == 0:
        sys.stderr.write(f"stemdl: {_described(world)}\n")
    return world


def _end_of_program(world: World) -> None:
    """A program that ends without `close` has left, unless an exception has ended it."""
    if getattr(sys, "last_type", None) is None:
        world.leave()


def _single(alone: Topology, config: Comm) -> World:
    """One process: nothing to meet, nothing to send."""
    counters = Counters()
    control = CountedControl(Alone(), counters)
    device = torch.device("cuda", 0) if config.transport == "nccl" else torch.device("cpu")
    return World(alone, AloneTransport(), control, counters, device, "off")


def _open_transport(config: Comm, here: Topology, environment: Mapping[str, str]) -> Transport:
    """What `comm.transport` asks for; with `auto`, what this job has."""
    name = config.transport
    if name == "auto":
        if torch.cuda.is_available():
            name = "nccl"
        elif config.negotiation != "ddp" and here.launcher.startswith(("mpirun", "mpiexec")):
            name = "mpi"
        else:
            name = "gloo"
    if name == "mpi":
        from stemdl.comm.transport.mpi_transport import MpiTransport

        return MpiTransport(here.rank, here.size, call_timeout_s=CALL_TIMEOUT_S)
    from stemdl.comm.transport.torch_transport import TorchTransport

    if name == "nccl" and not torch.cuda.is_available():
        raise CommError("comm.transport: nccl, but this process sees no GPU; allowed here: gloo, mpi")
    return TorchTransport(
        here.rank,
        here.size,
        _meeting_point(here, environment, config.start_timeout_s),
        backend=name,
        start_timeout_s=config.start_timeout_s,
        call_timeout_s=CALL_TIMEOUT_S,
        in_torchrun=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _meeting_point(here: Topology, environment: Mapping[str, str], timeout_s: float) -> tuple[str, int]:
    """Where rank 0 listens: given, or chosen by rank 0 and told through MPI."""
    found = rendezvous(environment, here)
    if found is not None:
        return found
    if here.launcher.startswith(("mpirun", "mpiexec")):
        from stemdl.comm.transport.mpi_transport import told_by_rank_zero

        return told_by_rank_zero(here.rank, here.size)
    raise CommError(
        f"{here.launcher} started {here.size} ranks, but nothing says where they meet: set MASTER_ADDR (host of rank "
        "0) and MASTER_PORT"
    )


def _device(config: Comm, here: Topology, transport: Transport, control: CountedControl) -> torch.device:
    """This rank's device; with GPUs, each by one rank alone."""
    if transport.name != "nccl":
        return torch.device("cpu")
    assert here.local_rank is not None
    number = visible_device(here.local_rank, torch.cuda.device_count())
    torch.cuda.set_device(number)
    uuid = str(torch.cuda.get_device_properties(number).uuid)
    check_devices([tuple(json.loads(part)) for part in control.allgather(json.dumps([here.node, uuid]).encode())])
    return torch.device("cuda", number)


def _inside(config: Comm, here: Topology, device: torch.device) -> Inside:
    """How sums are made within a node. What is compared with (`per_tensor`, `ddp`) has the transport alone."""
    if config.negotiation in ("per_tensor", "ddp"):
        return "off"
    several = here.nodes is not None and here.size > here.nodes
    if config.intra_node == "auto":
        return "shared_memory" if device.type == "cpu" and several and can_share() else "off"
    if config.intra_node == "shared_memory":
        if device.type != "cpu":
            raise CommError(
                "comm.intra_node: shared_memory is for gradients on CPUs; allowed with GPUs: transport, off"
            )
        if not can_share():
            raise CommError("comm.intra_node: shared_memory needs Linux; allowed here: transport, off")
    return config.intra_node


def _join_nodes(world: World, hosts: list[str], flat: CountedControl) -> None:
    """Links and groups inside nodes and across them, on all ranks at once."""
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    mine = nodes[world.topology.node]
    leaders = [ranks[0] for ranks in nodes.values()]
    if world.inside == "off":
        return
    if world.inside == "transport":
        world.node_members = world.transport.members(list(nodes.values()))
    else:
        leads = world.rank == mine[0]
        address = free_address() if leads else ""
        listener = listen(address) if leads else None
        addresses = flat.allgather(address.encode())
        world.link = NodeLink(mine, mine.index(world.rank), addresses[mine[0]].decode(), CALL_TIMEOUT_S, listener)
    if len(nodes) > 1:
        world.across = world.transport.members([leaders])


def _leaders_control(world: World, hosts: list[str]) -> Control | None:
    """Small messages among the first ranks of the nodes; none with one node."""
    leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
    return world.transport.control_of(leaders) if len(leaders) > 1 else None


def _start_watch(
    world: World, config: Comm, flat: CountedControl, environment: Mapping[str, str], log_folder: Path | None
) -> None:
    """The watch's server on rank 0, and every rank's line to it."""
    limits = WatchLimits(config.stall_warn_s, config.stall_end_s, config.silence_s)
    told = b""
    if world.rank == 0:
        token = secrets.token_hex(16)
        log = None if log_folder is None else log_folder / "watch.jsonl"
        world.server = WatchServer(size=world.size, token=token, limits=limits, log=log)
        host = "127.0.0.1" if world.topology.nodes == 1 else environment.get("MASTER_ADDR") or socket.gethostname()
        told = json.dumps([host, world.server.start()[1], token]).encode()
    host, port, token = json.loads(flat.broadcast(told if world.rank == 0 else None))
    world.watch = Watch(
        rank=world.rank, size=world.size, address=(host, port), token=token, limits=limits, server=world.server
    )


def _described(world: World) -> str:
    """One line for the log: what was chosen."""
    here = world.topology
    inside = {"shared_memory": ", shared memory inside a node", "transport": ", node by node", "off": ""}[world.inside]
    nodes = "1 node" if here.nodes == 1 else f"{here.nodes} nodes"
    return f"{here.size} ranks on {nodes} ({here.launcher}), gradients over {world.transport.name}{inside}"
