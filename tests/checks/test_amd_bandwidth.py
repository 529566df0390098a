"""Tests of p2p_bandwidth and memory_bandwidth of AMD GPUs: TransferBench matrices and xGMI links.

The rates come from AMD's acceptance guide for the MI300X and from its run on eight MI200 dies, in the form
of ROCm/TransferBench's src/client/Presets/PeerToPeer.hpp, with the device lists of v1.52 and newer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.checks.judge import Finding, Measurement, Verdict
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.vendors.amd import devices, gpu_answers, memory_bandwidth, p2p_bandwidth, transferbench
from provision.errors import ParseError
from tests.checks.amd_node import ADDRESSES, GPUS, Said, documents, facts, node_of, output, said

# HIP numbers GPUs differently from the PCI bus: its GPU 00 is gpu3 here.
HIP = [3, 0, 1, 2, 7, 6, 5, 4]
MI200 = {(0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4, (0, 6): 2, (2, 4): 2} | dict.fromkeys(
    [(0, 2), (1, 3), (1, 5), (3, 7), (5, 7), (4, 6)], 1
)
MI200_RATES = {4: 65.0, 2: 47.4, 1: 31.5}

Rate = Callable[[str, str], float]  # source, destination: gpu3 or cpu0


def mi300x(one: str, other: str) -> float:
    if one == other and one.startswith("gpu"):
        return 1690.0 + 6 * int(one[3:])
    if "cpu" in one and "cpu" in other:
        return 42.0
    if "cpu" in one:
        return 52.0
    return 55.2 if "cpu" in other else 48.4 + 0.1 * (int(one[3:]) - int(other[3:]))


def mi200(one: str, other: str) -> float:
    if "cpu" in one + other or one == other:
        return 24.0
    a, b = sorted((int(one[3:]), int(other[3:])))
    return MI200_RATES.get(MI200.get((a, b), 0), 27.0 + (a + b) % 13)


def slow(pairs: Mapping[tuple[str, str], float], usual: Rate = mi300x) -> Rate:
    return lambda one, other: pairs.get((one, other), usual(one, other))


def topology(order: list[int], *, newer: bool = True) -> str:
    lines = ["TransferBench v1.64", "        |" + " GPU 00 |" * len(order) + " PCIe Bus ID  | #CUs |"]
    for number, gpu in enumerate(order):
        cells = "".join("    N/A |" if gpu == other else " XGMI-1 |" for other in order)
        end = "304  | 0    | 16   | 8    | -1  " if newer else " 304 | 0            |0,1,2,3"
        lines.append(f" GPU {number:02d} |{cells} {ADDRESSES[gpu]} | {end}")
    return "\n".join(lines) + "\n"


def matrix(rate: Rate, *, reads: bool, cpus: int = 2, order: list[int] = HIP) -> str:
    names = [f"CPU {n:02d}" for n in range(cpus)] + [f"GPU {n:02d}" for n in range(len(order))]
    parts = [f"cpu{n}" for n in range(cpus)] + [f"gpu{gpu}" for gpu in order]
    who, corner = ("Remote", "SRC\\EXE+DST") if reads else ("Local", "SRC+EXE\\DST")
    other = "Local" if reads else "Remote"
    lines = [
        "Bytes Per Direction 67108864",
        f"Unidirectional copy peak bandwidth GB/s [{who} read / {other} write] (GPU-Executor: GFX)",
        f"{corner:>12}" + "".join(f"{name[:3]:>7} {name[4:]}" for name in names),
    ]
    for name, one in zip(names, parts, strict=True):
        lines += [""] * (name == "GPU 00" and cpus > 0)
        cells = "".join(f"{rate(one, there):10.2f}" for there in parts)
        lines.append(f"{name[:3]:>5} {name[4:]}  ->{cells}")
    lines.append(" " * 25 + "  CPU->CPU  CPU->GPU  GPU->CPU  GPU->GPU")
    return "\n".join([*lines, "Averages (During UniDir):     42.00     52.00     55.20     48.40", ""])


def both_ways(rate: Rate, order: list[int] = HIP) -> str:
    """Return the bidirectional matrix in the form of a public run on eight MI350X (v1.62)."""
    names, parts = [f"GPU {n:02d}" for n in range(len(order))], [f"gpu{gpu}" for gpu in order]
    lines = [
        "Bytes Per Direction 67108864",
        "Bidirectional copy peak bandwidth GB/s [Local read / Remote write] (GPU-Executor: GFX)",
        f"{chr(32) * 5}SRC\\DST" + "".join(f"{name[:3]:>7} {name[4:]}" for name in names),
    ]
    for name, own in zip(names, parts, strict=True):
        for arrow, scale in ((" ->", 0.5), ("<- ", 0.5), ("<->", 1.0)):
            cells = (f"{'N/A':>10}" if own == to else f"{scale * rate(own, to):10.2f}" for to in parts)
            lines.append(f"{name[:3]:>5} {name[4:]} {arrow}{''.join(cells)}")
        lines.append("")
    lines.append(" " * 25 + "  CPU->CPU  CPU->GPU  GPU->CPU  GPU->GPU")
    return "\n".join([*lines, "Averages (During  BiDir):       N/A       N/A       N/A     46.20", ""])


def two_way(one: str, other: str) -> float:
    return 92.2 + 0.1 * (int(one[3:]) - int(other[3:]))


# Totals of AMD's healthy runs on eight MI300X (v1.52) and eight MI350X (v1.62), and of v1.67.
RECEIVED = (
    "- Copying 67108864 bytes between directly connected pairs of GPUs using 8 CUs (56 Transfers)\n\n"
    "RTotal 244.827    249.288    252.334    255.749    251.169    255.639    248.357    246.077   "
    "   2003.440     199.797     266.935\n\nAverage   bandwidth (GPU Timed):   35.776 GB/s\n"
)
MI350X = (
    "RTotal  359.786    360.074    359.978    359.793    360.180    360.278    359.282    359.981   "
    "   2879.354     354.785     357.285\n"
)
BOXED = "│  RTotal │ 326.11   325.01   326.48   324.77   324.87   326.37   324.68   326.75 │    2605.03 │\n"


def linked(known: dict[str, Any], wired: Mapping[tuple[int, int], int] | None = None) -> dict[str, Any]:
    """Add xGMI links to these facts, as the driver and its topology report them (default: all pairs)."""
    count = len(known["amdgpu.devices"])
    for own, entry in enumerate(known["amdgpu.devices"]):
        row = [
            0 if own == peer else 1 if wired is None else wired.get((min(own, peer), max(own, peer)), 0)
            for peer in range(count)
        ]
        entry["xgmi_row"] = " ".join(map(str, row))
        entry["xgmi_to"] = " ".join(ADDRESSES[peer] for peer, links in enumerate(row) if links)
    return known


def run(name: str, text: str, **more: Any) -> Output:
    return output(name, text, argv=("/opt/rocm/bin/TransferBench", "p2p", "64M"), **more)


def shown(rate: Rate = mi300x, order: list[int] = HIP, again: Rate | None = None) -> dict[str, Output]:
    """Return the outputs of the commands of p2p_bandwidth."""
    outputs = {transferbench.TOPOLOGY: run(transferbench.TOPOLOGY, topology(order))}
    for suffix, one in (("", rate), ("_again", again or rate)):
        for kind, reads in (("write", False), ("read", True)):
            name = f"transferbench_{kind}{suffix}"
            outputs[name] = run(name, matrix(one, reads=reads, order=order))
    if len(order) > 1:
        outputs["p2p_both_ways"] = run("p2p_both_ways", both_ways(two_way, order))
        outputs["all_to_all"] = run("all_to_all", RECEIVED)
    return outputs


def judged(outputs: Mapping[str, Output], known: dict[str, Any] | None = None) -> list[Finding]:
    node = node_of(known or linked(facts()))
    raw = Raw("gpu-01", p2p_bandwidth.ID, tuple(outputs.values()))
    return list(node_judge.judge_check(node, raw, node.limits()).findings)


def rates(outputs: Mapping[str, Output], node: NodeFacts | None = None) -> dict[tuple[str, str], Any]:
    node = node or node_of(linked(facts()))
    found = p2p_bandwidth.parse(node.check_node, outputs)
    return {(one.metric, one.device): one.value for one in found}


def test_a_healthy_node_passes() -> None:
    findings = judged(shown())
    assert said(findings) == set()
    metrics = ["all_to_all", "d2h", "h2d", "p2p_both_ways", "p2p_read", "p2p_write"]
    assert sorted(one.metric for one in findings) == metrics


TWO_WAY: list[tuple[Rate, Said]] = [
    # A link that is slow only when both directions are busy, and a pair that was slow in one run of two.
    (
        slow({("gpu2", "gpu6"): 60.0, ("gpu6", "gpu2"): 61.0}, two_way),
        {("fail", "gpu2-gpu6", "p2p_both_ways", "reset GPU")},
    ),
    (slow({("gpu3", "gpu6"): 79.33}, two_way), set()),
]


@pytest.mark.parametrize(("rate", "found"), TWO_WAY, ids=["slow", "slow once"])
def test_copies_both_ways_at_once_have_their_own_limit(rate: Rate, found: Said) -> None:
    """In a public run of eight healthy MI350X, GPU 03 and GPU 06 reached 79.33 once and 109.03 once."""
    outputs = shown() | {"p2p_both_ways": run("p2p_both_ways", both_ways(rate))}
    assert said(judged(outputs)) == found


@pytest.mark.parametrize(
    ("text", "average"), [(RECEIVED, 35.776), (MI350X, 51.417), (BOXED, 46.518)], ids=["1.52", "1.62", "1.67"]
)
def test_the_average_of_all_copies_at_once(text: str, average: float) -> None:
    outputs = shown() | {"all_to_all": run("all_to_all", text)}
    assert rates(outputs)["all_to_all", "node"] == pytest.approx(average, abs=0.01)
    assert said(judged(outputs)) == set()


def test_slow_copies_of_all_gpus_at_once_fail_where_no_pair_explains_it() -> None:
    slower = "RTotal" + "    200.000" * 8 + "      1600.000     199.797     266.935\n"
    outputs = shown() | {"all_to_all": run("all_to_all", slower)}
    assert said(judged(outputs)) == {("fail", "node", "all_to_all", "investigate")}
    pair = shown(slow({("gpu2", "gpu6"): 24.0})) | {"all_to_all": run("all_to_all", slower)}
    assert said(judged(pair)) == {("fail", "gpu2-gpu6", "p2p_read", "reset GPU")}


@pytest.mark.parametrize(
    "text", ["", RECEIVED.replace("2003.440", "1003.440"), RECEIVED.replace("RTotal", "X")]
)
def test_all_copies_at_once_without_a_total_are_an_error(text: str) -> None:
    findings = judged(shown() | {"all_to_all": run("all_to_all", text)})
    assert [one.verdict for one in findings] == [Verdict.ERROR]


def test_a_gpu_keeps_its_name_whatever_hip_calls_it() -> None:
    """Data flows from the row to the column, and HIP's GPU 00 is the node's gpu3."""
    found = rates(shown(slow({("gpu3", "gpu0"): 40.0, ("gpu5", "cpu0"): 11.0, ("gpu5", "cpu1"): 12.0})))
    assert found["p2p_write", "gpu3->gpu0"] == found["p2p_read", "gpu3->gpu0"] == 40.0
    assert found["p2p_write", "gpu0->gpu3"] > 47
    assert found["d2h", "gpu5"] == 12.0, "the processor beside the GPU is the faster one"
    assert found["h2d", "gpu5"] == 52.0


@pytest.mark.parametrize("newer", [False, True])
def test_both_lists_of_devices_are_known(newer: bool) -> None:
    text = run(transferbench.TOPOLOGY, topology(HIP, newer=newer))
    names = transferbench.devices(node_of(facts()).check_node, {transferbench.TOPOLOGY: text})
    assert [names[f"GPU {n:02d}"] for n in range(8)] == [f"gpu{gpu}" for gpu in HIP]


def test_each_direction_is_read_of_the_run_in_which_a_gpu_copies() -> None:
    def writes(one: str, other: str) -> float:
        return mi300x(one, other) - 5 * ("gpu" in one + other)

    outputs = shown()
    for suffix in ("", "_again"):
        name = f"transferbench_write{suffix}"
        outputs[name] = run(name, matrix(writes, reads=False))
    found = rates(outputs)
    assert (found["h2d", "gpu0"], found["d2h", "gpu0"]) == (52.0, 50.2)
    assert found["p2p_write", "gpu1->gpu0"] + 5 == pytest.approx(found["p2p_read", "gpu1->gpu0"])


SLOW: list[tuple[Rate, Said]] = [
    # A link at half its rate, in both directions and in one.
    (
        slow({("gpu2", "gpu6"): 24.0, ("gpu6", "gpu2"): 24.3}),
        {("fail", "gpu2-gpu6", "p2p_read", "reset GPU")},
    ),
    (slow({("gpu2", "gpu6"): 24.0}), {("fail", "gpu2-gpu6", "p2p_read", "reset GPU")}),
    # Slower than its peers, yet above AMD's limit.
    (slow({("gpu2", "gpu6"): 39.0}), {("warn", "gpu2-gpu6", "p2p_read", "reset GPU")}),
    (slow({("gpu2", "gpu6"): 43.0}), set()),
    # A slow GPU, and a slot at half its width.
    (
        slow({(f"gpu{a}", f"gpu{b}"): 20.0 for a in range(8) for b in range(8) if a != b and 4 in (a, b)}),
        {("fail", "gpu4", "p2p_read", "reset GPU")},
    ),
    (
        slow(
            {("gpu4", "cpu0"): 27.0, ("gpu4", "cpu1"): 27.5, ("cpu0", "gpu4"): 26.0, ("cpu1", "gpu4"): 26.0}
        ),
        {("fail", "gpu4", metric, "reseat or check cable") for metric in ("h2d", "d2h")},
    ),
    (
        lambda one, other: mi300x(one, other) * (0.5 if one != other and "cpu" not in one + other else 1),
        {("fail", "node", "p2p_read", "investigate")},
    ),
]


@pytest.mark.parametrize(("rate", "found"), SLOW, ids=range(len(SLOW)))
def test_what_is_slow_is_named(rate: Rate, found: Said) -> None:
    assert said(judged(shown(rate))) == found


def test_a_pair_that_was_slow_once_is_not() -> None:
    """AMD's own run of eight MI350X has one pair of 56 at 46.66 GB/s and all others at 57.5."""
    once = slow({("gpu7", "gpu1"): 20.0})
    assert said(judged(shown(once, again=mi300x))) == set()
    assert said(judged(shown(mi300x, again=once))) == set()


