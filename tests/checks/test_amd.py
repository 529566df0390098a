"""Checks of AMD GPU nodes, run on facts and documents modelled on real ones.

amd-smi: ROCm/amdsmi (sources and CHANGELOG; the counts of `metric --throttle` there are from an MI300X),
`static` of an MI210 in the tests of ROCm/device-metrics-exporter, `metric` of an MI350X in those of
amd/node-scraper, `metric` of a GPU under load with ROCm 7 in a public reader of it (THROTTLED at its usual
power limit). Kernel lines: amd/node-scraper, and public reports of an MI50 with a failed reset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.checks.health import NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge, registry
from provision.checks.judging.node_facts import node_facts_of
from provision.checks.judging.table import BUILT_IN
from provision.checks.kernel import kernel_incidents, kernel_log
from provision.checks.kernel.vendors import driver_log
from provision.checks.vendors.amd import (
    gpu_burn,
    gpu_inventory,
    rules,
    sensors,
    smi,
    telemetry,
    transferbench,
    versions,
)
from provision.desired import stack
from provision.errors import ParseError
from tests.checks.amd_node import ADDRESSES, GPUS, LOG, Said, documents, facts, node_of, output, said
from tests.support.fleet_versions import judge_fleet


def judged(
    known: Mapping[str, Any], shown: Mapping[str, Any] | None = None, log: str = "", **declared: Any
) -> list[Finding]:
    """Return gpu_inventory's findings. `shown`: amd-smi documents or text; `log`: kernel log lines."""
    node = node_of(known, **declared)
    outputs = [output("dmesg", LOG + log, argv=("dmesg",))]
    outputs += [
        one if isinstance(one, Output) else output(f"amd_smi_{name}", json.dumps(one))
        for name, one in (documents() if shown is None else shown).items()
    ]
    result = node_judge.judge_check(node, Raw("gpu-01", "gpu_inventory", tuple(outputs)), node.limits())
    return list(result.findings)


def test_a_healthy_node_passes_with_what_was_looked_at() -> None:
    findings = judged(facts())
    assert {finding.verdict for finding in findings} == {Verdict.PASS}
    assert {finding.metric for finding in findings} == {
        *("driver_gpus", "name", "memory_total", "pcie_width", "ecc_uncorrectable", "xgmi_links", "xid")
    }


RESEAT, RESET, CYCLE = "reseat or check cable", "reset GPU", "power-cycle"
# (sysfs values that differ on gpu3, expected findings)
BROKEN: list[tuple[dict[str, Any], Said]] = [
    ({"uncorrected": 2, "blocks": "umc ue 2"}, {("fail", "gpu3", "ecc_uncorrectable", RESET)}),
    ({"deferred": 1, "blocks": "umc de 1"}, {("warn", "gpu3", "ecc_deferred", "watch")}),
    ({"bad_pages": 1, "bad_pages_in_use": 1}, {("fail", "gpu3", "bad_pages_in_use", RESET)}),
    ({"bad_pages": 116}, {("warn", "gpu3", "bad_pages", "watch")}),
    ({"bad_pages": 128}, {("fail", "gpu3", "bad_pages", "replace part")}),
    ({"link_width": 8}, {("fail", "gpu3", "pcie_width", RESEAT)}),
    ({"link_speed": "16.0 GT/s PCIe"}, {("fail", "gpu3", "pcie_speed", RESEAT)}),
    ({"link_speed": "Unknown", "link_width": 0}, {("error", "gpu3", "", "investigate")}),
    ({"memory_bytes": 98 * 2**30}, {("fail", "gpu3", "memory_total", "replace part")}),
    ({"compute_units": 228}, {("fail", "gpu3", "compute_units", "replace part")}),
    ({"compute_units": None}, {("fail", "gpu3", "compute_units", RESET)}),
    (
        {"uncorrected": None, "unread": "umc: Query currently inaccessible"},
        {("error", "gpu3", "", "investigate")},
    ),
    ({"vbios": "113-M3000100-103"}, {("warn", "gpu3", "vbios", "fix configuration")}),
    ({"compute_partition": "CPX"}, {("warn", "gpu3", "partition", "fix configuration")}),
    (
        {"driver": None},
        {("fail", "gpu3", "untaken", CYCLE), ("fail", "node", "driver_gpus", RESEAT)},
    ),
    ({"xgmi_links": 4}, {("fail", "gpu3", "xgmi_links", RESET)}),
    # Healthy values and unreadable ones.
    ({"corrected": 12, "blocks": "umc ce 12"}, set()),
    ({"bad_pages": 8}, set()),
    ({"xgmi_links": None}, {("error", "gpu3", "", "investigate")}),
]


@pytest.mark.parametrize(
    ("differs", "found"), BROKEN, ids=lambda one: next(iter(one)) if isinstance(one, dict) else ""
)
def test_what_the_driver_says_of_one_gpu(differs: dict[str, Any], found: Said) -> None:
    known = facts()
    known["amdgpu.devices"][3] |= differs
    assert said(judged(known)) == found


