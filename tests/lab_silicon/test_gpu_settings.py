"""Settings of nvidia-smi: syntax, permissions, and survival of driver reload, reset and reboot."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab_silicon.silicon import Silicon
from tests.support.processes import until

Make = Callable[..., Silicon]
BUS = "00000000:1B:00.0"


def field(node: Silicon, name: str, gpu: int = 0) -> str:
    return node.column(name, "-i", str(gpu))[0]


@pytest.fixture
def kept(node: Make) -> Make:
    """Return a function that makes nodes with persistence mode on."""

    def make(*arguments: Any, **more: Any) -> Silicon:
        one = node(*arguments, **more)
        one.smi("-pm", "1")
        return one

    return make


def test_a_power_limit_is_kept_while_the_driver_is(kept: Make) -> None:
    one = kept()
    said = one.smi("-i", "0", "-pl", "500")
    assert said == f"Power limit for GPU {BUS} was set to 500.00 W from 700.00 W.\nAll done.\n"
    assert [field(one, "power.limit", gpu) for gpu in (0, 1)] == ["500.00", "700.00"]
    assert "/  500W |" in one.smi()
    assert "<current_power_limit>500.00 W</current_power_limit>" in one.smi("-q", "-x")
    one.boot()
    assert field(one, "power.limit") == "700.00"


def test_without_persistence_mode_the_driver_forgets(node: Make) -> None:
    one = node()
    assert f"Warning: persistence mode is disabled on device {BUS}." in one.smi("-i", "0", "-pl", "500")
    assert field(one, "power.limit") == "700.00"


def test_another_persistence_daemon_starts_with_nothing(node: Make) -> None:
    one = node()
    assert one.run("nvidia-persistenced").returncode == 0
    one.smi("-pl", "500")
    assert field(one, "power.limit") == "500.00"
    marker = one.state / "run/persistenced"
    os.kill(int(marker.read_text()), 15)
    until(lambda: not marker.exists(), 20)
    assert one.run("nvidia-persistenced").returncode == 0
    assert field(one, "power.limit") == "700.00"


def test_a_power_limit_outside_the_boards_range(kept: Make) -> None:
    said = kept().smi("-pl", "100", status=2)
    assert said.splitlines() == [
        "Provided power limit 100.00 W is not a valid power limit which should be between 200.00 W and "
        f"700.00 W for GPU {BUS}",
        "Terminating early due to previous errors.",
    ]


def test_a_limited_gpu_draws_less(kept: Make) -> None:
    one = kept()
    one.loaded(0)
    assert float(field(one, "power.draw")) > 600
    one.smi("-pl", "300")
    assert 250 < float(field(one, "power.draw")) <= 300


def test_locked_clocks_hold_a_busy_gpu_down(kept: Make) -> None:
    one = kept()
    said = one.smi("-i", "0", "-lgc", "600,1200")
    assert said.startswith(f'GPU clocks set to "(gpuClkMin 600, gpuClkMax 1200)" for GPU {BUS}\n')
    one.loaded(0, 1)
    assert int(field(one, "clocks.sm", 0)) <= 1200 < int(field(one, "clocks.sm", 1))
    one.smi("-rgc")
    assert int(field(one, "clocks.sm", 0)) > 1200


def test_application_clocks_until_the_driver_dropped_them(kept: Make) -> None:
    one = kept(driver="570.124.06")
    assert 'set to "(MEM 2619, SM 1410)"' in one.smi("-i", "0", "-ac", "2619,1410")
    assert field(one, "clocks.applications.graphics") == "1410"
    assert '"(MEM 2619, SM 1411)" is not supported' in one.smi("-i", "0", "-ac", "2619,1411")
    assert field(one, "clocks.applications.graphics") == "1410"
    # 580.105 still answers with clocks, 590.44 no longer (shapes.yml; telegraf's 3090-v13.xml).
    new = kept(name="gpu-02", driver="590.44.01")
    assert "is not supported" in new.smi("-ac", "2619,1410")
    assert field(new, "clocks.applications.graphics") == "[Requested functionality has been deprecated]"


def test_supported_clocks_are_listed_gpu_after_gpu(node: Make) -> None:
    query = ["--query-supported-clocks=gpu_bus_id,memory,graphics", "--format=csv,noheader,nounits"]
    lines = node().smi(*query).splitlines()
    assert lines[:2] == [f"{BUS}, 2619, 1980", f"{BUS}, 2619, 1965"]
    assert len(lines) == 8 * ((1980 - 345) // 15 + 1)


def test_compute_mode(kept: Make) -> None:
    one = kept()
    assert one.smi("-i", "0", "-c", "3").startswith(f"Set compute mode to EXCLUSIVE_PROCESS for GPU {BUS}.\n")
    assert field(one, "compute_mode") == "Exclusive_Process"
    assert "is already set to EXCLUSIVE_PROCESS" in one.smi("-i", "0", "-c", "EXCLUSIVE_PROCESS")
    assert "E. Process |" in one.smi("-i", "0")
    one.smi("-c", "1", status=2)


@pytest.mark.parametrize("event", ["reboot", "reset"])
def test_the_ecc_mode_waits_for_a_reset_or_a_reboot_and_stays(node: Make, event: str) -> None:
    one = node("l40s")
    said = one.smi("-i", "0", "-e", "0").splitlines()
    assert said == ["Disabled ECC support for GPU 00000000:16:00.0.", "All done.", "Reboot required."]
    assert field(one, "ecc.mode.current,ecc.mode.pending") == "Enabled, Disabled"
    one.boot() if event == "reboot" else one.smi("-r")
    assert field(one, "ecc.mode.current,ecc.mode.pending") == "Disabled, Disabled"
    one.boot()
    assert field(one, "ecc.mode.current") == "Disabled"


def test_a_reset_takes_the_drivers_settings_away(kept: Make) -> None:
    one = kept("l40s")
    one.smi("-pl", "200")
    one.smi("-r")
    assert field(one, "power.limit") == "350.00"


def test_fabric_manager_keeps_a_gpu_from_being_reset(node: Make) -> None:
    assert "currently in use by another process" in node("h100-sxm").smi("-r", status=1)


@pytest.mark.parametrize(("sku", "after"), [("a100-sxm-80", "Enabled"), ("h100-sxm", "Disabled")])
def test_the_mig_mode_outlives_a_reboot_only_on_ampere_and_no_instance_does(
    node: Make, sku: str, after: str
) -> None:
    one = node(sku)
    assert one.smi("-i", "0", "-mig", "1").startswith("Enabled MIG Mode for GPU ")
    assert one.smi("mig", "-i", "0", "-cgi", "3g.40gb,3g.40gb", "-C").count("Successfully created") == 4
    one.boot()
    assert field(one, "mig.mode.current") == after
    assert "MIG" not in one.smi("-L", "-i", "0")


def test_ampere_waits_for_busy_gpus_and_hopper_refuses(node: Make) -> None:
    one = node("a100-sxm-80")
    one.loaded(0)
    assert "MIG mode is in pending enable state" in one.smi("-i", "0", "-mig", "1")
    assert field(one, "mig.mode.current,mig.mode.pending") == "Disabled, Enabled"
    one.boot()
    assert field(one, "mig.mode.current,mig.mode.pending") == "Enabled, Enabled"
    other = node("h100-sxm", name="gpu-02")
    other.loaded(0)
    assert "In use by another client" in other.smi("-i", "0", "-mig", "1", status=19)
    assert field(other, "mig.mode.current,mig.mode.pending") == "Disabled, Disabled"


def test_mig_devices_are_listed_everywhere(node: Make) -> None:
    one = node()
    one.smi("-i", "1", "-mig", "1")
    one.smi("mig", "-i", "1", "-cgi", "9,14", "-C")
    listed = one.smi("-L").splitlines()
    assert re.fullmatch(r"  MIG 3g\.40gb     Device  0: \(UUID: MIG-[0-9a-f-]{36}\)", listed[2])
    assert re.fullmatch(r"  MIG 2g\.20gb     Device  1: \(UUID: MIG-[0-9a-f-]{36}\)", listed[3])
    assert listed[4].startswith("GPU 2: ")
    rows = one.smi("mig", "-lgi").splitlines()
    assert {len(row) for row in rows} == {57}
    assert [row.split()[3] for row in rows if " MIG " in row] == ["2g.20gb", "3g.40gb"]
    assert one.smi("-q", "-x").count("<mig_device>") == 2
    assert field(one, "utilization.gpu", 1) == "[N/A]"


def test_the_order_of_profiles_matters_as_the_guide_says(node: Make) -> None:
    one = node()
    one.smi("-i", "0", "-mig", "1")
    said = one.smi("mig", "-i", "0", "-cgi", "19,19,14,9", status=23)
    assert said.splitlines()[-2:] == [
        "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources",
        "Failed to create GPU instances: Insufficient Resources",
    ]
    one.smi("mig", "-i", "0", "-dgi")
    assert one.smi("mig", "-i", "0", "-cgi", "9,19,14,19").count("Successfully created") == 4


def test_instances_are_taken_down_from_the_inside(node: Make) -> None:
    one = node()
    one.smi("-i", "0", "-mig", "1")
    one.smi("mig", "-i", "0", "-cgi", "7g.80gb", "-C")
    assert "In use by another client" in one.smi("-i", "0", "-mig", "0", status=19)
    one.smi("mig", "-i", "0", "-dgi", status=19)
    one.smi("mig", "-i", "0", "-dci")
    one.smi("mig", "-i", "0", "-dgi")
    assert one.smi("mig", "-lgi", status=6) == "No GPU instances found: Not Found\n"
    assert one.smi("-i", "0", "-mig", "0").startswith("Disabled MIG Mode")
    assert one.smi("mig", "-lgi", status=6) == "No MIG-enabled devices found.\n"


def test_profiles_have_the_guides_names(node: Make) -> None:
    rows = node("h200-sxm").smi("mig", "-i", "0", "-lgip").splitlines()
    assert {len(row) for row in rows} == {81}
    assert [row.split()[3] for row in rows if " MIG " in row] == [
        *("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    ]
    one = node("l40s", name="gpu-02")
    assert "Not Supported" in one.smi("-i", "0", "-mig", "1", status=3)
    assert field(one, "mig.mode.current") == "[N/A]"