def test_pairs_of_modules_are_compared_with_those_of_as_many_links() -> None:
    known = linked(facts(), MI200)
    for device in known["gpu.pci"]:
        device["device_id"] = "1002:7408"

    def accused(rate: Rate) -> set[tuple[str, str]]:
        found = judged(shown(rate, order=list(range(8))), known)
        assert not [one for one in found if one.verdict is Verdict.FAIL], "nobody published limits"
        return {(one.device, one.metric) for one in found if "-" in one.device}

    assert accused(mi200) == set(), "four links, two, one and none differ by design"
    assert accused(slow({("gpu0", "gpu1"): 50.0}, mi200)) == {("gpu0-gpu1", "p2p_read")}, "of four links"
    assert accused(slow({("gpu0", "gpu6"): 35.0}, mi200)) == {("gpu0-gpu6", "p2p_read")}, "faster than others"
    assert accused(slow({("gpu0", "gpu3"): 9.0}, mi200)) == set(), "without a link of its own"
    for device in known["amdgpu.devices"]:
        device["xgmi_row"] = None
    assert accused(slow({("gpu0", "gpu1"): 50.0}, mi200)) == set()
    assert ("warn", "node", "links", "investigate") in said(judged(shown(mi200, order=list(range(8))), known))


def test_a_limit_condemns_no_pair_that_may_have_no_link() -> None:
    """One GPU of eight is missing, and two sources disagree about the links of the others."""
    known = linked(facts())
    rate = slow({("gpu0", "gpu1"): 20.0})
    assert ("fail", "gpu0-gpu1", "p2p_read", "reset GPU") in said(judged(shown(rate), known))
    known["amdgpu.devices"][0]["xgmi_row"] = "1 0 1 1 1 1 1 1"
    found = said(judged(shown(rate), known))
    assert ("warn", "node", "links", "investigate") in found
    assert not [one for one in found if one[0] == "fail"]


