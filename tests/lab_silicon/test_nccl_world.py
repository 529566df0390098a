"""The nccl-tests programs as one program of several processes: their agreement, and who prints.

Here the processes meet through files instead of MPI; tests/lab/test_mpi.py starts them with the real mpirun.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuprov_lab
from tests.lab_silicon.silicon import Silicon
from tests.support.commands import ran

SILICON = Path(gpuprov_lab.__file__).with_name("silicon")
WORDS = ("-b", "8G", "-e", "8G", "-g", "8")
PROGRAM = """
import json, os, pathlib, sys, time
silicon, folder, rank, size, *words = sys.argv[1:]
sys.path.insert(0, silicon)
import state
from nccl import mpi, nccl_tests

class Files:
    rank, size, round = int(rank), int(size), 0

    def gather(self, said):
        place = pathlib.Path(folder, str(self.round))
        self.round += 1
        place.mkdir(exist_ok=True)
        (place / f"{self.rank}.new").write_text(json.dumps(said))
        (place / f"{self.rank}.new").rename(place / f"{self.rank}")
        while not all((place / f"{rank}").exists() for rank in range(self.size)):
            time.sleep(0.01)
        return [json.loads((place / f"{rank}").read_text()) for rank in range(self.size)]

    def end(self):
        pathlib.Path(folder, f"ended{self.rank}").touch()

mpi.world = lambda node: Files()
node = state.Node(state.folder_from_environment())
node.count_run()
status = nccl_tests.all_reduce_perf(node, words)
sys.stdout.flush()
sys.exit(status)
"""
Run = Callable[..., list[subprocess.Popen[str]]]
Measured = Callable[..., float]
Make = Callable[..., Silicon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Yield a function that starts a process per node, in rank order; the rest is terminated at the end."""
    running: list[subprocess.Popen[str]] = []

    def begin(*nodes: Silicon, words: tuple[str, ...] = WORDS, **more: str) -> list[subprocess.Popen[str]]:
        folder = tmp_path / f"meeting{len(running)}"
        folder.mkdir()
        at = [str(SILICON), str(folder)]
        begun = [
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, *at, str(rank), str(len(nodes)), *words],
                env=node.environment(**more),
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, node in enumerate(nodes)
        ]
        running.extend(begun)
        return begun

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def measured(start: Run) -> Measured:
    """Return a function that measures an all-reduce over nodes: bus bandwidth in GB/s, from rank 0."""

    def measure(*nodes: Silicon, **more: Any) -> float:
        begun = start(*nodes, **more)
        said = [process.communicate(timeout=60)[0] for process in begun]
        assert [process.returncode for process in begun] == [0] * len(nodes), said
        assert said[1:] == [""] * (len(nodes) - 1)
        return float(re.findall(r"# Avg bus bandwidth    : ([\d.]+)", said[0])[0])

    return measure


CARDS = 8 * 393.6 / 8 * 0.955  # GB/s of a node's eight cards: perftest's rate, minus NCCL's overhead


def test_the_first_process_prints_one_table_for_all_ranks(start: Run, pair: list[Silicon]) -> None:
    first, second = start(*pair, words=(*WORDS, "-J", "out.json"))
    said = first.communicate(timeout=60)[0]
    assert second.communicate(timeout=60)[0] == ""
    ranks = re.findall(r"^#  Rank +(\d+) Group  0 Pid +(\d+) on +\S+ device +(\d) ", said, re.MULTILINE)
    assert [(int(rank), int(device)) for rank, _, device in ranks] == [(i, i % 8) for i in range(16)]
    assert [int(pid) for _, pid, _ in ranks] == [first.pid] * 8 + [second.pid] * 8
    (row,) = [line.split() for line in said.splitlines() if re.match(r" +\d", line)]
    algorithm, bus = float(row[6]), float(row[7])
    assert bus / algorithm == pytest.approx(2 * 15 / 16, rel=0.001)


def test_the_json_names_the_first_gpu_of_each_process(
    start: Run, pair: list[Silicon], tmp_path: Path
) -> None:
    begun = start(*pair, words=(*WORDS, "-J", "out.json"))
    for process in begun:
        process.communicate(timeout=60)
    devices = json.loads((tmp_path / "out.json").read_text())["config"]["devices"]
    assert [(one["rank"], one["pid"], one["device"]) for one in devices] == [
        (0, begun[0].pid, 0),
        (8, begun[1].pid, 0),
    ]
    assert not (tmp_path / "out.json.0").exists()


