"""Other readers of amd-smi on AMD's own output: burn-in samples, facts, and the query after a test."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from provision.checks.kernel.kernel_log import bus_address
from provision.checks.vendors.amd import gpu_answers
from provision.node.burnin.amd_gpus import AmdGpus
from provision.node.observe import amd_smi
from tests.printers import burned
from tests.printers.amdsmi import RELEASES, AmdPrinters, AmdSmi, machine_of, node_of
from tests.printers.amdsmi_faults import ERROR, FAULTS
from tests.printers.amdsmi_values import Machine
from tests.support.seed import Selected


def broken(sku: str, release: str, *names: str) -> Machine:
    machine = machine_of(sku, release)
    for fault in FAULTS:
        if fault.name in names and fault.applies(machine):
            fault.change(machine)
    return machine


def devices(machine: Machine) -> dict[str, str]:
    return {bus_address(machine.address(index)): f"gpu{index}" for index in range(machine.count)}


def sampled(program: AmdSmi, machine: Machine) -> dict[str, dict[str, str]]:
    gpus = {machine.address(index).rpartition(".")[0]: f"gpu{index}" for index in range(machine.count)}
    text = "".join(program.run(machine, command, "--json").stdout for command in ("list", "metric"))
    rows = AmdGpus(gpus).rows(text)
    assert rows is not None
    return dict(rows)


def rows(program: AmdSmi, machine: Machine, reader: AmdGpus) -> list[tuple[str, str, Mapping[str, str]]]:
    """Return the samples of a burn-in; its reader lists the GPUs again when different ones answer."""
    for _ in range(2):
        commands = ("metric",) if reader.numbers else ("list", "metric")
        found = reader.rows("".join(program.run(machine, name, "--json").stdout for name in commands))
        if found:
            return [("gpu", device, metrics) for device, metrics in found]
    return []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("sku", ["mi250x", "mi300x", "mi300x guest"])
def test_the_judge_of_a_burn_in_finds_what_hours_of_samples_show(
    sku: str, release: str, amd_printers: AmdPrinters, tmp_path: Path
) -> None:
    """In CI, test a quarter of the faults, drawn by their names; the long set tests all."""
    program, found, tried = amd_printers(release), [], 0
    program.forget()
    healthy: burned.Rows = ()
    for number, fault in enumerate(FAULTS):
        machine = machine_of(sku, release)
        drawn = zlib.crc32(f"{release}{sku}{fault.name}".encode()) % 4 == 0 or fault.name == "nothing"
        if not fault.applies(machine) or not (drawn or Selected.long):
            continue
        for index in range(machine.count):
            machine.set("get_gpu_activity", index, gfx_activity=99)
        node = node_of(machine)
        gpus = {machine.address(index).rpartition(".")[0]: f"gpu{index}" for index in range(machine.count)}
        reader = AmdGpus(gpus)
        healthy = healthy or rows(program, machine, reader)
        fault.change(machine)
        if fault.later:
            fault.later(machine)
        faulty = rows(program, machine, reader)
        hours = burned.wrong(node, healthy, faulty, fault.hours if faulty else (), tmp_path / str(number))
        found += [f"{fault.name}: {one}" for one in hours]
        if burned.unseen(faulty) != (ERROR in fault.verdicts and not faulty):
            found.append(f"{fault.name}: no samples")
        tried += 1
    assert tried > 3
    assert "\n".join(found) == ""


FAULTY = ("uncorrectable errors of the memory", "PCIe width 8", "memory hot at rest", "PROCHOT")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("sku", ["mi250x", "mi300x", "mi300x guest"])
def test_burn_in_samples(sku: str, release: str, amd_printers: AmdPrinters) -> None:
    rows = sampled(amd_printers(release), broken(sku, release, *FAULTY))
    assert list(rows) == [f"gpu{index}" for index in range(8)]
    fine, bad = rows["gpu2"], rows["gpu3"]
    told = release == "10.1" and sku == "mi300x"
    assert (fine["ecc_ue"], fine["pcie_width"], fine["memory_c"]) == ("0", "16", "38")
    assert (bad["ecc_ue"], bad["pcie_width"], bad["memory_c"]) == ("2", "8", "103")
    assert (fine["violations"], bad["violations"]) == (("0x0", "0x1") if told else ("", ""))
    power = "42.0" if sku == "mi250x" else "140.0"
    assert (bad["power_w"], bad["temperature_c"], bad["util_pct"]) == (power, "45", "0")


@pytest.mark.parametrize("release", RELEASES)
def test_a_lost_gpu_has_no_sample_and_the_others_keep_their_names(
    release: str, amd_printers: AmdPrinters
) -> None:
    machine = broken("mi300x", release, "one GPU is gone from the driver")
    rows = sampled(amd_printers(release), machine)
    assert list(rows) == [f"gpu{index}" for index in range(8) if index != 3]
    assert rows["gpu4"]["address"] == machine.address(4)


@pytest.mark.parametrize("release", RELEASES)
def test_a_lost_gpu_does_not_answer_after_a_test(release: str, amd_printers: AmdPrinters) -> None:
    machine = broken("mi300x", release, "one GPU is gone from the driver")
    output = amd_printers(release).run(machine, *gpu_answers.command().argv[1:])
    found = gpu_answers.judge("gpu_burn", output, devices(machine), [])
    assert [(one.verdict.value, one.device, one.action) for one in found] == [("fail", "gpu3", "power-cycle")]
    healthy = amd_printers(release).run(broken("mi300x", release), *gpu_answers.command().argv[1:])
    assert gpu_answers.judge("gpu_burn", healthy, devices(machine), []) == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("sku", ["mi300x", "mi300x guest"])
def test_facts(sku: str, release: str, amd_printers: AmdPrinters) -> None:
    machine = broken(sku, release, "power limit lowered on one GPU", "RAS off on one GPU")
    output = amd_printers(release).run(machine, *amd_smi.STATIC)
    entries = amd_smi.parse_static(["gpus"], output.stdout)["gpus"]
    assert [entry["address"] for entry in entries] == [machine.address(index) for index in range(8)]
    assert {entry["name"] for entry in entries} == {
        "AMD Instinct MI300X VF" if machine.guest else "AMD Instinct MI300X"
    }
    assert [entry["memory_mib"] for entry in entries] == [196592] * 8
    limits = [entry["power_limit_w"] for entry in entries]
    assert limits == ([None] * 8 if machine.guest else [150 if index == 3 else 750 for index in range(8)])
    memory = [entry["memory_ecc"] for entry in entries]
    known = machine.since("7") or not machine.guest
    assert memory == (
        ["DISABLED" if index == 3 else "ENABLED" for index in range(8)] if known else [None] * 8
    )
