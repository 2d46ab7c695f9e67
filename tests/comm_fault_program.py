"""What each rank of the fault tests runs: a training in which one rank misbehaves at a step.

    python -m tests.comm_fault_program FAULT RANK MODE

FAULT: none, kill, stop, delay, never, shape (from the start), dtype (in a step), error (an exception of the user's),
early_end, busy (long, but announced). Prints a line when it happens.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from stemdl.comm.reducer import GradientReducer
from stemdl.comm.world import open_world
from stemdl.config.comm import Comm

STEPS, AT = 30, 12
"""Late enough that `planned` has fixed its order."""
STALL_END_S = 12.0
LIMITS = {"stall_warn_s": 3.0, "stall_end_s": STALL_END_S, "silence_s": 12.0, "start_timeout_s": 60.0}


def misbehave(fault: str, reducer: GradientReducer, net: nn.Module) -> None:
    """The fault, on the rank that has it, before its forward pass."""
    print(f"now: {fault}", flush=True)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "delay":
        time.sleep(3 * STALL_END_S)
    elif fault == "never":
        while True:
            time.sleep(1.0)
    elif fault == "dtype":
        net.double()
    elif fault == "error":
        raise ValueError("the user's own fault")
    elif fault == "busy":
        with reducer.busy("validation", 60.0):
            time.sleep(1.5 * STALL_END_S)


def main() -> None:
    """See the module."""
    fault, faulty, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    config = Comm(negotiation=mode, first_group_mib=0.001, group_mib=0.002, **LIMITS)  # type: ignore[arg-type]
    world = open_world(config)
    is_faulty = world.rank == faulty
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 33 if fault == "shape" and is_faulty else 32))
    with GradientReducer(net, config, world=world) as reducer:
        for step in range(STEPS):
            if step == AT and is_faulty and fault not in ("none", "shape"):
                if fault == "early_end":
                    print("now: early_end", flush=True)
                    break
                misbehave(fault, reducer, net)
            x = torch.randn(4, 8, dtype=next(net.parameters()).dtype)
            torch.autograd.backward(functional.mse_loss(net(x), torch.zeros(4, 32, dtype=x.dtype)))
            reducer.finish()
            net.zero_grad()
    world.close()
    print("done", flush=True)


if __name__ == "__main__":
    from stemdl.comm.errors import CommError

    try:
        main()
    except CommError as problem:
        print(f"stemdl: {problem}", file=sys.stderr, flush=True)
        sys.exit(76)
