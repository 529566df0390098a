"""GPU settings without a lab: expectations, refusals, and the state after the boot script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.places import SILICON
from tests.roles.promises import promised_by, values
from tests.support.commands import ran
from tests.support.described import machine
from tests.support.modules import Host

RUN = SILICON / "run.py"
DRIVER = "570.124.06"
HALF = ["3g.40gb", "3g.40gb"]
SCRIPT = "file./usr/local/sbin/gpuprov-gpu-settings.content"


def promised(count: int = 8, system: str = "debian 13", /, **settings: Any) -> dict[str, Any]:
    """Return fact → value that the role expects of this many GPUs."""
    node = machine(system, count=count, sku="h100-sxm")
    return values(promised_by("gpu_settings", node, **settings))


class Gpus(Host):
    """Eight simulated GPUs with persistence mode on, and their nvidia-smi on a private PATH."""

    def __init__(self, folder: Path, sku: str = "h100-sxm", driver: str = DRIVER) -> None:
        super().__init__(folder)
        self.state = folder / "state"
        libraries = folder / "root/usr/lib/x86_64-linux-gnu"
        libraries.mkdir(parents=True)
        (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{driver}")
        tool = [sys.executable, "-I", "-S", str(RUN)]
        made = f"new --dir {self.state} --sku {sku} --name n --seed 1 --speed 1000"
        subprocess.run([*tool, *made.split()], check=True, timeout=60)
        (self.state / "proc_driver/nvidia").mkdir()
        loaded = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
        (self.state / "proc_driver/nvidia/version").write_text(loaded)
        where = f"export SILICON_STATE={self.state} SILICON_ROOT={folder}/root"
        self.program("nvidia-smi", f'{where}\nexec {" ".join(tool)} nvidia-smi "$@"')
        self.smi("-pm", "1")

    def smi(self, *words: str) -> str:
        command = [str(self.bin / "nvidia-smi"), *words]
        return ran(command, check=True).stdout

    def field(self, name: str) -> list[str]:
        return self.smi(f"--query-gpu={name}", "--format=csv,noheader,nounits").splitlines()

    def devices(self) -> list[str]:
        """Return MIG devices by GPU, parsed from the human-readable list."""
        gpus: list[list[str]] = []
        for line in self.smi("-L").splitlines():
            if line.startswith("GPU"):
                gpus.append([])
            else:
                gpus[-1].append(line.split()[1])
        return [",".join(gpu) for gpu in gpus]

    def busy(self, *slots: int) -> None:
        mark = {"tool": "train", "pid": os.getpid(), "since": time.time(), "slots": list(slots)}
        (self.state / "run/load.1").write_text(json.dumps(mark))

    def boot_script(self, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run the boot script that the role installs for these settings."""
        self.log.write_text("")
        return ran(["/bin/sh", "-c", promised(**settings)[SCRIPT]], env=self.environment, timeout=240)

    def changes(self) -> list[str]:
        """Return the state-changing calls since the last reset of the log."""
        looks = ("--query", "-L", "-lgi")
        calls = [line.removeprefix("nvidia-smi ") for line in self.ran()]
        return [line for line in calls if not any(word in line for word in looks)]

    def look(self, **wanted: Any) -> dict[str, Any]:
        """Return the module's answer."""
        return self.module("gpuprov_gpu_settings", **wanted)

    def refusals(self, **wanted: Any) -> str:
        before = self.field("power.limit,compute_mode,ecc.mode.pending,mig.mode.current")
        answer = self.look(**wanted)
        assert answer["changed"] is False
        assert self.field("power.limit,compute_mode,ecc.mode.pending,mig.mode.current") == before
        return " ".join(answer["refusals"])


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path)


def layouts(*gpu: str) -> dict[str, Any]:
    return {"mig_layouts": [*gpu, *["off"] * (8 - len(gpu))]}


# --- expectations


def test_nothing_declared_promises_that_nothing_is_done_at_boot() -> None:
    assert promised() == {
        SCRIPT: None,
        "file./etc/systemd/system/gpuprov-gpu-settings.service.content": None,
    }