@pytest.mark.parametrize(
    ("pages", "threshold", "found"),
    [
        (300, 256, {("fail", "gpu3", "bad_pages", "replace part")}),
        (240, 256, {("warn", "gpu3", "bad_pages", "watch")}),
        (240, 655, set()),
        (8, 8, {("fail", "gpu3", "bad_pages", "replace part")}),
        (240, None, {("warn", "gpu3", "bad_pages", "watch")}),
        (8, None, set()),
    ],
)
def test_bad_pages_where_amd_smi_gives_no_threshold(pages: int, threshold: int | None, found: Said) -> None:
    """The source is debugfs or the module parameter, since amd-smi of ROCm 6.1 to 6.3 prints no threshold."""
    known, shown = facts(), documents()
    for entry in shown["static"]["gpu_data"]:
        del entry["ras"]["bad_page_threshold"]
    known["amdgpu.devices"][3] |= {"bad_pages": pages, "bad_page_threshold": threshold}
    findings = judged(known, shown)
    assert said(findings) == found
    told = [f for f in findings if f.metric == "bad_pages" and "is not known" in f.message]
    assert bool(told) is (threshold is None)


def test_an_error_names_its_blocks() -> None:
    known = facts()
    known["amdgpu.devices"][3] |= {"uncorrected": 3, "blocks": "umc ue 2, umc ce 7, gfx ue 1"}
    messages = [finding.message for finding in judged(known) if finding.verdict is Verdict.FAIL]
    assert messages == ["3 uncorrectable errors since the driver was loaded (umc 2, gfx 1)"]


# A value that all GPUs share flags the node, not a GPU.
SHARED: list[tuple[dict[str, Any], Said]] = [
    ({"link_speed": "16.0 GT/s PCIe"}, {("warn", "node", "pcie_speed", "fix configuration")}),
    (
        {"uncorrected": None, "unread": "no counters"},
        {("warn", "node", "ecc_uncorrectable", "fix configuration")},
    ),
    ({"compute_units": None}, {("fail", "node", "compute_units", RESET)}),
    ({"compute_partition": "CPX", "memory_partition": "NPS4", "memory_bytes": 24 * 2**30}, set()),
    ({"bad_pages": None, "bad_pages_in_use": None}, set()),
]


@pytest.mark.parametrize(("differs", "found"), SHARED)
def test_what_all_gpus_share(differs: dict[str, Any], found: Said) -> None:
    known = facts()
    for one in known["amdgpu.devices"]:
        one |= differs
    assert said(judged(known)) == found


def changed(command: str, path: str, value: Any, gpu: int = 3) -> dict[str, Any]:
    """Return the healthy documents with one value of one GPU replaced."""
    shown = documents()
    rows = shown[command]
    entry = (rows if isinstance(rows, list) else next(iter(rows.values())))[gpu]
    *parents, last = path.split(".")
    for name in parents:
        entry = entry[name]
    entry[last] = value
    return shown


def degrees(value: int) -> dict[str, Any]:
    return {"value": value, "unit": "C"}


OF_TOOL: list[tuple[dict[str, Any], Said]] = [
    (
        changed("metric", "throttle.prochot_violation_status", "ACTIVE"),
        {("fail", "gpu3", "throttle", "investigate")},
    ),
    (
        changed("metric", "throttle.socket_thermal_violation_status", "ACTIVE"),
        {("warn", "gpu3", "throttle", "investigate")},
    ),
    # A fully loaded GPU reaches its power limit.
    (changed("metric", "throttle.ppt_violation_status", "ACTIVE"), set()),
    (changed("metric", "temperature.hotspot", degrees(70)), {("warn", "gpu3", "temperature", "investigate")}),
    (
        changed("metric", "temperature.mem", degrees(70)),
        {("warn", "gpu3", "memory_temperature", "investigate")},
    ),
    (changed("metric", "temperature.hotspot", "N/A"), {("error", "gpu3", "", "investigate")}),
    (
        changed("static", "limit.socket_power", {"value": 500, "unit": "W"}),
        {("fail", "gpu3", "power_limit", "fix configuration")},
    ),
    (
        changed("static", "ras.ecc_block_state.UMC", "DISABLED"),
        {("warn", "gpu3", "ecc_mode", "fix configuration")},
    ),
    (
        changed("static", "asic.market_name", "AMD Instinct MI308X"),
        {("fail", "gpu3", "name", "replace part")},
    ),
    (changed("later", "pcie.replay_count", 14), {("fail", "gpu3", "pcie_replays_more", RESEAT)}),
    (changed("later", "pcie.replay_count", 13), set()),
    (changed("later", "pcie.replay_count", "N/A"), set()),
    (changed("xgmi", "link_status", [*"UUUUUUD", "X"]), {("fail", "gpu3", "xgmi_up", RESET)}),
    (changed("xgmi", "link_status", ["N/A"] * 8), {("error", "gpu3", "", "investigate")}),
    (changed("metric", "throttle", "N/A"), {("error", "gpu3", "", "investigate")}),
    (changed("metric", "temperature.mem", "N/A"), {("error", "gpu3", "", "investigate")}),
    (changed("static", "limit", "N/A"), {("error", "gpu3", "", "investigate")}),
    (
        changed("process", "process_list", [{"process_info": {"name": "python3", "pid": 77}}]),
        {("warn", "gpu3", "processes", "investigate")},
    ),
    (
        changed("process", "process_info", {"name": "python3", "pid": 77}),  # ROCm 6.1
        {("warn", "gpu3", "processes", "investigate")},
    ),
    (changed("process", "process_list", [{"process_info": {"name": "gpuagent", "pid": 77}}]), set()),
    (changed("process", "process_info", "No running processes detected"), set()),  # ROCm 6.1
]


