"""The simulated tools beside recorded output of the real ones: the same lines, but for the values in them.

The recordings are not part of this repository. GPUPROV_CAPTURES names their folder; without it these tests
are skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

Silicon = Any  # conftest.Silicon, which cannot be imported under importlib mode
Make = Callable[..., Silicon]
FOLDER = os.environ.get("GPUPROV_CAPTURES", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="GPUPROV_CAPTURES is not set: the simulated tools were NOT compared with recordings"
)


def capture(name: str) -> bytes:
    return (Path(FOLDER) / name).read_bytes()


@pytest.fixture
def h100(node: Make) -> Silicon:
    """A node in the state of the recordings: driver 550.163.01, persistence mode on, idle, fabric up."""
    one = node("h100-sxm", driver="550.163.01")
    assert one.run("nvidia-smi", "-pm", "1").returncode == 0
    return one


def shape(text: bytes) -> list[bytes]:
    """Lines with every number, UUID and date made the same; blanks, tabs and escape codes stay."""
    text = re.sub(rb"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", b"UUID", text)
    text = re.sub(rb"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}", b"DATE", text)
    text = re.sub(rb"\b0x[0-9A-Fa-f]+\b", b"0xN", text)
    text = re.sub(rb"(00000000:)[0-9A-F]{2}(:00\.0)", rb"\1BB\2", text)
    return text.split(b"\n")


def digits(lines: list[bytes]) -> list[bytes]:
    """Each run of digits as one N, each run of blanks before it as it is."""
    return [re.sub(rb"\d+", b"N", line) for line in lines]


def test_list(h100: Silicon) -> None:
    assert shape(h100.raw("nvidia-smi", "-L")) == shape(capture("nvidia-smi-L.h100.550.txt"))


def test_topology_matrix(h100: Silicon) -> None:
    def comparable(text: bytes) -> list[bytes]:
        # The recording is of a machine with other CPUs, and says a GPU NUMA ID where real ones say N/A.
        return [
            re.sub(rb"\t\d+-\d+\t(\d)\t\t(\d|N/A)$", rb"\tCPUS\t\1\t\tID", line) for line in text.split(b"\n")
        ]

    ours = comparable(h100.raw("nvidia-smi", "topo", "-m"))
    assert ours == comparable(capture("nvidia-smi-topo-m.h100.550.txt"))


def test_peer_matrix(h100: Silicon) -> None:
    ours = h100.raw("nvidia-smi", "topo", "-p2p", "r")
    assert ours == capture("nvidia-smi-topo-p2p-r.h100.550.txt")


def test_link_status_and_errors(h100: Silicon) -> None:
    for letter in "se":
        ours = shape(h100.raw("nvidia-smi", "nvlink", f"-{letter}"))
        # The recordings were cut after some lines.
        recorded = shape(capture(f"nvidia-smi-nvlink-{letter}.h100.550.txt"))[:-1]
        assert len(recorded) > 50
        assert ours[: len(recorded)] == recorded


def test_query(h100: Silicon) -> None:
    recorded = capture("nvidia-smi-query-gpu.h100.550.csv")
    fields = ",".join(name.split(" ")[0] for name in recorded.decode().splitlines()[0].split(", "))
    ours = h100.raw("nvidia-smi", f"--query-gpu={fields}", "--format=csv")

    def comparable(text: bytes) -> list[bytes]:
        # vBIOS versions may hold letters.
        return [re.sub(rb"96\.00\.[0-9A-F.]+", b"VBIOS", line) for line in digits(shape(text))]

    assert comparable(ours) == [
        re.sub(rb"N\.N\.N\.N\.N", b"VBIOS", line) for line in comparable(recorded)
    ] or [re.sub(rb"N\.N\.N\.N\.N", b"VBIOS", line) for line in comparable(ours)] == [
        re.sub(rb"N\.N\.N\.N\.N", b"VBIOS", line) for line in comparable(recorded)
    ]


def test_plain_table(h100: Silicon) -> None:
    def columns(text: bytes) -> list[bytes]:
        # Numbers keep their width, so that a column that moved would show; blanks before them belong to it.
        return [re.sub(rb" *\d+", lambda found: b"#" * len(found[0]), line) for line in shape(text)]

    assert columns(h100.raw("nvidia-smi")) == columns(capture("nvidia-smi.plain.h100.550.txt"))


def parsed(text: bytes) -> Xml.Element:
    return Xml.fromstring(text)  # noqa: S314 (our own output, and recordings we chose)


def paths(element: Xml.Element, at: str = "") -> list[str]:
    found = []
    for child in element:
        name = f"{at}/{child.tag}"
        found += [name, *paths(child, name)]
    return found


def compare_xml(ours: bytes, recorded: bytes, extra: set[str], missing: set[str]) -> None:
    """The elements of the first GPU, in order; `extra` and `missing` are differences with a reason."""
    mine, theirs = (paths(parsed(text).findall("gpu")[0]) for text in (ours, recorded))
    assert [name for name in mine if name not in extra] == [name for name in theirs if name not in missing]
    assert ours.splitlines()[1] == recorded.splitlines()[1]


def test_xml_of_550(h100: Silicon) -> None:
    # The recording's library had no histogram; every real data centre GPU has one.
    histogram = "/remapped_rows/row_remapper_histogram"
    levels = ("max", "high", "partial", "low", "none")
    ours, recorded = h100.raw("nvidia-smi", "-q", "-x"), capture("nvidia-smi-q-x.h100.550.xml")
    compare_xml(ours, recorded, {f"{histogram}/row_remapper_histogram_{level}" for level in levels}, set())
    assert ours.splitlines()[0] == recorded.splitlines()[0]
    assert ours.splitlines()[-3:] == recorded.splitlines()[-3:]
    indents = [re.match(rb"\t*<\w+", line) for line in ours.splitlines()]
    assert {one[0] for one in indents if one} >= {
        one[0] for one in (re.match(rb"\t*<\w+", line) for line in recorded.splitlines()) if one
    }


def test_xml_of_535(node: Make) -> None:
    ours = node("a100-sxm-80", driver="535.54.03").raw("nvidia-smi", "-q", "-x")
    # The recording has MIG on, which hides the remapped rows, and a list of clocks.
    recorded = capture("nvidia-smi-q-x.a100-sxm4.driver535.mig.xml")
    remapped = {name for name in paths(parsed(ours)) if name.startswith("/gpu/remapped_rows/")}
    hidden = {
        name for name in paths(parsed(recorded)) if re.match("/gpu/(mig_devices|supported_clocks)/", name)
    }
    compare_xml(ours, recorded, {name[4:] for name in remapped}, {name[4:] for name in hidden})


def test_xml_of_590(node: Make) -> None:
    ours = node("l40s", driver="595.71.05").raw("nvidia-smi", "-q", "-x")
    recorded = capture("nvidia-smi-q-x.rtx-4000-ada.v13.xml")
    hidden = {
        name for name in paths(parsed(recorded)) if re.match("/gpu/(processes|supported_clocks)/", name)
    }
    compare_xml(ours, recorded, set(), {name[4:] for name in hidden})


def test_text_of_550(h100: Silicon) -> None:
    def labels(text: bytes) -> list[bytes]:
        lines = text.split(b"GPU 00000000:")[1].splitlines()[1:]
        return [line if b" : " not in line else line[:43] for line in lines]

    histogram = b"        Bank Remap Availability Histogram"
    levels = re.compile(rb"            (Max|High|Partial|Low|None) +:")
    ours = [line for line in labels(h100.raw("nvidia-smi", "-q")) if not levels.match(line)]
    recorded = labels(capture("nvidia-smi-q.h100.550.txt"))

    def comparable(lines: list[bytes]) -> list[bytes]:
        return [histogram if line.startswith(histogram) else line for line in lines]

    assert comparable(ours) == comparable(recorded)


def test_gpu_burn(node: Make) -> None:
    """As version 1.0 printed; the recording lacks the first lines, which its collectors removed."""
    one = node("a100-sxm-80")
    ours = one.raw("gpu_burn", "-d", "-tc", "60", SILICON_VERSION="1.0")
    recorded = capture("gpu-burn.8gpu.log")
    assert ours.split(b"done\n")[1] == recorded.split(b"done\n")[1]
    summary = re.compile(rb"\n\tSummary at:   \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d UTC \d{4}\n\n")
    assert summary.search(ours)
    assert summary.search(recorded)
    number = re.compile(rb"\d+(\.\d)?")

    def progress(text: bytes) -> set[bytes]:
        # A GPU without a reading yet prints the same shape, so every line of a healthy run has one.
        return {number.sub(b"N", part.split(b"\n")[0]) for part in text.split(b"\r")[1:]}

    assert progress(ours) == progress(recorded)
    client = re.compile(
        rb"Initialized device \d with \d+ MB of memory \(\d+ MB available, using \d+ MB of it\), "
        rb"using DOUBLES, using Tensor Cores\n"
        rb"Results are 536870912 bytes each, thus performing \d+ iterations\n"
        rb"Freed memory for dev \d\nUninitted cublas\n"
    )
    assert len(client.findall(ours)) == 8
    assert ours.count(b"\nKilling processes.. ") == recorded.count(b"\nKilling processes.. ") == 1


def test_nvbandwidth(node: Make) -> None:
    ours = node().raw("nvbandwidth", "-t", "host_to_device_memcpy_ce").decode()
    recorded = capture("nvbandwidth.text.log").decode()
    pattern = r"(Running host_to_device_memcpy_ce\.\n.*\n +0)( .*\n)((?: \d(?: +[\d.]+)+\n)+)\n(SUM \w+ )"
    mine, theirs = re.search(pattern, ours), re.search(pattern, recorded)
    assert mine
    assert theirs
    assert mine[1] == theirs[1]
    assert mine[4] == theirs[4]
    assert re.match(r" 0 {4}\d\d\.\d\d {4}| 0 {5}\d\d\.\d\d", mine[3])
    for line in (
        "nvbandwidth Version: ",
        "Built from Git version: ",
        "CUDA Runtime Version: ",
        "Driver Version: ",
    ):
        assert line in ours
        assert line in recorded


def test_nccl_table(node: Make) -> None:
    """Later versions have a column more (root) and wider columns; what a reader looks for is in both."""
    ours = node().raw("all_reduce_perf", "-b", "8", "-e", "8G", "-f", "2", "-g", "8").decode()
    recorded = capture("nccl-tests.all_reduce.log").decode()
    for pattern in (
        r"^#       size         count    (  )?type   redop  ",
        r"^# Out of bounds values : 0 OK$",
        r"^# Avg bus bandwidth    : [\d.]+ ?$",
        r"^#   ?Rank  0 (Group  0 )?Pid +\d+ on +\S+ device  0 \[0[x:\w]+\] ",
    ):
        assert re.search(pattern, ours, re.MULTILINE), pattern
        assert re.search(pattern, recorded, re.MULTILINE), pattern