def test_each_setting_is_promised_for_every_gpu() -> None:
    facts = promised(
        4,
        power_limit=550,
        compute_mode="exclusive_process",
        ecc="enabled",
        application_clocks=[2619, 1980],
        mig={"enabled": True, "profiles": {"all": ["1g.10gb", "3g.40gb"], "1": [], "3": ["7g.80gb"]}},
    )
    assert facts["nvidia_smi.power.limit"] == ["550.00"] * 4
    assert facts["nvidia_smi.compute_mode"] == ["Exclusive_Process"] * 4
    assert facts["nvidia_smi.ecc.mode.current"] == ["Enabled"] * 4
    assert facts["nvidia_smi.clocks.applications.memory"] == ["2619"] * 4
    assert facts["nvidia_smi.clocks.applications.graphics"] == ["1980"] * 4
    assert facts["nvidia_smi.mig.mode.current"] == ["Enabled"] * 4
    assert facts["mig.devices"] == ["3g.40gb,1g.10gb", "", "3g.40gb,1g.10gb", "7g.80gb"]
    assert facts["service.gpuprov-gpu-settings.active"] == "active"


def test_a_gpu_without_a_layout_stays_whole() -> None:
    facts = promised(3, mig={"enabled": True, "profiles": {"1": HALF}})
    assert facts["nvidia_smi.mig.mode.current"] == ["Disabled", "Enabled", "Disabled"]
    assert facts["mig.devices"] == ["", "3g.40gb,3g.40gb", ""]
    off = promised(3, mig={"enabled": False, "profiles": {"all": HALF}})
    assert off["nvidia_smi.mig.mode.current"] == ["Disabled"] * 3


def test_ecc_alone_needs_nothing_at_boot() -> None:
    facts = promised(2, ecc="disabled")
    assert facts["nvidia_smi.ecc.mode.current"] == ["Disabled"] * 2
    assert facts[SCRIPT] is None
    assert "service.gpuprov-gpu-settings.active" not in facts


@pytest.mark.parametrize("system", ["ubuntu 24.04", "rocky 9.4", "debian 12"])
def test_every_distribution_gets_the_same(system: str) -> None:
    settings = {"power_limit": 500, "mig": {"enabled": True, "profiles": {"all": HALF}}}
    assert promised(8, system, **settings) == promised(**settings)


# --- refusals


def test_what_the_boards_can_do_is_not_refused(gpus: Gpus) -> None:
    answer = gpus.look(
        power_limit=500,
        locked_clocks=[1200, 1980],
        application_clocks=[2619, 1410],
        compute_mode="prohibited",
        ecc="disabled",
        **layouts("3g.40gb,2g.20gb,1g.10gb,1g.10gb", ""),
    )
    assert answer["refusals"] == []
    assert answer["differs"] == ["power_limit", "application_clocks", "compute_mode", "ecc", "mig"]
    assert answer["ecc"] == list(range(8))


@pytest.mark.parametrize("watts", [199, 701])
def test_a_power_limit_outside_the_range_names_gpus_and_range(gpus: Gpus, watts: int) -> None:
    said = gpus.refusals(power_limit=watts)
    assert said == (
        f"GPU 0, 1, 2, 3, 4, 5, 6, 7: a power limit of {watts} W is outside what the board allows, "
        "200 to 700 W."
    )


def test_a_clock_nobody_has_names_the_nearest(gpus: Gpus) -> None:
    assert (
        "of 1201 MHz is not supported (supported are 345 to 1980 MHz; nearest: 1200 and 1215)"
        in gpus.refusals(locked_clocks=[1201, 1980])
    )
    assert "memory clock of 1593 MHz is not supported (supported are 2619 MHz)" in gpus.refusals(
        application_clocks=[1593, 1980]
    )


def test_a_driver_without_application_clocks_says_what_to_use(tmp_path: Path) -> None:
    """Application clocks are deprecated from driver 590 on."""
    refusal = Gpus(tmp_path, driver="595.45.04").refusals(application_clocks=[2619, 1980])
    assert "has no application clocks any more; use gpu_settings_locked_clocks" in refusal


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (
            "4g.20gb",
            "GPU 0: there is no MIG profile 4g.20gb (there are 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb,",
        ),
        ("3g.40gb,3g.40gb,3g.40gb", "at most 2 of the MIG profile 3g.40gb fit, not 3"),
        ("4g.40gb,3g.40gb,1g.10gb", "together need 8 of 7 slices"),
    ],
)
def test_partitions_that_cannot_be_are_refused(gpus: Gpus, layout: str, sentence: str) -> None:
    assert sentence in gpus.refusals(**layouts(layout))