@pytest.mark.parametrize(("shown", "found"), OF_TOOL)
def test_what_amd_smi_says_of_one_gpu(shown: dict[str, Any], found: Said) -> None:
    assert said(judged(facts(), shown)) == found


def test_a_gpu_at_work_is_no_peer_of_those_at_rest() -> None:
    shown = changed("metric", "temperature.hotspot", degrees(88))
    shown["metric"]["gpu_data"][3]["temperature"]["mem"] = degrees(90)
    shown["metric"]["gpu_data"][3]["usage"]["gfx_activity"] = {"value": 91, "unit": "%"}
    assert said(judged(facts(), shown)) == set()


def by_gpu(states: Mapping[tuple[int, int], str], links: str = "U", count: int = 8) -> list[dict[str, Any]]:
    """Return the `xgmi -l` output of ROCm 7.1 and newer: the link state from each GPU to every GPU."""
    return [
        {
            "gpu": source,
            "bdf": ADDRESSES[source],
            "link_status": [
                "SELF" if source == peer else states.get((source, peer), links) for peer in range(count)
            ],
        }
        for source in range(count)
    ]


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ({}, set()),
        ({(2, 5): "D", (5, 2): "D"}, {("fail", "gpu2-gpu5", "xgmi_down", RESET)}),
        ({(2, 5): "X", (5, 2): "U"}, {("fail", "gpu2-gpu5", "xgmi_down", RESET)}),
        # One end or both had no room to report the link.
        ({(2, 5): "N/A"}, set()),
        ({(2, 5): "N/A", (5, 2): "N/A"}, set()),
        ({(2, 5): "N/A", (5, 2): "D"}, {("fail", "gpu2-gpu5", "xgmi_down", RESET)}),
        ({pair: "D" for n in range(8) for pair in ((n, 3), (3, n))}, {("fail", "gpu3", "xgmi_down", RESET)}),
    ],
)
def test_links_as_newer_releases_print_them(states: Mapping[tuple[int, int], str], found: Said) -> None:
    assert said(judged(facts(), {**documents(), "xgmi": {"link_status": by_gpu(states)}})) == found


def test_two_links_between_each_two_of_four() -> None:
    def down(states: Mapping[tuple[int, int], str]) -> dict[str, Any]:
        names = {n: f"gpu{n}" for n in range(4)}
        found = sensors.of_links(by_gpu(states, "U/U", 4), names)
        return {m.device: m.value for m in found if m.metric == "xgmi_down"}

    # The firmware of an MI300A has room for four of its six links.
    ends = {(0, 3): "N/A", (1, 3): "N/A", (2, 3): "N/A", (3, 2): "N/A"}
    assert down(ends) == dict.fromkeys(("gpu0", "gpu1", "gpu2", "gpu3"), 0)
    assert down({**ends, (3, 1): "U/D"}) == {"gpu0": 0, "gpu1": 1, "gpu2": 0, "gpu3": 1}
    assert down({(a, b): "N/A" for a in range(4) for b in range(4)}) == {}, "an MI200 tells nothing"


def test_links_that_had_no_room_are_not_missing() -> None:
    """With four slots for six links, the state of the remaining two is unknown."""
    values: dict[str, dict[str, Any]] = {
        "xgmi_links": {f"gpu{n}": 6 for n in range(4)},
        "xgmi_up": {"gpu0": 4, "gpu1": 4, "gpu2": 4, "gpu3": 2},
        "xgmi_told": {f"gpu{n}": 4 for n in range(4)},
    }
    node = node_of(facts()).check_node
    assert not [one for one in rules.judge_xgmi(node, values) if one.metric == "xgmi_up"]
    assert [
        one.device for one in rules.judge_xgmi(node, {**values, "xgmi_told": {}}) if one.metric == "xgmi_up"
    ] == ["gpu3"]


def test_memory_that_is_the_processors_is_not_without_ecc() -> None:
    shown = documents()
    blocks = dict.fromkeys(("SDMA", "GFX", "MMHUB"), "ENABLED")
    for one in shown["static"]["gpu_data"]:
        one["ras"]["ecc_block_state"] = {"UMC": "DISABLED", **blocks, "XGMI_WAFL": "DISABLED"}
    assert said(judged(facts(), shown)) == set()
    for one in shown["static"]["gpu_data"]:
        one["ras"]["ecc_block_state"]["XGMI_WAFL"] = "ENABLED"
    assert said(judged(facts(), shown)) == {("warn", "node", "ecc_mode", "fix configuration")}