def test_links_are_believed_where_two_sources_agree() -> None:
    def counted(known: dict[str, Any]) -> dict[tuple[str, str], int] | None:
        return devices.links(node_of(known).check_node)

    wired = counted(linked(facts(), MI200))
    assert wired is not None
    assert (wired["gpu0", "gpu1"], wired["gpu6", "gpu0"], wired["gpu0", "gpu7"]) == (4, 2, 0)
    strange: list[dict[str, Any]] = []
    for row in ("1 0 1 1 1 1 1 1", "0 1 1", "0 2 1 1 1 1 1 1", "a", None, 5):
        one = linked(facts())
        one["amdgpu.devices"][0]["xgmi_row"] = row
        strange.append(one)
    moved = linked(facts(), MI200)  # the driver enumerated the GPUs in another order than the bus
    rows = [one["xgmi_row"] for one in moved["amdgpu.devices"]]
    for entry, row in zip(moved["amdgpu.devices"], rows[1:] + rows[:1], strict=True):
        entry["xgmi_row"] = row
    other = linked(facts())
    other["amdgpu.devices"][0]["xgmi_to"] = " ".join(ADDRESSES[1:7])
    assert [counted(one) for one in (*strange, moved, other)] == [None] * 8


def test_cards_in_several_hives() -> None:
    """The driver's row of a card covers only its own hive, here two hives of four cards."""
    known = facts()
    for index, entry in enumerate(known["amdgpu.devices"]):
        first = 4 * (index // 4)
        row = [int(index != other) for other in range(first, first + 4)]
        entry["xgmi_row"] = " ".join(map(str, row))
        entry["xgmi_to"] = " ".join(ADDRESSES[other] for other in range(first, first + 4) if other != index)
    counts = devices.links(node_of(known).check_node)
    assert counts is not None
    assert {pair for pair, count in counts.items() if count} == {
        (f"gpu{a}", f"gpu{b}") for a in range(8) for b in range(8) if a != b and a // 4 == b // 4
    }

    def rate(one: str, other: str) -> float:
        near = "cpu" in one + other or int(one[3:]) // 4 == int(other[3:]) // 4
        return mi300x(one, other) if near else 21.0

    assert {one for one in said(judged(shown(rate), known)) if one[2] != "p2p_read"} == set()
    known["amdgpu.devices"][0].update(xgmi_row=None, xgmi_to="")
    assert devices.links(node_of(known).check_node) is None, "the others of its hive say otherwise"


def test_cards_without_links_have_none() -> None:
    known = facts()
    for entry in known["amdgpu.devices"]:
        entry.update(xgmi_row=None, xgmi_to="")
    counts = devices.links(node_of(known).check_node)
    assert counts is not None
    assert set(counts.values()) == {0}
    # For cards without a bridge and for an MI350P, RunAllToAllBenchmark ends before its table.
    none = "- Copying 268435456 bytes between directly connected pairs of GPUs using 8 CUs (0 Transfers)\n"
    outputs = shown() | {"all_to_all": run("all_to_all", none)}
    assert said(judged(outputs, known)) == set()
    assert {one.metric for one in judged(outputs, known) if one.verdict is Verdict.PASS} >= {"h2d", "d2h"}
    assert said(judged(outputs)) == {("error", "node", "all_to_all", "investigate")}, "but it has links"


CORRUPT = (
    "\n[ERROR] Unexpected mismatch at index 12 of destination array 0:\n",
    "[ERROR] Transfer 0: Unexpected mismatch at index 0 of destination 0: Expected   31.0 Actual: 0.0\n",
)


@pytest.mark.parametrize("words", CORRUPT)
@pytest.mark.parametrize("check", [p2p_bandwidth, memory_bandwidth])
def test_data_that_arrives_corrupted_fails(check: Any, words: str) -> None:
    outputs = shown() | {"transferbench_local": run("transferbench_local", words, rc=1)}
    outputs["transferbench_read"] = run("transferbench_read", words, rc=1)
    node = node_of(linked(facts())).check_node
    (finding,) = check.judge(node, check.parse(node, outputs), {})
    assert (finding.verdict, finding.metric, finding.device) == (Verdict.FAIL, "corrupt", "node")
    assert "Unexpected mismatch at index" in finding.message


WHOLE = matrix(mi300x, reads=False)


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        (WHOLE[: len(WHOLE) * 6 // 10], {}, "stops before its end"),
        (WHOLE.partition("Averages")[0], {}, "stops before its end"),
        (WHOLE.replace("  GPU 05  ->", "  GPU 05  <-"), {}, "a matrix of 9 by 10 devices does not fit"),
        (WHOLE.replace("GPU 07", "GPU 09"), {}, "does not fit"),
        (WHOLE.replace("     48.", "    -48."), {}, "does not fit"),
        (WHOLE.replace(" 1690.00", "     nan"), {}, "does not fit"),
        (WHOLE.replace("  1690.00", "     0.00"), {}, "0.00 is not a bandwidth"),
        (WHOLE.replace("SRC+EXE\\DST", "SRC/DST"), {}, "header of its matrix is not known"),
        (WHOLE.replace("Unidirectional", "One-way"), {}, "no such matrix"),
        (matrix(mi300x, reads=True), {}, "no such matrix"),
        (WHOLE, {"truncated": True}, "cut at its size limit"),
        (WHOLE, {"rc": 139}, "ended with status 139"),
        (WHOLE + "[ERROR] Unable to enable peer access from GPU devices 1 to 0\n", {}, "peer access"),
        ("", {}, "no such matrix: nothing printed"),
        ("", {"rc": None, "timed_out": True}, "did not end within"),
        ("", {"rc": None, "not_started": "TransferBench is not installed"}, "did not start"),
    ],
)
def test_a_run_without_a_whole_matrix_is_an_error(text: str, more: dict[str, Any], words: str) -> None:
    outputs = shown()
    outputs["transferbench_write"] = run("transferbench_write", text, **more)
    findings = judged(outputs)
    assert [(one.verdict, one.device) for one in findings] == [(Verdict.ERROR, "node")]
    assert words in findings[0].message


@pytest.mark.parametrize(
    "order",
    [HIP[:7], [*HIP[:7], 3], []],
    ids=["one is hidden", "one is there twice", "none is listed"],
)
def test_other_gpus_than_the_nodes_are_refused(order: list[int]) -> None:
    outputs = shown() | {transferbench.TOPOLOGY: run(transferbench.TOPOLOGY, topology(order))}
    with pytest.raises(ParseError, match=r"sees the GPUs|lists no GPUs"):
        p2p_bandwidth.parse(node_of(facts()).check_node, outputs)


@pytest.mark.parametrize("check", [p2p_bandwidth, memory_bandwidth])
def test_partitioned_gpus_are_a_skip_and_nothing_runs(check: Any) -> None:
    known = linked(facts())
    known["amdgpu.devices"][3]["compute_partition"] = "CPX"
    node = node_of(known).check_node
    assert check.commands(node, {}) == []
    (finding,) = check.judge(node, check.parse(node, {}), {})
    assert (finding.verdict, finding.metric) == (Verdict.SKIP, "partition")


def test_one_gpu_has_no_pair() -> None:
    findings = judged(shown(order=[0]), linked(facts(1)))
    assert [one.message for one in findings if one.verdict is Verdict.SKIP] == [
        "one GPU: there is no pair to measure"
    ]
    assert said(findings) == set()


def test_the_runs_are_asked_for_in_both_directions_and_from_the_declared_place() -> None:
    node = node_of(facts(), amd_validation_tools_transferbench_path="/opt/tb/TransferBench").check_node
    first, *runs = p2p_bandwidth.commands(node, {})
    assert first.argv == ("/opt/tb/TransferBench",)
    presets = [("/opt/tb/TransferBench", name, "64M") for name in ("p2p",) * 5 + ("a2a",)]
    assert [one.argv for one in runs] == presets
    assert [one.env["USE_REMOTE_READ"] for one in runs[:4]] == ["0", "1", "0", "1"]
    assert [one.env["P2P_MODE"] for one in runs[:5]] == ["1", "1", "1", "1", "2"]
    (local,) = memory_bandwidth.commands(node, {})[1:]
    assert (local.argv[1:], local.env["NUM_CPU_DEVICES"]) == (("p2p", "512M"), "0")


# --- memory_bandwidth


def local(rate: Rate) -> list[Finding]:
    node = node_of(linked(facts()))
    outputs = (
        run(transferbench.TOPOLOGY, topology(HIP)),
        run("transferbench_local", matrix(rate, reads=False, cpus=0)),
    )
    raw = Raw("gpu-01", memory_bandwidth.ID, outputs)
    return list(node_judge.judge_check(node, raw, node.limits()).findings)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(1690.0, None), (1640.0, None), (1580.0, "warn"), (1490.0, "fail"), (900.0, "fail")],
)
def test_a_gpu_with_slow_memory_is_named(value: float, verdict: str | None) -> None:
    found = said(local(slow({("gpu5", "gpu5"): value})))
    assert found == ({(verdict, "gpu5", "local_copy", "investigate")} if verdict else set())


