"""Checks of Python, processor and memory, with the limits that a container or a batch system sets."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from stemdl.doctor.answer import Answer, Line
from stemdl.launch import allowed_cores
from stemdl.versions import installed_versions

GIB = 1024**3
MEMORY_NEEDED_GIB = 4.0
"""What the quickstart is held to."""

_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes a huge number for "none"


def check_python() -> Answer:
    """Versions of Python and of the packages that results depend on."""
    versions = installed_versions()
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "numpy", "h5py", "abtem") if name in versions)
    missing = [name for name in ("torch", "numpy", "h5py", "abtem", "ase") if name not in versions]
    lines = [Line("ok", f"Python {versions['python']}, {packages}", "every run saves these in versions.json")]
    if missing:
        lines.append(Line("warning", f"not installed: {', '.join(missing)}", "run `make install`"))
    return Answer("python", {"executable": sys.executable, "versions": versions}, lines)


def check_cpu(root: Path = Path("/")) -> Answer:
    """Cores of the machine and those this process may use: affinity and cgroup quota."""
    cores = os.cpu_count() or 1
    affinity = allowed_cores()
    quota = cpu_quota(root)
    usable = usable_cores(affinity, quota)
    load = os.getloadavg()[0]
    figures = {
        "model": cpu_model(root),
        "cores": cores,
        "affinity_cores": affinity,
        "quota_cores": quota,
        "usable_cores": usable,
        "load_average": round(load, 2),
    }
    fact = f"{figures['model']}, {usable} of {cores} cores usable"
    if usable < cores:
        reason = "a cgroup's quota" if quota is not None and quota < affinity else "the process's CPU set"
        follows = f"{reason} sets the limit; one process simulates on each of the {usable}"
    else:
        follows = f"{usable} {'process simulates' if usable == 1 else 'processes simulate'} at once, one thread each"
    lines = [Line("ok", fact, follows)]
    if load > 1.5 * cores:
        lines.append(Line("note", f"load average {load:.1f} on {cores} cores", "busy: times measured now are too long"))
    return Answer("cpu", figures, lines)


def check_memory(root: Path = Path("/")) -> Answer:
    """Memory of the machine, what is free, and the cgroup's limit."""
    total, available = _meminfo(root)
    limit, used = memory_limit(root)
    if limit is not None:
        available = min(available, limit - used)
    figures = {
        "total_gib": round(total / GIB, 2),
        "available_gib": round(available / GIB, 2),
        "limit_gib": None if limit is None else round(limit / GIB, 2),
    }
    fact = f"{figures['available_gib']:.1f} GiB of {figures['total_gib']:.1f} GiB memory free"
    if limit is not None:
        fact += f", limit {figures['limit_gib']:.1f} GiB (cgroup)"
    if available / GIB < MEMORY_NEEDED_GIB:
        follows = f"the quickstart takes up to {MEMORY_NEEDED_GIB:g} GiB: lower simulation.workers and train.batch"
        return Answer("memory", figures, [Line("warning", fact, follows)])
    return Answer(
        "memory", figures, [Line("ok", fact, "enough for the quickstart; `stemdl validate` estimates a file")]
    )


def usable_cores(affinity: int, quota: float | None) -> int:
    """Whole cores that a process can keep busy: the smaller of its CPU set and its quota, at least 1."""
    return max(1, affinity if quota is None else min(affinity, int(quota + 0.5)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores that the cgroup's quota allows (cgroup v2 or v1), the smallest on the way up; None without a quota."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        if text := _read(folder / "cpu.max"):
            quota, period = [*text.split(), "100000"][:2]
            quotas += [] if quota == "max" else [int(quota) / int(period)]
        elif text := _read(folder / "cpu.cfs_quota_us"):
            period = _read(folder / "cpu.cfs_period_us") or "100000"
            quotas += [int(text) / int(period)] if int(text) > 0 else []
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> tuple[int | None, int]:
    """The cgroup's memory limit in bytes (the smallest on the way up, None without one) and what it uses of it."""
    limits = []
    for folder in _cgroup_folders(root, "memory"):
        names = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
        for limit_name, used_name in names:
            text = _read(folder / limit_name)
            if text and text != "max" and int(text) < _NO_LIMIT_BYTES:
                limits.append((int(text), int(_read(folder / used_name) or "0")))
    return min(limits, default=(None, 0))


def cpu_model(root: Path = Path("/")) -> str:
    """Name of the processor, or of its architecture where the system does not say."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine() or "unknown processor"


def _meminfo(root: Path) -> tuple[int, int]:
    """Total and available memory in bytes."""
    values = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.split():
            values[name] = int(rest.split()[0]) * 1024
    if "MemTotal" in values:
        return values["MemTotal"], values.get("MemAvailable", values["MemTotal"])
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")  # no /proc: macOS
    return page * pages, page * pages


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and of those above it, nearest first; v2 and v1."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [base.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]
    return folders


def _read(path: Path) -> str:
    """Text of a small system file; empty where there is none (another system, or not ours to read)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
