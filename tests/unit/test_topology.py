"""Where the ranks are, where they meet, which device each one uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stemdl.errors import UserError
from stemdl.launch import Topology, check_devices, rendezvous, slurm_hosts, visible_device, with_hosts

SLURM = {"SLURM_JOB_ID": "1000", "SLURM_JOB_NODELIST": "node[01-03,7],x5"}
LSF = {"LSB_JOBID": "123456", "LSB_MCPU_HOSTS": "batch3 1 a07n04 42 a07n05 42"}
SRUN = Topology("srun (Slurm)", 0, 8, 0, None, "node01")
JSRUN = Topology("jsrun (LSF)", 3, 8, None, None, "a07n04")
MPIRUN = Topology("mpirun (Open MPI)", 1, 4, 1, 2, "a")


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        pytest.param("a a b b", [(0, 2, 0), (1, 2, 0), (0, 2, 1), (1, 2, 1)], id="filled node by node"),
        pytest.param("a b a b", [(0, 2, 0), (0, 2, 1), (1, 2, 0), (1, 2, 1)], id="dealt out"),
        pytest.param("b a a a", [(0, 1, 0), (0, 3, 1), (1, 3, 1), (2, 3, 1)], id="uneven, numbered by lowest rank"),
    ],
)
def test_the_names_of_all_nodes_say_the_local_ranks(hosts: str, ranks: list[tuple[int, int, int]]) -> None:
    names = hosts.split()
    filled = [with_hosts(Topology("x", rank, 4, None, None, names[rank]), names) for rank in range(4)]
    assert [(one.local_rank, one.local_size, one.node_index) for one in filled] == ranks
    assert {one.nodes for one in filled} == {2}
    assert [(one.launcher, one.rank, one.size, one.node) for one in filled] == [("x", r, 4, names[r]) for r in range(4)]


def test_what_the_launcher_announced_holds() -> None:
    assert with_hosts(MPIRUN, ["a", "a", "b", "b"]) == Topology("mpirun (Open MPI)", 1, 4, 1, 2, "a", 0, 2)


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        ("a a b", "mpirun (Open MPI) announced 4 ranks, found 3 that answer"),
        ("a b b a", "rank 1 is this process on a, but the rank 1 that answers is on b"),
        ("b a a b", "gave rank 1 the local rank 1, but by the names of all nodes it is 0: a has ranks 1, 2"),
        ("a a a b", "gave rank 1 the local size 2, but by the names of all nodes it is 3: a has ranks 0, 1, 2"),
    ],
)
def test_names_that_contradict_the_launcher_are_refused(hosts: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        with_hosts(MPIRUN, hosts.split())


@pytest.mark.parametrize(
    ("environment", "topology", "found"),
    [
        pytest.param({}, MPIRUN, None, id="nothing known"),
        pytest.param({"MASTER_ADDR": "h", "MASTER_PORT": "29500", **SLURM}, SRUN, ("h", 29500), id="given"),
        pytest.param(SLURM, SRUN, ("node01", 20000 + 31000 % 12000), id="Slurm"),
        pytest.param({**SLURM, "SLURM_RESTART_COUNT": "2"}, SRUN, ("node01", 27002), id="Slurm, started again"),
        pytest.param({**SLURM, "SLURM_STEP_NODELIST": "x5"}, SRUN, ("x5", 27000), id="a step on some of the nodes"),
        pytest.param({**SLURM, "SLURM_STEP_NODELIST": "x5"}, MPIRUN, ("node01", 27000), id="the step of an mpirun"),
        pytest.param(SLURM, Topology("single process", 0, 1, 0, 1, "node01"), None, id="one rank"),
        pytest.param(SLURM, Topology("flux run", 0, 8, 0, None, "x5"), None, id="Flux inside of Slurm"),
        pytest.param(LSF, JSRUN, ("a07n04", 20000 + 123456 % 12000), id="LSF, hosts and slots"),
        pytest.param({"LSB_JOBID": "7", "LSB_HOSTS": "login1 h2 h2 h3"}, JSRUN, ("h2", 20007), id="LSF, hosts"),
        pytest.param({"LSB_JOBID": "7", "LSB_HOSTS": "h2.batch.org h3"}, JSRUN, ("h2.batch.org", 20007), id="domain"),
    ],
)
def test_ranks_meet_where_the_environment_says(
    environment: dict[str, str], topology: Topology, found: tuple[str, int] | None
) -> None:
    assert rendezvous(environment, topology) == found


@pytest.mark.parametrize("job", ["1", "999", "4194303", "99999999"])
def test_ports_lie_below_those_that_linux_gives_out(job: str) -> None:
    ports = set()
    for restarts in range(20):
        found = rendezvous({**SLURM, "SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(restarts)}, SRUN)
        assert found is not None
        ports.add(found[1])
    assert len(ports) == 20
    assert all(20000 <= port <= 31999 for port in ports)


def test_lsf_lists_the_hosts_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("batch5\na01n02\na01n02\n\na01n03\n")
    environment = {**LSF, "LSB_DJOB_HOSTFILE": str(file)}
    port = 20000 + 123456 % 12000
    assert rendezvous(environment, JSRUN) == ("a01n02", port)
    file.unlink()
    assert rendezvous(environment, JSRUN) == ("a07n04", port)
    with pytest.raises(UserError, match=r"LSB_DJOB_HOSTFILE=.*hosts: No such file .*MASTER_ADDR"):
        rendezvous({"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": str(file)}, JSRUN)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"MASTER_ADDR": "h", **SLURM}, "found MASTER_ADDR=h without MASTER_PORT"),
        ({"MASTER_PORT": "29500", **SLURM}, "found MASTER_PORT=29500 without MASTER_ADDR"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "http"}, "MASTER_PORT: found 'http', allowed a whole number, from 1 to"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "65536"}, "MASTER_PORT: found '65536', allowed a whole number, from 1 to"),
        ({"SLURM_JOB_NODELIST": "a,b"}, "found SLURM_JOB_NODELIST without SLURM_JOB_ID"),
        ({**SLURM, "SLURM_JOB_ID": "7_1"}, "SLURM_JOB_ID: found '7_1', allowed"),
        ({**SLURM, "SLURM_JOB_NODELIST": "a[1-"}, "SLURM_JOB_NODELIST: found 'a[1-', allowed a list of hosts"),
        ({**SLURM, "SLURMD_NODENAME": "x5"}, "rank 0 is on x5, but the first host of SLURM_JOB_NODELIST="),
        ({"LSB_HOSTS": "a b"}, "found LSB_HOSTS without LSB_JOBID"),
        ({"LSB_HOSTS": "batch1 login2 login2", "LSB_JOBID": "7"}, "LSB_HOSTS: found batch1, login2, no compute host"),
    ],
)
def test_a_meeting_point_that_cannot_be_is_refused(environment: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        rendezvous(environment, SRUN)


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("node7", "node7"),
        ("node[01-03,7],x5", "node01 node02 node03 node7 x5"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("a,b[2],c-3", "a b2 c-3"),
        ("rack[1-2]n[08-09]-ib", "rack1n08-ib rack1n09-ib rack2n08-ib rack2n09-ib"),
    ],
)
def test_the_short_form_of_slurm_is_written_out(nodelist: str, hosts: str) -> None:
    assert slurm_hosts(nodelist) == hosts.split()


@pytest.mark.parametrize("nodelist", ["", "a,", "a[", "a]1", "a[]", "a[3-1]", "a[1-2-3]", "a[x]", "a[1,b", "a b"])
def test_what_is_no_list_of_hosts_is_refused(nodelist: str) -> None:
    with pytest.raises(UserError, match=r"^SLURM_JOB_NODELIST: found .*allowed a list of hosts such as"):
        slurm_hosts(nodelist)


@pytest.mark.parametrize(("local_rank", "visible", "device"), [(0, 1, 0), (5, 1, 0), (0, 4, 0), (3, 4, 3)])
def test_a_rank_uses_its_own_device(local_rank: int, visible: int, device: int) -> None:
    assert visible_device(local_rank, visible) == device


@pytest.mark.parametrize(("local_rank", "visible", "says"), [(0, 0, "found no"), (4, 4, "found 4"), (2, 2, "found 2")])
def test_fewer_devices_than_ranks_are_refused(local_rank: int, visible: int, says: str) -> None:
    with pytest.raises(UserError, match=f"local rank {local_rank}: {says} visible devices, .*{local_rank + 1} or more"):
        visible_device(local_rank, visible)


def test_ranks_that_share_a_device_are_named() -> None:
    check_devices([])
    check_devices([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")])
    with pytest.raises(UserError, match="GPU-1 of a by ranks 0, 3; GPU-2 of b by ranks 1, 2 "):
        check_devices([("a", "GPU-1"), ("b", "GPU-2"), ("b", "GPU-2"), ("a", "GPU-1")])
    with pytest.raises(UserError, match=r"GPU-0 of n0 by ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more; .*; 2 more devices"):
        check_devices([(f"n{rank // 100}", "GPU-0") for rank in range(1000)])