def test_a_limit_of_power_that_is_declared() -> None:
    shown = changed("static", "limit.socket_power", {"value": 500, "unit": "W"})
    for one in shown["static"]["gpu_data"]:
        one["limit"]["socket_power"] = {"value": 500, "unit": "W"}
    assert said(judged(facts(), shown, amd_gpu_settings_power_limit=500)) == set()
    found = said(judged(facts(), shown, amd_gpu_settings_power_limit=600))
    assert found == {("fail", "node", "power_limit", "fix configuration")}


def test_newer_limits_of_power_are_those_of_ppt0() -> None:
    shown = documents()
    for index, one in enumerate(shown["static"]["gpu_data"]):
        watts = {"value": 700 if index == 5 else 1400, "unit": "W"}
        one["limit"] = {
            "ppt0": {"socket_power_limit": watts, "max_power_limit": {"value": 1400, "unit": "W"}}
        }
        one["limit"]["ppt1"] = {"socket_power_limit": "N/A", "max_power_limit": "N/A"}
    assert said(judged(facts(), shown)) == {("fail", "gpu5", "power_limit", "fix configuration")}


def test_a_link_that_is_lost_is_missing_at_both_ends_and_names_the_pair() -> None:
    shown = changed("xgmi", "link_status", [*"UUDUUUU", "X"], 1)
    shown["xgmi"]["link_status"][6]["link_status"] = [*"UUUUDUU", "X"]
    assert said(judged(facts(), shown)) == {("fail", "gpu1-gpu6", "xgmi_up", RESET)}
    known = facts()
    for index in (1, 6):
        known["amdgpu.devices"][index]["xgmi_links"] = 6
    assert said(judged(known)) == {("fail", "gpu1-gpu6", "xgmi_links", RESET)}


def test_a_gpu_that_lost_its_links_is_accused_and_not_its_peers() -> None:
    shown = documents()
    for index, row in enumerate(shown["xgmi"]["link_status"]):
        row["link_status"] = [*"DDDUUUU", "X"] if index == 2 else row["link_status"]
        if index in (0, 1, 3):
            row["link_status"] = [*"UUUUUUD", "X"]
    assert said(judged(facts(), shown)) == {("fail", "gpu2", "xgmi_up", RESET)}


def test_links_that_read_down_on_every_gpu_were_never_wired() -> None:
    """AMD's own example has `GPU0 0000:08:00.0 U U U U D U D X`, and the same states for GPU1."""
    shown = documents()
    for row in shown["xgmi"]["link_status"]:
        row["link_status"] = [*"UUUUDUD", "X"]
    assert said(judged(facts(), shown)) == set()


@pytest.mark.parametrize(("count", "bad"), [(8, False), (4, False), (1, False), (7, True), (3, True)])
def test_as_many_gpus_as_a_board_or_a_part_of_it_has(count: int, bad: bool) -> None:
    known = facts(count)
    for one in known["amdgpu.devices"]:
        one["xgmi_links"] = count - 1
    found = said(judged(known, documents(count)))
    assert found == ({("fail", "node", "driver_gpus", RESEAT)} if bad else set())


def test_a_declared_count_is_what_counts() -> None:
    known = facts(7)
    for one in known["amdgpu.devices"]:
        one["xgmi_links"] = 6
    assert said(judged(known, documents(7), gpuprov_expected_gpus=7)) == set()
    assert said(judged(facts(), gpuprov_expected_gpus=4)) == {("fail", "node", "driver_gpus", RESEAT)}


def test_a_gpu_that_amd_smi_leaves_out_does_not_answer() -> None:
    shown = documents()
    for name in ("static", "metric", "later"):
        del shown[name]["gpu_data"][3]
    assert said(judged(facts(), shown)) == {
        ("fail", "gpu3", "unanswered", CYCLE),
        ("fail", "node", "driver_gpus", RESEAT),
    }


# --- what could not be measured is an error, and never a pass


# Output of amd-smi 6.1.2 (Debian 13) without the driver.
NO_DRIVER = """\
ERROR: Unable to get devices, driver not initialized (amdgpu not found in modules)
ERROR: Unable to detect any GPU devices, check amdgpu version and module status
ERROR: Unable to detect any CPU devices, check amd_hsmp version and module status
"""


def broken(text: str = "", **more: Any) -> dict[str, Output]:
    names = ("static", "metric", "xgmi", "process", "later")
    return {name: output(f"amd_smi_{name}", text, **more) for name in names}


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (broken(NO_DRIVER, rc=255), "driver not initialized"),
        (broken(""), "amd-smi gave no document: nothing printed"),
        (broken('{"gpu_data": [{"gpu": 0,'), "amd-smi gave no document"),
        (broken('{"error": "Driver not initialized", "code": 32}'), "failed: Driver not initialized"),
        (broken('{"devices": []}'), "prints no list of GPUs"),
        (broken("[5]"), "prints no list of GPUs"),
        (broken('[{"gpu": 0}, {"gpu": 0}]'), "does not number the GPUs"),
        (broken('[{"gpu": 0, "gpu": 1}]'), "amd-smi gave no document"),
        (broken('[{"gpu": 0, "bus": {}}]'), "gives a GPU without its address"),
        # Debian's amd-smi printed this for each of eight GPUs on a lab node.
        (broken('[{"gpu": 0, "bus": {"bdf": "746974726170:5f:0c.5"}}]'), "address of no GPU on the PCI bus"),
        (broken("[]"), "address of no GPU on the PCI bus"),
        (broken(rc=None, timed_out=True), "did not end within"),
        (broken(not_started="amd-smi is not installed"), "did not start: amd-smi is not installed"),
        (broken("[]", truncated=True), "cut at its size limit"),
        ({}, "the output of amd-smi static is missing"),
    ],
)
def test_amd_smi_that_gives_no_answer(shown: dict[str, Any], words: str) -> None:
    findings = judged(facts(), shown)
    errors = [finding for finding in findings if finding.verdict is Verdict.ERROR]
    assert any(words in finding.message for finding in errors), [finding.message for finding in findings]
    assert {finding.device for finding in errors} == {"node"}
    assert all(finding.verdict is not Verdict.FAIL for finding in findings), "what sysfs says is well"