def test_two_healthy_nodes_reach_what_a_ring_does(measured: Measured, pair: list[Silicon]) -> None:
    assert measured(*pair) == pytest.approx(365, rel=0.02)  # limited by NVLink's ring, just below the cards


def test_ampere_nodes_are_bound_by_their_cards(measured: Measured, node: Make) -> None:
    nodes = [node("a100-sxm-80", name=name) for name in ("gpu-01", "gpu-02")]
    assert measured(*nodes) == pytest.approx(8 * 196.8 / 8 * 0.955, rel=0.02)


FAULTS = [
    (0, "link_slow peer=gpu-02 factor=0.4", CARDS * 0.4),
    (1, "link_slow peer=gpu-01 factor=0.4", CARDS * 0.4),
    (0, "peers_slow factor=0.5", CARDS * 0.5),
    (1, "peers_slow factor=0.5", CARDS * 0.5),
    (0, "nic_slow nic=3 factor=0.5", CARDS * 0.5),
    (1, "gpudirect_slow nic=6 factor=0.5", CARDS * 0.5),
    (1, "gpudirect_off", CARDS * 0.5),
    (0, "port_down nic=2", CARDS * 7 / 8),
    (1, "collective_slow factor=0.5", 365 * 0.5),
    (0, "nvlink_down gpu=0 link=1", 365 * 17 / 18),
]


@pytest.mark.parametrize(
    ("end", "fault", "expected"), FAULTS, ids=[f"{fault.split()[0]}-{end}" for end, fault, _ in FAULTS]
)
def test_a_fault_of_one_node_slows_both_whichever_it_is(
    end: int, fault: str, expected: float, pair: list[Silicon], measured: Measured
) -> None:
    pair[end].break_(fault)
    assert measured(*pair) == pytest.approx(expected, rel=0.02)


def test_a_slow_link_to_another_node_is_not_this_one(measured: Measured, pair: list[Silicon]) -> None:
    pair[0].break_("link_slow peer=gpu-03 factor=0.4")
    assert measured(*pair) == pytest.approx(365, rel=0.02)


def test_in_a_ring_of_four_a_link_is_felt_where_its_ends_are_neighbours(
    measured: Measured, node: Make
) -> None:
    one, two, three, four = (node(name=f"gpu-0{number}", seed=number) for number in (1, 2, 3, 4))
    one.break_("link_slow peer=gpu-03 factor=0.4")
    assert measured(one, two, three, four) == pytest.approx(365, rel=0.02)
    assert measured(three, one, two, four) == pytest.approx(0.4 * CARDS, rel=0.02)
    assert measured(three, two, four, one) == pytest.approx(0.4 * CARDS, rel=0.02)  # the ring closes


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("fault", ["peers_hang", "link_hang peer=gpu-0{other}"])
def test_what_hangs_does_so_below_the_head_of_the_table_until_it_is_ended(
    fault: str, end: int, start: Run, pair: list[Silicon]
) -> None:
    pair[end].break_(fault.format(other=2 - end))
    begun = start(*pair)
    for process in begun:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)  # healthy, it takes half a second
        process.terminate()
    said = begun[0].communicate(timeout=60)[0]
    assert said.splitlines()[-1].split()[1:3] == ["(B)", "(elements)"]
    assert "Avg bus bandwidth" not in said


def test_wrong_results_of_all_nodes_fail_the_run(start: Run, pair: list[Silicon]) -> None:
    for one in pair:
        one.break_("wrong_result count=4")
    first, second = start(*pair)
    said = first.communicate(timeout=60)[0]
    (row,) = [line.split() for line in said.splitlines() if re.match(r" +\d", line)]
    assert (row[8], row[12]) == ("8", "8")
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (7, 7)


def test_the_smallest_memory_bounds_the_sizes(start: Run, pair: list[Silicon]) -> None:
    pair[1].break_("memory_small gpu=0 mib=24000")
    first, second = start(*pair)
    said = first.communicate(timeout=60)[0]
    assert "# Reducing maxBytes to " in said
    assert second.communicate(timeout=60)[0] == ""