def test_boards_without_mig(tmp_path: Path) -> None:
    assert "cannot be partitioned" in Gpus(tmp_path, "l40s").refusals(**layouts("1g.10gb"))


def test_a_running_process_keeps_its_gpu_as_it_is(gpus: Gpus) -> None:
    gpus.busy(2)
    said = gpus.refusals(**layouts("7g.80gb", "off", "7g.80gb"))
    assert said.startswith(f"GPU 2: process {os.getpid()} (train) uses it; partitions cannot change under it")
    assert gpus.refusals(**layouts("7g.80gb")) == "", "another GPU may change"


def test_without_persistence_mode_settings_would_be_forgotten(gpus: Gpus) -> None:
    gpus.smi("-pm", "0")
    assert "persistence mode is off" in gpus.refusals(power_limit=500)
    assert gpus.refusals(ecc="disabled") == ""


def test_without_a_driver_nothing_is_known(gpus: Gpus) -> None:
    (gpus.state / "proc_driver/nvidia/version").unlink()
    answer = gpus.look(power_limit=9999)
    assert (answer["ready"], answer["refusals"], answer["differs"]) == (False, [], [])


# --- state after the script


def test_the_script_makes_what_is_promised_and_only_once(gpus: Gpus) -> None:
    settings = {
        "power_limit": 500,
        "locked_clocks": [1200, 1410],
        "compute_mode": "exclusive_process",
        "mig": {"enabled": True, "profiles": {"0": ["1g.10gb", "3g.40gb"], "1": []}},
    }
    done = gpus.boot_script(**settings)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = promised(**settings)
    assert gpus.field("power.limit") == facts["nvidia_smi.power.limit"]
    assert gpus.field("compute_mode") == facts["nvidia_smi.compute_mode"]
    assert gpus.field("mig.mode.current") == facts["nvidia_smi.mig.mode.current"]
    assert gpus.devices() == facts["mig.devices"]
    before = gpus.smi("-L")

    assert gpus.boot_script(**settings).returncode == 0
    assert gpus.changes() == ["-pl 500.00", "-lgc 1200,1410", "-c EXCLUSIVE_PROCESS"], (
        "partitions are left alone"
    )
    assert gpus.smi("-L") == before


def test_the_script_divides_anew_and_makes_whole_again(gpus: Gpus) -> None:
    assert gpus.boot_script(mig={"enabled": True, "profiles": {"0": HALF, "1": HALF}}).returncode == 0
    again = gpus.boot_script(mig={"enabled": True, "profiles": {"0": ["7g.80gb"], "1": HALF}})
    assert again.returncode == 0, again.stdout
    assert gpus.devices()[:3] == ["7g.80gb", "3g.40gb,3g.40gb", ""]
    assert not [line for line in gpus.changes() if "-i 1" in line]
    assert gpus.boot_script(mig={"enabled": False}).returncode == 0
    assert gpus.field("mig.mode.current") == ["Disabled"] * 8


def test_the_script_fails_when_the_tool_does(gpus: Gpus) -> None:
    assert gpus.boot_script(power_limit=900).returncode != 0
    gpus.busy(0)
    assert gpus.boot_script(mig={"enabled": True, "profiles": {"0": HALF}}).returncode != 0


def test_an_ampere_gpu_in_use_waits_for_a_reboot_and_says_so(tmp_path: Path) -> None:
    one = Gpus(tmp_path, "a100-sxm-80")
    one.busy(0)
    done = one.boot_script(mig={"enabled": True, "profiles": {"0": HALF}})
    assert done.returncode == 0, done.stdout
    assert "GPU 0 changes its MIG mode at the next reset or reboot" in done.stdout
    one.smi("-i", "3", "-e", "0")
    assert one.look()["pending"] == ["GPU 0: MIG becomes enabled", "GPU 3: ECC becomes disabled"]
