"""A guest with virtual functions of AMD GPUs (SR-IOV): amd-smi refuses options that bare metal has."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from provision.checks.check import Output, Raw
from provision.checks.judge import Verdict
from provision.checks.judging import node_judge
from provision.checks.vendors.amd import sensors, smi, telemetry
from provision.node.observe import amd_smi
from tests.checks.amd_node import ADDRESSES, GPUS, LOG, facts, node_of, output
from tests.lab_silicon.amd_machine import installed
from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]


@pytest.fixture(params=["6.3.3-74", "7.2.0-43"])
def guest(request: pytest.FixtureRequest, bare: Make) -> Silicon:
    node = installed(bare("mi300x", network="none"), request.param)
    node.break_("guest")
    return node.boot()


def asked(node: Silicon, name: str, *argv: str) -> Output:
    done = node.run(*argv)
    return Output(name, argv, done.returncode, done.stdout, done.stderr, 0.1)


def test_the_options_of_bare_metal_are_refused(guest: Silicon) -> None:
    for option in ("--limit", *(["--ras"] if "6.3" in guest.run("amd-smi", "version").stdout else [])):
        assert "is invalid. Run" in guest.run("amd-smi", "static", option, "--json").stdout


def test_the_sections_that_a_guest_has_are_read(guest: Silicon) -> None:
    entries = smi.entries(asked(guest, "amd_smi_static", "amd-smi", *amd_smi.STATIC))
    assert len(sensors.by_device(entries, GPUS)) == 8
    assert {one["asic"]["market_name"] for one in entries} == {"AMD Instinct MI300X VF"}
    assert not any("limit" in one for one in entries)


def test_a_fault_of_a_guests_gpu_is_found(guest: Silicon) -> None:
    known = facts()
    for gpu in known["gpu.pci"]:
        gpu["device_id"] = "1002:74b5"
    node = node_of(known)
    assert node.check_node.sku == "mi300x"

    def findings() -> dict[tuple[str, str], Verdict]:
        outputs = [output("dmesg", LOG, argv=("dmesg",))]
        for one in node_judge.commands_for("gpu_inventory", node.check_node, {}):
            if one.name.startswith("amd_smi"):
                outputs.append(asked(guest, one.name, *one.argv))
        judged = node_judge.judge_check(node, Raw("gpu-01", "gpu_inventory", tuple(outputs)), node.limits())
        return {
            (one.device, one.metric): one.verdict
            for one in judged.findings
            if one.verdict not in (Verdict.PASS, Verdict.SKIP)
        }

    assert findings() == {}, "a healthy guest is healthy, and its name is known"
    if "7.2" in guest.run("amd-smi", "version").stdout:
        guest.break_("throttle gpu=3 reason=hw_thermal factor=0.6")
        assert ("gpu3", "throttle") in findings()
        guest.fault("clear")
        guest.break_("guest")
    guest.break_("gpu_off_bus gpu=3")
    assert findings()[("gpu3", "unanswered")] is Verdict.FAIL


def test_the_facts_of_a_guest_are_read(guest: Silicon) -> None:
    done = guest.run("amd-smi", *amd_smi.STATIC)
    (found,) = amd_smi.parse_static(["amd_smi.gpus"], done.stdout).values()
    assert [one["address"] for one in found] == ADDRESSES
    assert {one["power_limit_w"] for one in found} == {None}


def test_a_load_of_a_guest_is_measured(guest: Silicon) -> None:
    outputs = {one.name: asked(guest, one.name, *one.argv) for one in (telemetry.before(), telemetry.after())}
    line = f"100 {json.dumps(json.loads(guest.run('amd-smi', 'metric', '--json').stdout))}\n"
    outputs[telemetry.NAME] = Output(telemetry.NAME, ("sh",), 0, line, "", 2.0)
    found = telemetry.measure(node_of(facts()).check_node, outputs)
    assert {one.device for one in found if one.metric == "samples"} == set(GPUS.values())
