from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stemdl.disks import file_system_of
from stemdl.doctor import as_json, examine
from stemdl.doctor.launchers import check_launcher, check_mpi
from stemdl.doctor.machine import check_cpu, check_memory, cpu_quota, memory_limit, usable_cores
from stemdl.doctor.storage import burst_buffer_candidates, check_locking, check_storage
from stemdl.errors import UserError
from stemdl.launch import refuse_several_ranks

MOUNTS = """\
21 1 254:0 / / rw - ext4 /dev/vda rw
30 21 0:30 / /home rw shared:1 - nfs4 server:/home rw
31 21 0:31 / /home rw - lustre mds:/home rw
40 21 0:40 / /mnt/with\\040space rw - xfs /dev/nvme0 rw
"""


def system(root: Path, files: dict[str, str]) -> Path:
    """A folder that looks like the root of a machine."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_every_check_answers_with_stable_keys(tmp_path: Path) -> None:
    answers = examine(tmp_path)
    content = json.loads(json.dumps(as_json(answers), allow_nan=False))
    expected = {"python", "cpu", "memory", "threads", "gpus", "bf16", "fft", "mpi", "launcher", "storage", "locking"}
    assert set(content) == expected | {"schema_version", "warnings"}
    assert all(answer.lines and all(line.fact and line.follows for line in answer.lines) for answer in answers)
    assert content["fft"]["gflop_per_s"] > 0
    assert content["cpu"]["usable_cores"] >= 1
    assert content["storage"]["places"][0]["path"] == str(tmp_path.resolve())
    assert list(tmp_path.iterdir()) == [], "the probes leave something behind"


def test_cgroup_v2_limits_count_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
            "proc/cpuinfo": "processor : 0\nmodel name : Made Up 9000\n",
            "sys/fs/cgroup/job/cpu.max": "150000 100000",
            "sys/fs/cgroup/job/step/cpu.max": "max 100000",
            "sys/fs/cgroup/job/memory.max": str(3 << 30),
            "sys/fs/cgroup/job/memory.current": str(1 << 30),
            "sys/fs/cgroup/job/step/memory.max": "max",
        },
    )
    assert cpu_quota(root) == pytest.approx(1.5)
    assert memory_limit(root) == (3 << 30, 1 << 30)
    memory = check_memory(root)
    assert memory.figures == {"total_gib": 16.0, "available_gib": 2.0, "limit_gib": 3.0}
    assert memory.lines[0].level == "warning"
    assert "Made Up 9000" in check_cpu(root).lines[0].fact


def test_cgroup_v1_limits(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/box\n4:cpu,cpuacct:/box\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert cpu_quota(root) == pytest.approx(4.0)
    assert memory_limit(root) == (None, 0)


def test_usable_cores() -> None:
    assert usable_cores(8, None) == 8
    assert usable_cores(8, 1.5) == 2
    assert usable_cores(8, 0.2) == 1
    assert usable_cores(2, 16.0) == 2


def test_the_launcher_is_taken_from_one_complete_set() -> None:
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}
    answer = check_launcher(slurm)
    assert answer.figures == {"job": "Slurm 77", "launcher": "srun (Slurm)", "rank": 3, "size": 8}
    assert [line.level for line in answer.lines] == ["note"]
    assert "simulate and stage" in answer.lines[0].follows
    alone = check_launcher({**slurm, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert [line.level for line in alone.lines] == ["ok"]
    assert check_launcher({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8"}).figures["launcher"] is None
    assert check_launcher({}).figures == {"job": None, "launcher": None, "rank": None, "size": None}


def test_launchers_that_disagree_are_named() -> None:
    both = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEPID": "0"}
    both |= {"PMI_RANK": "2", "PMI_SIZE": "4"}
    answer = check_launcher(both)
    assert answer.figures["size"] == 4
    assert answer.lines[-1].level == "warning"
    assert "srun (Slurm): 1" in answer.lines[-1].fact


STEP = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "2"}


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (STEP, "srun"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEPID": "0"}, "srun"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "torchrun"),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "MPICH"),
        ({"PALS_RANKID": "0", "PMI_SIZE": "4"}, "PALS"),
        ({"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "4"}, "jsrun"),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "4"}, "flux"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI"),
    ],
)
def test_several_ranks_are_refused(environment: dict[str, str], launcher: str) -> None:
    with pytest.raises(
        UserError, match=f"{launcher}.*found 4 ranks, allowed 1 .*several ranks are for: stemdl simulate, stage, train"
    ):
        refuse_several_ranks(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # the shell of sbatch or salloc
        {**STEP, "SLURM_STEP_ID": str(0xFFFFFFFB)},  # the batch step, by its number
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "4"},  # exported by a script, no launcher
    ],
)
def test_one_rank_is_not_refused(environment: dict[str, str]) -> None:
    refuse_several_ranks(environment)


@pytest.mark.parametrize(
    ("result", "level"),
    [
        (subprocess.CompletedProcess([], 0, "Some MPI 5.0\nmore\n", ""), "ok"),
        (subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: cannot load MPI library\n"), "warning"),
        (subprocess.TimeoutExpired([], 30), "warning"),
    ],
)
def test_a_broken_mpi_is_told_from_a_working_one(
    monkeypatch: pytest.MonkeyPatch, result: subprocess.CompletedProcess[str] | Exception, level: str
) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/opt/mpi/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    answer = check_mpi()
    assert answer.lines[0].level == level
    assert ("mpirun -n RANKS" if level == "ok" else "build mpi4py") in answer.lines[0].follows
    assert (answer.figures["library"] == "Some MPI 5.0") == (level == "ok")


def test_burst_buffers_are_those_that_exist(tmp_path: Path) -> None:
    fast = tmp_path / "nvme"
    fast.mkdir()
    env = {"USER": "nobody-of-that-name", "SLURM_TMPDIR": str(fast), "TMPDIR": str(fast), "LOCAL_SCRATCH": "/no/such"}
    assert burst_buffer_candidates(env) == [("$SLURM_TMPDIR", fast.resolve())]
    places = check_storage(tmp_path, env).figures["places"]
    assert [place["name"] for place in places] == ["runs", "$SLURM_TMPDIR"]
    assert all(place["write_mb_per_s"] > 0 for place in places)


def test_file_systems_are_found_by_the_last_longest_mount() -> None:
    assert file_system_of(Path("/srv/x"), MOUNTS) == "ext4"
    assert file_system_of(Path("/home/a/b"), MOUNTS) == "lustre"
    assert file_system_of(Path("/homework"), MOUNTS) == "ext4"
    assert file_system_of(Path("/mnt/with space/a"), MOUNTS) == "xfs"
    assert file_system_of(Path("/x"), "") == "unknown"


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_locking(tmp_path, {}).figures["works"] is True

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    refused = check_locking(tmp_path, {"HDF5_USE_FILE_LOCKING": "FALSE"})
    assert refused.figures["works"] is False
    assert "No locks available" in refused.lines[0].fact
    assert refused.lines[1].fact == "HDF5_USE_FILE_LOCKING=FALSE"
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    assert "granted twice" in check_locking(tmp_path, {}).lines[0].fact


def test_a_missing_folder_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        examine(tmp_path / "none")