def test_of_the_matrix_only_the_diagonal_counts() -> None:
    everything = slow({(f"gpu{a}", f"gpu{b}"): 1.0 for a in range(8) for b in range(8) if a != b})
    assert [one.verdict for one in local(everything)] == [Verdict.PASS]


# --- GPUs that answer after a load


def after(text: dict[str, Any], **more: Any) -> list[Finding]:
    import json

    known = [Finding("p2p_bandwidth", Verdict.PASS, "node", "well")]
    asked = output("gpu_answers", json.dumps(text), **more)
    return gpu_answers.judge("p2p_bandwidth", asked, GPUS, known)[1:]


def test_a_gpu_that_a_test_lost_is_named() -> None:
    text = documents()["static"]
    assert after(text) == []
    gone = copy.deepcopy(text)
    del gone["gpu_data"][3]
    (finding,) = after(gone)
    assert (finding.verdict, finding.device, finding.metric, finding.action) == (
        *(Verdict.FAIL, "gpu3", "lost", "power-cycle"),
    )
    assert "0000:65:00" in finding.message
    assert [one.verdict for one in after({"gpu_data": text["gpu_data"][:3]})] == [Verdict.ERROR]
    assert [one.verdict for one in after(text, rc=None, timed_out=True)] == [Verdict.ERROR]
    assert gpu_answers.judge("x", None, GPUS, []) == []


def test_after_a_load_amd_smi_is_asked_and_not_nvidia_smi() -> None:
    node = node_of(facts()).check_node
    for check in ("p2p_bandwidth", "memory_bandwidth", "nccl_all_reduce"):
        programs = {one.argv[0].rpartition("/")[2] for one in node_judge.commands_for(check, node, {})}
        assert {"amd-smi", "nvidia-smi"} & programs == {"amd-smi"}, check


def test_measurements_say_what_each_pair_has() -> None:
    found = p2p_bandwidth.parse(node_of(linked(facts(), MI200)).check_node, shown())
    assert Measurement("links", 4, "links", "gpu0->gpu1") in found