def test_one_reason_is_told_once() -> None:
    assert len([f for f in judged(facts(), broken(NO_DRIVER, rc=255)) if f.verdict is Verdict.ERROR]) == 1


@pytest.mark.parametrize(
    ("state", "found"), [("X", {("warn", "node", "xgmi_up", "investigate")}), ("N/A", set())]
)
def test_links_of_which_none_is_up_are_not_called_up(state: str, found: Said) -> None:
    shown = documents()
    for row in shown["xgmi"]["link_status"]:
        row["link_status"] = [state] * 8
    findings = judged(facts(), shown)
    assert said(findings) == found
    assert not [one.message for one in findings if one.message.endswith("are up")]


def test_an_older_amd_smi_that_knows_no_links_is_no_error() -> None:
    shown = documents()
    refused = {"error": "Parameter '-l' is invalid. Run '--help' for more info.", "code": -2}
    shown["xgmi"] = output("amd_smi_xgmi", json.dumps(refused), argv=("amd-smi", "xgmi", "-l", "--json"))
    findings = judged(facts(), shown)
    assert said(findings) == set()
    assert [f.message for f in findings if f.verdict is Verdict.SKIP] == [
        "not measured: this amd-smi does not know xgmi -l --json"
    ]


def xgmi(text: str) -> Output:
    return output("amd_smi_xgmi", text, argv=("amd-smi", "xgmi", "-l", "--json"))


@pytest.mark.parametrize("state", ["U", "D"])
def test_states_of_links_may_stand_in_a_second_list(state: str) -> None:
    """A development version of ROCm 6.4 printed two lists, the first with the GPUs alone."""
    shown = changed("xgmi", "link_status", [*["U"] * 6, state, "X"])
    rows = shown["xgmi"]["link_status"]
    bare = [{"gpu": row["gpu"], "bdf": row["bdf"]} for row in rows]
    shown["xgmi"] = xgmi(f"{json.dumps(bare)}\n{json.dumps(rows)}\n")
    found = set() if state == "U" else {("fail", "gpu3", "xgmi_up", RESET)}
    assert said(judged(facts(), shown)) == found
    shown["xgmi"] = xgmi(json.dumps(bare))
    assert said(judged(facts(), shown)) == {("error", "node", "", "investigate")}


def test_an_mi200_is_not_asked_for_states_of_links() -> None:
    known = facts()
    known["gpu.pci"] = [{**one, "device_id": "1002:740f"} for one in known["gpu.pci"]]
    asked = [
        [
            one.argv[1]
            for one in gpu_inventory.commands(node_of(of).check_node, {})
            if one.argv[0] == "amd-smi"
        ]
        for of in (facts(), known)
    ]
    assert asked == [
        ["static", "metric", "xgmi", "process", "metric"],
        ["static", "metric", "process", "metric"],
    ]
    shown = {name: one for name, one in documents().items() if name != "xgmi"}
    assert not [one.message for one in judged(known, shown) if one.verdict is Verdict.ERROR]


def test_facts_that_could_not_be_read_are_an_error() -> None:
    known = facts()
    del known["amdgpu.devices"]
    node = node_of(known, {"amdgpu.devices": "no answer within 8 s"})
    outputs = [output("dmesg", LOG, argv=("dmesg",))]
    outputs += [output(f"amd_smi_{name}", json.dumps(one)) for name, one in documents().items()]
    result = node_judge.judge_check(node, Raw("gpu-01", "gpu_inventory", tuple(outputs)), node.limits())
    assert result.verdict is Verdict.ERROR
    assert any("no answer within 8 s" in finding.message for finding in result.findings)


@pytest.mark.parametrize("wrong", [5, "many", [None], [{"address": 7}], [{}]])
def test_a_strange_answer_is_an_error(wrong: Any) -> None:
    assert ("error", "node", "", "investigate") in said(judged({**facts(), "amdgpu.devices": wrong}))


def test_a_driver_that_the_command_line_keeps_away_needs_no_reboot() -> None:
    """AMD's acceptance guide for MI325X, MI350X and MI355X boots with modprobe.blacklist=amdgpu."""
    known = {**facts(), "amdgpu.loaded_version": None}
    for blacklisted, advice in ((True, "run modprobe amdgpu"), (False, "then reboot")):
        (finding,) = (
            one
            for one in judged({**known, "amdgpu.blacklisted": blacklisted}, {})
            if one.verdict is Verdict.ERROR
        )
        assert advice in finding.message
        assert finding.action == "fix configuration"


