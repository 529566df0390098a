"""amd_gpu_settings: its expectations, the module's findings, and the script's changes in a file tree."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.roles.promises import promised_by, values
from tests.support import modules
from tests.support.described import machine

ROLE = "amd_gpu_settings"
UNIT = "gpuprov-amd-gpu-settings.service"
SCRIPT = "/usr/local/sbin/gpuprov-amd-gpu-settings"
ADDRESSES = ("0000:05:00.0", "0000:26:00.0")


def amd(system: str = "ubuntu 24.04") -> dict[str, Any]:
    mi300x = {"vendor": "amd", "sku": "mi300x", "architecture": "cdna3", "fabric": "none"}
    return machine(system, "x86_64", **mi300x)


promised = partial(promised_by, ROLE)


def test_nothing_is_promised_of_the_gpus_unless_it_is_declared() -> None:
    facts = values(promised(amd()))
    assert facts == {f"file.{SCRIPT}.content": None, f"file./etc/systemd/system/{UNIT}.content": None}


def test_a_mode_of_memory_needs_a_boot_and_a_mode_of_computing_does_not() -> None:
    facts = promised(amd(), compute_partition="CPX", power_limit=600)
    assert facts["amdgpu.compute_partitions"].value == ["CPX"]
    assert not facts["amdgpu.compute_partitions"].reboot
    assert facts["amdgpu.power_limits"].holds([600])
    assert not facts["amdgpu.power_limits"].holds([600, 750])
    assert "current_memory_partition" not in facts[f"file.{SCRIPT}.content"].value
    both = promised(amd(), compute_partition="CPX", memory_partition="NPS4")
    assert both["amdgpu.memory_partitions"].value == ["NPS4"]
    assert both["amdgpu.memory_partitions"].reboot
    assert both["amdgpu.compute_partitions"].reboot
    assert both[f"service.{UNIT.removesuffix('.service')}.active"].value == "active"


# --- capabilities of the GPUs, in a file tree that replaces sysfs


class Sysfs:
    """Two MI300X, with another vendor's card between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for address in (*ADDRESSES, "0000:10:00.0"):
            folder = self.folder(address)
            folder.mkdir(parents=True)
            driver = "amdgpu" if address in ADDRESSES else "mlx5_core"
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        for address in ADDRESSES:
            self.put(address, "current_compute_partition", "SPX")
            self.put(address, "available_compute_partition", "SPX, DPX, QPX, CPX")
            self.put(address, "current_memory_partition", "NPS1")
            self.put(address, "available_memory_partition", "NPS1, NPS4")
            for name, value in (("", 750), ("_min", 0), ("_max", 750)):
                self.put(address, f"hwmon/hwmon3/power1_cap{name}", str(value * 10**6))

    def folder(self, address: str) -> Path:
        return self.root / "bus/pci/devices" / address

    def put(self, address: str, name: str, text: str) -> None:
        place = self.folder(address) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")

    def look(self, **wanted: Any) -> dict[str, Any]:
        """Return the module's answer for these settings."""
        module = modules.load("gpuprov_amd_gpu_settings")
        module.SYSFS = str(self.root)  # type: ignore[attr-defined]
        settings = {"compute_partition": "", "memory_partition": "", "power_limit": 0, **wanted}
        answer: dict[str, Any] = module.look(settings)
        return answer

    def of(self, name: str) -> list[str]:
        return [(self.folder(address) / name).read_text().strip() for address in ADDRESSES]


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


def test_what_is_so_already_does_not_differ(sysfs: Sysfs) -> None:
    found = sysfs.look(compute_partition="SPX", memory_partition="NPS1", power_limit=750)
    assert found == {"ready": True, "refusals": [], "differs": [], "pending": []}


def test_a_mode_of_memory_waits_for_a_boot_and_that_of_computing_with_it(sysfs: Sysfs) -> None:
    assert sysfs.look(compute_partition="CPX", power_limit=600) == {
        **{"ready": True, "refusals": [], "differs": ["compute_partition", "power_limit"], "pending": []}
    }
    found = sysfs.look(compute_partition="CPX", memory_partition="NPS4")
    assert found["pending"] == ["compute_partition", "memory_partition"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"compute_partition": "TPX"}, "GPU 0000:05:00.0 cannot be TPX: it offers SPX, DPX, QPX, CPX."),
        ({"memory_partition": "NPS8"}, "GPU 0000:26:00.0 cannot be NPS8: it offers NPS1, NPS4."),
        ({"power_limit": 800}, "GPU 0000:05:00.0 cannot be limited to 800 W: it allows 0 to 750 W."),
    ],
)
def test_what_a_gpu_cannot_do_is_refused(sysfs: Sysfs, wanted: dict[str, Any], words: str) -> None:
    refusals = sysfs.look(**wanted)["refusals"]
    assert len(refusals) == 2
    assert words in refusals


