"""Checks of what computes: torch's threads, accelerators, bfloat16, FFT speed. torch is imported when they run."""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

from stemdl.doctor.answer import Answer, Line
from stemdl.doctor.machine import GIB, cpu_quota, usable_cores
from stemdl.launch import allowed_cores

FFT_PIXELS = 96  # the quickstart's grid: 24 Å at 0.25 Å
FFT_PROBES = 16
SLOW_FFT_GFLOP_PER_S = 1.0


def check_threads() -> Answer:
    """Threads torch takes by default against the cores there are."""
    import torch

    threads = torch.get_num_threads()
    usable = usable_cores(allowed_cores(), cpu_quota())
    setting = os.environ.get("OMP_NUM_THREADS")
    figures = {"torch_threads": threads, "omp_num_threads": setting, "usable_cores": usable}
    fact = f"torch takes {threads} {'thread' if threads == 1 else 'threads'}"
    if setting:
        fact += f" (OMP_NUM_THREADS={setting})"
    if threads > usable:
        line = Line(
            "warning", fact, f"more than the {usable} usable cores: set OMP_NUM_THREADS={usable} or train.threads"
        )
    elif threads < usable:
        line = Line("note", fact, f"{usable} cores are usable: training sets its own count from train.threads (0: all)")
    else:
        line = Line("ok", fact, "one for each usable core; results agree bit for bit at the same count alone")
    return Answer("threads", figures, [line])


def check_gpus() -> Answer:
    """Accelerators that torch sees, and those it cannot use."""
    import torch

    build = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    gpus = [_describe_gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    figures = {"devices": gpus, "torch_build": build}
    lines = [
        Line(
            "ok",
            f"GPU {gpu['index']}: {gpu['name']}, {gpu['memory_gib']:.0f} GiB, capability {gpu['capability']}",
            "not used by this version: simulation and training run on the CPU",
        )
        for gpu in gpus
    ]
    if not gpus:
        seen = [path for path in ("/dev/nvidia0", "/dev/kfd") if Path(path).exists()]
        if seen or shutil.which("nvidia-smi"):
            fact = (
                f"a GPU seems to be there ({', '.join(seen) or 'nvidia-smi'}), but torch {torch.__version__} sees none"
            )
            lines = [Line("note", fact, "nothing is lost: this version runs on the CPU alone")]
        else:
            lines = [Line("ok", "no GPU", "none is needed: this version runs on the CPU alone")]
    return Answer("gpus", figures, lines)


def check_bf16() -> Answer:
    """Say whether bfloat16 is computed by the processor or emulated, which is 10 to 100 times slower than float32."""
    import torch

    native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    on_gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    fact = f"bfloat16: {'native' if native else 'emulated'} on the CPU" + (", native on the GPU" if on_gpu else "")
    if native or on_gpu:
        line = Line("ok", fact, "not used by this version, which computes in float32")
    else:
        line = Line("note", fact, "not used by this version, which computes in float32")
    return Answer("bf16", {"cpu_native": native, "gpu_native": on_gpu}, [line])


def check_fft(budget_s: float = 1.0) -> Answer:
    """Speed of the transform that multislice spends its time in, on the CPU, where runs compute.

    Counts 5 N log2 N operations for a complex transform of N points (the usual convention).
    """
    import torch

    device = torch.device("cpu")
    waves = torch.ones((FFT_PROBES, FFT_PIXELS, FFT_PIXELS), dtype=torch.complex64, device=device)
    best_s = math.inf
    end = time.perf_counter() + budget_s
    torch.fft.fft2(waves)  # the first call plans
    while time.perf_counter() < end:
        began = time.perf_counter()
        spectrum = torch.fft.fft2(waves)
        best_s = min(best_s, time.perf_counter() - began)
        del spectrum
    points = FFT_PIXELS * FFT_PIXELS
    gflop_per_s = FFT_PROBES * 5 * points * math.log2(points) / best_s / 1e9
    figures: dict[str, Any] = {
        "device": device.type,
        "pixels": FFT_PIXELS,
        "batch": FFT_PROBES,
        "milliseconds": round(best_s * 1e3, 4),
        "gflop_per_s": round(gflop_per_s, 2),
    }
    slice_ms = 2e3 * best_s
    fact = f"FFT on {device.type}: {FFT_PROBES} waves of {FFT_PIXELS}x{FFT_PIXELS} in {best_s * 1e3:.2f} ms"
    fact += f" ({gflop_per_s:.1f} GFLOP/s)"
    if gflop_per_s < SLOW_FFT_GFLOP_PER_S:
        return Answer("fft", figures, [Line("warning", fact, "slow: is the machine busy, or throttled?")])
    return Answer(
        "fft", figures, [Line("ok", fact, f"a slice of {FFT_PROBES} probes takes at least {slice_ms:.2f} ms")]
    )


def _describe_gpu(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": properties.name,
        "memory_gib": round(properties.total_memory / GIB, 1),
        "capability": f"{properties.major}.{properties.minor}",
    }
