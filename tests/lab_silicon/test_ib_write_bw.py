"""ib_write_bw: two processes that find each other, and the effect of faults on a card's rate."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.lab_silicon.amd_machine import installed
from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
WORDS = ("-s", "8388608", "-q", "4", "-n", "1000", "-F", "--report_gbits")
CUDA = ("--use_cuda=0", "--use_cuda_dmabuf")


def rate(text: str) -> float:
    """Return the rate of the only row, in Gb/s."""
    (row,) = re.findall(r"^ 8388608 .*$", text, re.MULTILINE)
    return float(row.split()[3])


def test_a_healthy_card_fills_its_port(node: Make) -> None:
    client, server = node().served("ib_write_bw", "-d", "mlx5_0", *WORDS)
    assert client.returncode == 0, client.stderr
    assert 390 < rate(client.stdout) < 400
    assert "Waiting for client to connect" in server
    assert re.search(r"Device         : mlx5_0$", client.stdout, re.MULTILINE)
    assert client.stdout.rstrip().endswith("-" * 87)


@pytest.mark.parametrize(
    ("fault", "words", "low", "high"),
    [
        ("nic_slow nic=0 factor=0.5", (), 190, 200),
        ("nic_slow nic=1 factor=0.5", (), 390, 400),  # another card
        ("gpudirect_slow nic=0 factor=0.5", (), 390, 400),
        ("gpudirect_slow nic=0 factor=0.5", CUDA, 190, 200),
        ("nic_pcie_width nic=0 width=8", (), 200, 260),
        ("one_queue_pair_slow", (), 390, 400),
        ("one_queue_pair_slow", ("-q", "1"), 200, 230),
    ],
)
def test_what_a_fault_leaves_of_the_rate(
    fault: str, words: tuple[str, ...], low: float, high: float, node: Make
) -> None:
    one = node()
    one.break_(fault)
    client, _ = one.served("ib_write_bw", "-d", "mlx5_0", *WORDS, *words)
    assert low < rate(client.stdout) < high


def test_gpu_memory_needs_a_way(node: Make) -> None:
    one = node()
    words = ("ib_write_bw", "-d", "mlx5_0", *WORDS)
    client, _ = one.served(*words, "--use_cuda=0")
    assert client.returncode == 1
    assert "Couldn't allocate MR" in client.stderr, "nvidia-peermem is not loaded"
    assert one.served(*words, *CUDA)[0].returncode == 0
    one.break_("gpudirect_off")
    client, _ = one.served(*words, *CUDA)
    assert "Couldn't allocate MR" in client.stderr


def test_a_program_without_cuda_knows_no_such_option(node: Make) -> None:
    one = node()
    one.break_("perftest_without_cuda")
    done = one.run("ib_write_bw", "-d", "mlx5_0", *WORDS, "--use_cuda=0", "localhost")
    assert done.returncode == 1
    assert "unrecognized option '--use_cuda'" in done.stderr


def test_refusals(node: Make) -> None:
    one = node()
    done = one.run("ib_write_bw", "-d", "mlx5_9", *WORDS, "localhost")
    assert "IB device mlx5_9 not found" in done.stderr
    one.break_("port_down nic=2")
    done = one.run("ib_write_bw", "-d", "mlx5_2", *WORDS, "localhost")
    assert (done.returncode, "Port number 1 state is Down" in done.stderr) == (1, True)


@pytest.fixture
def instinct(bare: Make) -> Silicon:
    return installed(bare("mi300x", network="ib")).boot()


def test_the_gpu_that_is_shown_alone_is_the_one_whose_memory_is_taken(instinct: Silicon) -> None:
    unique = (instinct.state / "sys_pci/0000:46:00.0/unique_id").read_text().strip()
    words = ("ib_write_bw", "-d", "mlx5_2", *WORDS, "--use_rocm", "0", "--use_rocm_dmabuf")
    client, _ = instinct.served(*words, ROCR_VISIBLE_DEVICES=f"GPU-{unique.upper()}")
    assert client.returncode == 0, client.stderr
    assert "Name: AMD Instinct MI300X, PCI Bus ID: 0x46, GCN Arch: gfx942" in client.stdout
    assert 390 < rate(client.stdout) < 400
    nobody, _ = instinct.served(*words, ROCR_VISIBLE_DEVICES="GPU-0000000000000000")
    assert (nobody.returncode, "Couldn't initialize ROCm device" in nobody.stderr) == (1, True)


def test_without_dma_buf_or_rocm_no_memory_of_its_gpus_is_reached(instinct: Silicon) -> None:
    words = ("ib_write_bw", "-d", "mlx5_2", *WORDS, "--use_rocm", "0")
    client, _ = instinct.served(*words)
    assert (client.returncode, "Couldn't allocate MR" in client.stderr) == (1, True)
    instinct.break_("perftest_without_cuda")
    done = instinct.run(*words, "localhost")
    assert (done.returncode, done.stdout) == (1, " Unsupported memory type\n")
