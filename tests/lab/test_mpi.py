"""The simulated nccl-tests as real MPI programs over two nodes: mpirun over ssh, and srun."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from tests.lab import slurm_cluster
from tests.lab.lab_nodes import Lab, LabNode, running_lab

DRIVER = "580.126.09"
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # test_groups runs the same through the product
PACKAGES = ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libnccl2", "nccl-tests", "openmpi-bin")
PROGRAM = "all_reduce_perf -b 8G -e 8G -g 8 -n 5"
PCIE = 21.5  # GB/s of L40S over PCIe, for eight on one node as well as sixteen in a ring over two
CARDS = 8 * 196.8 / 8 * 0.955  # GB/s of a node's eight cards together
# --host does not accept addresses: OpenMPI 5.0.7 then finds no slots on the others (a hostfile works).
MPIRUN = "timeout --signal=TERM {seconds} mpirun -np 2 --hostfile hosts " + PROGRAM


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield two nodes with driver, nccl-tests and OpenMPI, which a test of programs needs, but no roles."""
    nodes = tuple(NodeSpec(name, "l40s", network="ib") for name in ("m1", "m2"))
    with running_lab("mpi", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        hosts = yaml.safe_load(running.inventory.read_text())["gpu_nodes"]["hosts"]
        for node in running.nodes:
            urls = (hosts[node.name][f"nvidia_repository_{kind}_url"] for kind in ("cuda", "tools"))
            sources = "".join(f"deb [trusted=yes] {url} /\n" for url in urls)
            node.as_root("cat > /etc/apt/sources.list.d/lab.list && apt-get update", said=sources)
        slurm_cluster.install(running.nodes, f"nvidia-driver-pinning-{DRIVER}")
        slurm_cluster.install(running.nodes, *PACKAGES)
        for node in running.nodes:
            node.as_root("echo blacklist nouveau > /etc/modprobe.d/blacklist-nouveau.conf")
            node.reboot()
            node.as_root("modprobe nvidia")
        yield running


@pytest.fixture(scope="module")
def first(lab: Lab) -> LabNode:
    """Return the node that runs mpirun, which reaches both nodes over ssh with its own key."""
    one = lab.nodes[0]
    one.run("ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519")
    key = one.run("cat ~/.ssh/id_ed25519.pub").stdout
    addresses = [node.address for node in lab.nodes]
    for node in lab.nodes:
        node.run("cat >> ~/.ssh/authorized_keys", said=key)
    one.run(f"ssh-keyscan {' '.join(addresses)} > ~/.ssh/known_hosts")
    one.run("cat > hosts", said="".join(f"{address} slots=1\n" for address in addresses))
    return one


@pytest.fixture
def second(lab: Lab) -> LabNode:
    return lab.nodes[1]


@pytest.fixture
def healed(lab: Lab) -> Iterator[None]:
    """Clear the faults that a test sets."""
    yield
    for node in lab.nodes:
        node.heal()


def rates(said: str) -> list[float]:
    return [float(word) for word in re.findall(r"# Avg bus bandwidth    : ([\d.]+)", said)]


def places(said: str) -> list[tuple[int, str, int]]:
    """Return (rank, node, device) of each GPU."""
    found = re.findall(r"^#  Rank +(\d+) Group  0 Pid +\d+ on +(\S+) device +(\d+) ", said, re.MULTILINE)
    return [(int(rank), host, int(device)) for rank, host, device in found]


ALL = [(rank, "m1" if rank < 8 else "m2", rank % 8) for rank in range(16)]


def test_mpirun_makes_one_run_of_two_nodes(first: LabNode) -> None:
    said = first.run(MPIRUN.format(seconds=60)).stdout
    assert places(said) == ALL
    assert rates(said) == [pytest.approx(PCIE, rel=0.02)]


@pytest.mark.usefixtures("healed")
def test_a_slow_link_between_the_two_is_measured(first: LabNode, second: LabNode) -> None:
    second.fault("link_slow", peer="m1", factor=0.05)
    assert rates(first.run(MPIRUN.format(seconds=60)).stdout) == [pytest.approx(0.05 * CARDS, rel=0.02)]


@pytest.mark.usefixtures("healed")
def test_a_link_that_hangs_does_so_until_mpirun_is_ended_and_leaves_nothing(first: LabNode, lab: Lab) -> None:
    first.fault("link_hang", peer="m2")
    done = first.run(MPIRUN.format(seconds=10), check=False)
    assert done.returncode == 124
    assert places(done.stdout) == ALL
    assert rates(done.stdout) == []
    for node in lab.nodes:
        assert node.run("ps -e -o args | grep '[a]ll_reduce_perf'", check=False).stdout == ""


@pytest.mark.usefixtures("healed")
def test_a_process_that_fails_ends_all_with_its_status(first: LabNode, second: LabNode) -> None:
    second.fault("port_down", nic=0)
    command = MPIRUN.format(seconds=60).replace(PROGRAM, f"-x NCCL_NET=IB -x NCCL_IB_HCA==mlx5_0 {PROGRAM}")
    done = first.run(command, check=False)
    assert done.returncode == 3
    assert "m2: Test NCCL failure" in done.stdout
    assert rates(done.stdout) == []


@pytest.mark.usefixtures("healed")
def test_a_build_without_mpi_is_two_runs(first: LabNode, lab: Lab) -> None:
    for node in lab.nodes:
        node.fault("nccl_tests_without_mpi")
    said = first.run(MPIRUN.format(seconds=60)).stdout
    assert sorted(rank for rank, _, _ in places(said)) == sorted([*range(8), *range(8)])
    assert rates(said) == [pytest.approx(PCIE, rel=0.02)] * 2


@pytest.fixture(scope="module")
def controller(lab: Lab) -> LabNode:
    return slurm_cluster.start(lab.nodes)


def test_srun_makes_one_run_of_two_nodes(controller: LabNode) -> None:
    """Run in the situation of every machine with Slurm, without a key between the nodes."""
    assert "pmix" in controller.run("srun --mpi=list 2>&1").stdout
    said = controller.run(f"timeout 60 srun -N2 -n2 --mpi=pmix {PROGRAM}").stdout
    assert places(said) == ALL
    assert rates(said) == [pytest.approx(PCIE, rel=0.02)]


def test_srun_without_a_plugin_for_mpi_is_two_runs(controller: LabNode) -> None:
    said = controller.run(f"timeout 60 srun -N2 -n2 {PROGRAM}").stdout
    assert rates(said) == [pytest.approx(PCIE, rel=0.02)] * 2


def test_mpirun_within_an_allocation_needs_no_ssh(controller: LabNode) -> None:
    said = controller.run(f"timeout 60 salloc -N2 -n2 mpirun -np 2 {PROGRAM}").stdout
    assert places(said) == ALL