def test_a_driver_that_cannot_change_it_is_said(sysfs: Sysfs) -> None:
    for address in ADDRESSES:
        (sysfs.folder(address) / "available_memory_partition").unlink()
    first, _ = sysfs.look(memory_partition="NPS4")["refusals"]
    assert first == (
        "GPU 0000:05:00.0 cannot be NPS4: of memory partitions it has one mode alone, or the driver cannot "
        "change them."
    )
    assert sysfs.look(memory_partition="NPS1")["refusals"] == []


def test_partitions_do_not_change_under_a_program(sysfs: Sysfs) -> None:
    (sysfs.root / "class/kfd/kfd/proc/4711").mkdir(parents=True)
    (refusal,) = sysfs.look(compute_partition="CPX")["refusals"]
    assert "process 4711" in refusal
    assert sysfs.look(power_limit=600)["refusals"] == []
    assert sysfs.look(compute_partition="SPX")["refusals"] == []


def test_a_second_die_without_a_limit_of_its_own_is_left_out(sysfs: Sysfs) -> None:
    sysfs.put(ADDRESSES[1], "hwmon/hwmon3/power1_cap", "0")
    assert sysfs.look(power_limit=750)["differs"] == []


def test_without_the_driver_nothing_is_known(sysfs: Sysfs) -> None:
    for address in ADDRESSES:
        (sysfs.folder(address) / "driver").unlink()
    assert sysfs.look(compute_partition="CPX") == {
        "ready": False,
        "refusals": [],
        "differs": [],
        "pending": [],
    }


# --- the script


def ran(sysfs: Sysfs, state: str = "running", **settings: Any) -> tuple[int, str]:
    """Run the script with these settings on the tree; stand-ins print each load and unload of the driver."""
    text = promised(amd(), **settings)[f"file.{SCRIPT}.content"].value
    tools = sysfs.root.parent / "bin"
    tools.mkdir(exist_ok=True)
    scripts = {"systemctl": f"echo {state}", "modprobe": 'echo "modprobe $*"', "udevadm": ":"}
    for name, what in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{what}\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", text.replace("/sys/bus", f"{sysfs.root}/bus")],
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_script_sets_what_differs(sysfs: Sysfs) -> None:
    assert ran(sysfs, compute_partition="CPX", power_limit=600) == (0, "")
    assert sysfs.of("current_compute_partition") == ["CPX", "CPX"]
    assert sysfs.of("hwmon/hwmon3/power1_cap") == ["600000000"] * 2
    assert sysfs.of("current_memory_partition") == ["NPS1"] * 2
    assert not (sysfs.folder("0000:10:00.0") / "current_compute_partition").exists()


def test_the_driver_is_loaded_anew_only_while_the_machine_starts(sysfs: Sysfs) -> None:
    settings = {"compute_partition": "CPX", "memory_partition": "NPS4"}
    assert ran(sysfs, **settings) == (0, "the memory partitions change at the next boot\n")
    assert sysfs.of("current_memory_partition") == ["NPS1"] * 2
    assert sysfs.of("current_compute_partition") == ["SPX"] * 2
    assert ran(sysfs, "starting", **settings) == (0, "modprobe -r amdgpu\nmodprobe amdgpu\n")
    assert sysfs.of("current_memory_partition") == ["NPS4"] * 2
    assert sysfs.of("current_compute_partition") == ["CPX"] * 2
    assert ran(sysfs, "starting", **settings) == (0, ""), "once is enough"


def test_what_the_driver_refuses_is_an_error_and_the_rest_is_set(sysfs: Sysfs) -> None:
    refused = sysfs.folder(ADDRESSES[0]) / "current_compute_partition"
    refused.unlink()
    refused.mkdir()  # cannot be written, not even by root
    code, said = ran(sysfs, compute_partition="CPX", power_limit=600)
    assert code == 1
    assert f"{refused} does not take CPX" in said
    assert sysfs.of("hwmon/hwmon3/power1_cap") == ["600000000"] * 2