def test_without_cards_nccl_goes_over_tcp_unless_it_was_told_not_to(
    measured: Measured, start: Run, pair: list[Silicon]
) -> None:
    pair[1].break_(*(f"port_down nic={nic}" for nic in range(8)))
    assert measured(*pair) < 3
    first, second = start(*pair, NCCL_NET="IB")
    said = second.communicate(timeout=60)[0]
    assert second.returncode == 3
    assert re.search(r"Test NCCL failure common.cu:\d+ 'invalid usage", said)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(1)  # until the launcher terminates it
    first.terminate()
    assert "busbw" not in first.communicate(timeout=60)[0]


@pytest.mark.parametrize(
    ("cards", "share"),
    [("mlx5_0,mlx5_1", 2), ("=mlx5_0", 1), ("^mlx5_0:1,mlx5_1", 6), ("mlx5", 8), ("^=mlx5_7", 7)],
)
def test_the_cards_that_nccl_is_told_to_use(
    cards: str, share: int, measured: Measured, pair: list[Silicon]
) -> None:
    expected = min(365.0, CARDS * share / 8)
    assert measured(*pair, NCCL_IB_HCA=cards) == pytest.approx(expected, rel=0.02)


def test_two_processes_of_one_node_share_its_gpus(start: Run, pair: list[Silicon]) -> None:
    begun = start(pair[0], pair[0], words=("-b", "8G", "-e", "8G", "-g", "4"))
    said = begun[0].communicate(timeout=60)[0]
    assert [int(device) for device in re.findall(r" device +(\d) ", said)] == list(range(8))
    assert float(re.findall(r"# Avg bus bandwidth    : ([\d.]+)", said)[0]) == pytest.approx(478, rel=0.02)


def test_more_gpus_than_a_node_has_for_its_processes(start: Run, pair: list[Silicon]) -> None:
    begun = start(pair[0], pair[0])
    said = begun[1].communicate(timeout=60)[0]
    assert begun[1].returncode == 5
    assert "Invalid number of GPUs: 16 requested but only 8 were found." in said


def asked(program: str) -> str:
    text = f"import sys; sys.path.insert(0, sys.argv[1])\n{program}"
    done = ran([sys.executable, "-I", "-S", "-c", text, str(SILICON)], check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"PMIX_RANK": "0", "SLURM_PROCID": "0"}, True),
        ({"PMI_RANK": "0"}, True),
        ({"SLURM_PROCID": "0"}, False),
        ({"SLURM_PROCID": "0", "SLURM_MPI_TYPE": "none"}, False),
        ({"SLURM_PROCID": "0", "SLURM_MPI_TYPE": "pmix_v5"}, True),
    ],
)
def test_who_was_launched(environment: dict[str, str], expected: bool) -> None:
    assert asked(f"from nccl import mpi; print(mpi.launched({environment!r}))") == f"{expected}\n"


def test_a_program_without_mpi_is_a_run_of_its_own_under_a_launcher(node: Make) -> None:
    one = node()
    one.break_("nccl_tests_without_mpi")
    text = one.printed("all_reduce_perf", *WORDS, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    assert text.count("Rank") == 8
    assert "Avg bus bandwidth" in text


@pytest.mark.parametrize(
    ("built", "found", "expected"),
    [(True, None, "Alone"), (True, "a library", "World"), (False, "a library", "Alone")],
)
def test_who_is_alone_although_a_launcher_started_it(built: bool, found: str | None, expected: str) -> None:
    """No library is found, or the program was built without MPI."""
    program = f"""
import os
from nccl import mpi
os.environ["OMPI_COMM_WORLD_SIZE"] = "2"
mpi.library = lambda: {found!r}
mpi.World = type("World", (), {{"__init__": lambda self, library: None}})
class Node:
    def fault(self, name): return None if {built!r} else {{"id": name}}
print(type(mpi.world(Node())).__name__)
"""
    assert asked(program) == f"{expected}\n"


def test_a_library_that_is_nowhere() -> None:
    program = "from nccl import mpi; mpi.LIBRARIES = ('libmpi-that-is-nowhere.so.1',); print(mpi.library())"
    assert asked(program) == "None\n"