@pytest.mark.parametrize(
    ("rocm", "folder"),
    [
        ("7.2.1-43", "/opt/rocm/bin"),
        ("7.12.0", "/opt/rocm/extras-7/bin"),
        ("10.0.0", "/opt/rocm/extras-10/bin"),
    ],
)
def test_tools_are_started_from_where_their_release_has_them(rocm: str, folder: str) -> None:
    node = node_of({**facts(), "amdgpu.rocm": rocm}).check_node
    (burn,) = (one for one in gpu_burn.commands(node, {}) if one.name == "rvs_gpus")
    assert burn.argv[0] == f"{folder}/rvs"
    assert transferbench.program(node) == f"{folder}/TransferBench"


def test_the_samples_of_a_load_fit_into_what_is_kept_of_an_output() -> None:
    """One sample of eight MI300X takes 71 kB with AMD's amd-smi of ROCm 7.2 and 10.1."""
    assert telemetry._MOST_SAMPLES * 71_000 < 2 * 2**20


def test_without_the_driver_nothing_passes() -> None:
    known = {**facts(), "amdgpu.loaded_version": None}
    node = node_of(known)
    commands = node_judge.commands_for("gpu_inventory", node.check_node, {})
    assert [one.name for one in commands] == ["journal", "dmesg"], "amd-smi would only take its time"
    assert said(judged(known, {})) == {("error", "node", "", "fix configuration")}
    for check in ("versions", "host_health"):
        result = node_judge.judge_check(node, Raw("gpu-01", check), node.limits())
        assert result.verdict in (Verdict.ERROR, Verdict.FAIL), check


def test_warnings_may_stand_before_the_document() -> None:
    warning = "WARNING: User is missing the following required groups: render, video\n"
    text = warning + json.dumps(documents()["static"], indent=4)
    assert len(smi.entries(output("amd_smi_static", text))) == 8


def test_a_gpu_under_load_that_is_at_its_limit_of_power_is_not_throttled() -> None:
    """Recorded from ROCm 7 on a GPU at 91 % load; not an Instinct product, but in the same form."""
    entry = {
        "gpu": 0,
        "usage": {"gfx_activity": {"value": 91, "unit": "%"}},
        "power": {"socket_power": {"value": 298, "unit": "W"}, "throttle_status": "THROTTLED"},
        "temperature": {"edge": degrees(54), "hotspot": degrees(63), "mem": degrees(70)},
        "throttle": {"prochot_violation_status": "N/A", "ppt_violation_status": "N/A"},
    }
    found = {m.metric: m.value for m in sensors.of_metric([entry], {0: "gpu0"})}
    assert found == {"temperature": 63, "memory_temperature": 70, "busy": True}


@pytest.mark.parametrize("value", ["N/A", None, True, "39", [39], {"value": "N/A"}, {"value": 1e400}, {}])
def test_what_is_no_number_is_none(value: Any) -> None:
    assert smi.number({"a": value}, "a") is None


# --- the kernel log


def line(text: str, address: str = "0000:46:00.0") -> str:
    return f"[  100.000000] amdgpu {address}: {text}\n"


LINES: dict[str, Said] = {
    line("{1}1 uncorrectable hardware errors detected in umc block"): {
        ("fail", "gpu2", "amdgpu.uncorrectable", RESET)
    },
    line("amdgpu: 2 uncorrectable hardware errors detected in gfx block"): {
        ("fail", "gpu2", "amdgpu.uncorrectable", RESET)
    },
    line("amdgpu: socket: 0, die: 1, 3 deferred hardware errors detected in umc block"): {
        ("warn", "gpu2", "amdgpu.deferred", "watch")
    },
    line("{2}poison is consumed by client 27, kick off gpu reset flow"): {
        ("fail", "gpu2", "amdgpu.poison_consumed", RESET)
    },
    line("amdgpu: Saved bad pages 128 reaches threshold value 128"): {
        ("fail", "gpu2", "amdgpu.pages_full", "replace part")
    },
    line("amdgpu: RAS records:116 exceeds 90% of threshold:128"): {
        ("warn", "gpu2", "amdgpu.pages_many", "watch")
    },
    line("amdgpu: device lost from bus!"): {("fail", "gpu2", "amdgpu.lost", CYCLE)},
    line("amdgpu: Fatal error during GPU init"): {("fail", "gpu2", "amdgpu.init_failed", CYCLE)},
    line("amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x12"): {
        ("fail", "gpu2", "amdgpu.firmware_stuck", RESET)
    },
    line("amdgpu: ring comp_1.0.1 timeout, signaled seq=4210, emitted seq=4212"): {
        ("warn", "gpu2", "amdgpu.ring_timeout", "investigate")
    },
    line("amdgpu: WARN: GPU is throttled, expect performance decrease."): {
        ("warn", "gpu2", "amdgpu.throttled", "investigate")
    },
    "[  100.000000] amdgpu: qcm fence wait loop timeout expired\n": {
        ("fail", "node", "amdgpu.queue_stuck", RESET)
    },
    # Lines of a healthy GPU and of a user's program.
    line("amdgpu: 0 uncorrectable hardware errors detected in umc block"): set(),
    line("amdgpu: no uncorrectable hardware errors detected in umc block"): set(),
    line("amdgpu: 5 correctable hardware errors detected in total in umc block"): set(),
    line("amdgpu: ring comp_1.0.1 timeout, but soft recovered"): set(),
    line("amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770)"): set(),
    line("amdgpu: Poison is created"): set(),
    line("amdgpu: Freeing queue vital buffer 0x7f2c00000000, queue evicted"): set(),
}


@pytest.mark.parametrize("text", LINES, ids=lambda text: text.partition(": ")[2][:50])
def test_a_line_of_the_driver(text: str) -> None:
    assert said(judged(facts(), log=text)) == LINES[text]


INCIDENT = (
    "[  100.000000] amdgpu 0000:46:00.0: {1}1 correctable hardware errors detected in umc block\n"
    "[  100.000001] amdgpu 0000:46:00.0: {1}1 uncorrectable hardware errors detected in umc block\n"
    "[  100.100000] amdgpu 0000:46:00.0: amdgpu: GPU reset begin!\n"
)


def test_what_an_error_brings_along_is_told_with_it() -> None:
    """A public report of an MI50 has an uncorrectable error followed by a failed reset."""
    failed = "[  122.000000] amdgpu 0000:46:00.0: amdgpu: GPU reset(2) failed\n"
    (finding,) = [one for one in judged(facts(), log=INCIDENT + failed) if one.verdict is Verdict.FAIL]
    assert (finding.device, finding.metric) == ("gpu2", "amdgpu.uncorrectable")
    assert finding.message == (
        "the driver amdgpu logged: uncorrectable hardware errors, 1 time since boot; "
        "with it: the driver reset the GPU, a reset of the GPU failed; by the kernel log alone"
    )


def test_a_reset_that_succeeded_mends_what_it_can() -> None:
    done = "[  105.000000] amdgpu 0000:46:00.0: amdgpu: GPU reset(1) succeeded!\n"
    (finding,) = [one for one in judged(facts(), log=INCIDENT + done) if one.verdict is not Verdict.PASS]
    assert (finding.verdict, finding.action) == (Verdict.WARN, "watch")
    assert "the GPU was reset since" in finding.message
    full = line("amdgpu: Saved bad pages 128 reaches threshold value 128")
    assert said(judged(facts(), log=full + done)) == {("fail", "gpu2", "amdgpu.pages_full", "replace part")}


def test_a_line_of_a_gpu_that_is_gone_has_its_address() -> None:
    events = kernel_log.events([line("amdgpu: device lost from bus!", "0000:99:00.0").strip()])
    assert [one.address for one in kernel_incidents.named(events, GPUS)] == ["gpu@0000:99:00"]


def test_a_processors_own_graphics_are_none_of_the_nodes_gpus() -> None:
    hang = line("amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2", "0000:c1:00.0")
    assert said(judged(facts(), log=hang)) == set()
    known = {**facts(), "gpu.pci": [{"address": "0000:46:00.0", "device_id": "10de:2330"}], "gpu.count": 1}
    events = kernel_log.events(
        [line("amdgpu: device lost from bus!").strip(), "[  101.0] amdgpu: GPU reset begin!"]
    )
    assert len(events) == 2
    assert kernel_incidents.of_its_gpus(node_of(known).check_node, events) == []
    assert kernel_incidents.of_its_gpus(node_of(facts()).check_node, events) == events


def test_no_cause_is_its_own() -> None:
    for name, meaning in driver_log.MEANINGS.items():
        assert name not in meaning.after
        assert meaning.after <= driver_log.MEANINGS.keys()


# --- the other checks


def test_a_fatal_pcie_error_warns_of_its_gpu_alone() -> None:
    known = facts()
    for index, entry in enumerate(known["amdgpu.devices"]):
        entry["fatal_error"] = None if index == 5 else index == 3
    assert said(judged(known)) == {("warn", "gpu3", "pcie_fatal", "reseat or check cable")}


NOT_BUILT = sorted(registry.not_built((one.id for one in BUILT_IN), "amd"))


@pytest.mark.parametrize("check", NOT_BUILT)
def test_a_check_that_was_not_built_for_them_is_a_skip_with_a_line(check: str) -> None:
    node = node_of(facts())
    assert node_judge.commands_for(check, node.check_node, {}) == []
    result = node_judge.judge_check(node, Raw("gpu-01", check), node.limits())
    assert [(f.verdict, f.message) for f in result.findings] == [
        (Verdict.SKIP, "not measured on AMD GPUs yet")
    ]


def health(asked: Sequence[str], known: Mapping[str, Any]) -> NodeHealth:
    node = node_of(known)
    results = {name: node_judge.judge_check(node, Raw("gpu-01", name), node.limits()) for name in asked}
    return node_judge.judge_node(node, results, asked)


def test_a_node_of_which_nothing_was_judged_does_not_pass() -> None:
    assert health(NOT_BUILT, facts()).verdict is Verdict.SKIP


def test_the_facts_of_one_vendor_are_asked_of_its_nodes_alone() -> None:
    asked = registry.select("quick")
    assert not [fact for fact in registry.facts_for(asked) if fact.startswith("amd")]
    assert registry.facts_of_vendor(asked, "nvidia") == registry.facts_of_vendor(asked, None) == frozenset()
    assert registry.facts_of_vendor(asked, "amd") == {
        *("amdgpu.blacklisted", "amdgpu.devices", "amdgpu.loaded_version", "amdgpu.rocm")
    }


def test_versions_are_compared_with_the_fleet() -> None:
    known = {f"gpu-0{n}": facts() for n in range(1, 5)}
    known["gpu-03"]["amdgpu.loaded_version"] = "6.10.5"
    for device in known["gpu-04"]["amdgpu.devices"][2:3]:
        device["vbios"] = "113-M3000100-103"
    nodes, seen = [], {}
    for name, one in known.items():
        node = node_facts_of(name, one, {}, stack.describe_node(one), {})
        result = node_judge.judge_check(node, Raw(name, versions.ID), node.limits())
        assert result.verdict is Verdict.PASS
        assert result.findings[0].message.startswith("driver amdgpu 6.1")
        nodes.append(node_judge.judge_node(node, {versions.ID: result}, [versions.ID]))
        seen[name] = node.check_node
    compared, _ = judge_fleet(nodes, seen)
    found = {(node.node, f.metric) for node in compared for check in node.checks for f in check.wrong}
    assert found == {("gpu-03", "amdgpu.loaded_version"), ("gpu-04", "amdgpu.vbios")}


def test_the_driver_and_its_rocm_are_part_of_what_a_result_depends_on() -> None:
    from provision.runs import fingerprint

    then, now = fingerprint.of(facts(), {}), fingerprint.of({**facts(), "amdgpu.rocm": "7.2.1-43"}, {})
    assert [str(one) for one in fingerprint.changes("gpu_inventory", then, now)][-1:] == [
        "amdgpu.rocm 6.4.1-83 → 7.2.1-43"
    ]
    unasked = fingerprint.of({k: v for k, v in facts().items() if not k.startswith("amdgpu.")}, {})
    known = {one.part for one in fingerprint.changes("gpu_inventory", then, unasked)}
    assert not [part for part in known if part.startswith("amdgpu")], "what was not asked is not compared"


def test_parse_errors_of_the_document_say_what_to_do() -> None:
    with pytest.raises(ParseError) as refused:
        smi.entries(output("amd_smi_static", NO_DRIVER, rc=255))
    assert "amdgpu not found in modules" in refused.value.what
    assert "though amdgpu is loaded" in refused.value.fix
    assert gpu_inventory.NEEDS == ("amd-smi",)


LEFT = [  # (values that differ on gpu3 in `metric`, expected findings)
    ({"perf_level": "AMDSMI_DEV_PERF_LEVEL_LOW"}, {("warn", "gpu3", "perf_level", "fix configuration")}),
    ({"perf_level": "DEV_PERF_LEVEL_STABLE_MIN_SCLK"}, {("warn", "gpu3", "perf_level", "fix configuration")}),
    ({"perf_level": "AMDSMI_DEV_PERF_LEVEL_DETERMINISM"}, set()),
    ({"xgmi_err": "AMDSMI_XGMI_STATUS_MULTIPLE_ERRORS"}, {("warn", "gpu3", "xgmi_errors", "watch")}),
    ({"xgmi_err": "AMDSMI_XGMI_STATUS_NO_ERRORS"}, set()),
    (
        {"mem_usage": {"used_vram": {"value": 61_440, "unit": "MB"}}},
        {("warn", "gpu3", "memory_used", "investigate")},
    ),
    ({"mem_usage": {"used_vram": {"value": 283, "unit": "MB"}}}, set()),
]


@pytest.mark.parametrize(("changed", "found"), LEFT)
def test_what_an_earlier_user_or_fault_left_on_a_gpu(changed: dict[str, Any], found: Said) -> None:
    shown = documents()
    shown["metric"]["gpu_data"][3].update(changed)
    assert said(judged(facts(), shown)) == found


def test_memory_that_a_program_holds_is_not_left_over() -> None:
    shown = documents()
    shown["metric"]["gpu_data"][3]["mem_usage"] = {"used_vram": {"value": 61_440, "unit": "MB"}}
    shown["process"][3]["process_list"] = [{"process_info": {"name": "python3", "pid": 4711}}]
    assert {metric for _, _, metric, _ in said(judged(facts(), shown))} == {"processes"}


def test_a_gpu_alone_without_link_states_is_named_where_amd_smi_lists_them_by_peer() -> None:
    shown = documents()
    rows = [["SELF" if to == here else "U" for to in range(8)] for here in range(8)]
    rows[3] = ["N/A"] * 3 + ["SELF"] + ["N/A"] * 4
    for row, states in zip(shown["xgmi"]["link_status"], rows, strict=True):
        row["link_status"] = states
    assert said(judged(facts(), shown)) == {("error", "gpu3", "", "investigate")}
