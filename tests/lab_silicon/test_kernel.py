"""The simulated kernel: modules, boot, the kernel log, and the hardware it shows."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable

import pytest

from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
DRIVER = "580.126.09"


def test_a_new_node_shows_its_gpus_and_no_driver(bare: Make) -> None:
    node = bare("h100-sxm")
    devices = {path.name: (path / "class").read_text().strip() for path in (node.state / "sys_pci").iterdir()}
    assert list(devices.values()).count("0x030200") == 8
    assert list(devices.values()).count("0x068000") == 4
    assert (node.state / "sys_pci/0000:1b:00.0/device").read_text() == "0x2330\n"
    assert not (node.state / "proc_driver/nvidia").exists()


@pytest.mark.parametrize(
    ("sku", "gpus", "switches"),
    [
        ("h200-sxm", 8, 4),
        ("a100-sxm-80", 8, 6),
        ("a100-pcie-80", 4, 0),
        ("l40s", 8, 0),
        ("b200", 8, 0),
        ("none", 0, 0),
    ],
)
def test_each_sku_has_its_own_hardware(bare: Make, sku: str, gpus: int, switches: int) -> None:
    classes = [(path / "class").read_text().strip() for path in (bare(sku).state / "sys_pci").iterdir()]
    assert (classes.count("0x030200"), classes.count("0x068000")) == (gpus, switches)


def test_identities_follow_from_seed_and_name_and_differ_between_nodes(bare: Make) -> None:
    one, other = bare(name="gpu-01").json("state.json"), bare(name="gpu-02").json("state.json")
    uuids = [gpu["uuid"] for gpu in one["gpus"] + other["gpus"]]
    assert len(set(uuids)) == 16
    again = bare(name="again")
    words = ["--dir", str(again.state), "--sku", "h100-sxm", "--name", "gpu-01", "--seed", "7"]
    assert again.run("new", *words).returncode == 0
    assert again.json("state.json")["gpus"] == one["gpus"]


def test_nouveau_takes_the_gpus_at_boot_and_keeps_nvidia_out(bare: Make) -> None:
    node = bare()
    node.install(DRIVER)
    node.boot()
    assert (node.state / "sys_module/nouveau/initstate").read_text() == "live\n"
    done = node.run("modprobe", "nvidia")
    assert done.returncode == 1
    assert done.stderr == "modprobe: ERROR: could not insert 'nvidia': No such device\n"
    assert "nouveau, rivafb, nvidiafb or rivatv" in node.run("dmesg").stdout
    assert node.run("nvidia-smi").returncode == 9


def test_blacklisting_nouveau_lets_nvidia_in_at_the_next_boot(bare: Make) -> None:
    node = bare()
    node.install(DRIVER)
    node.boot()
    node.boot(DRIVER)
    assert not (node.state / "sys_module/nouveau").exists()
    assert (node.state / "sys_module/nvidia/version").read_text() == f"{DRIVER}\n"
    modules = (node.state / "proc_modules").read_text()
    assert modules.splitlines()[-1].startswith("nvidia ")
    assert "nvidia_uvm" in modules
    assert node.run("nvidia-smi").returncode == 0


def test_proc_modules_keeps_its_inode(bare: Make) -> None:
    # The file is mounted over the node's own: a renamed file would stay invisible.
    node = bare()
    before = (node.state / "proc_modules").stat().st_ino
    node.boot(DRIVER)
    assert (node.state / "proc_modules").stat().st_ino == before
    assert (node.state / "proc_modules").read_text()


def test_without_a_module_on_disk_modprobe_says_where_it_looked(bare: Make) -> None:
    done = bare().run("modprobe", "nvidia")
    assert done.returncode == 1
    where = f"/lib/modules/{platform.release()}"
    assert done.stderr == f"modprobe: FATAL: Module nvidia not found in directory {where}\n"


@pytest.mark.parametrize(
    ("flavour", "named"),
    [
        ("open", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build"),
        ("proprietary", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  "),
    ],
)
def test_the_flavour_shows_in_proc(bare: Make, flavour: str, named: str) -> None:
    node = bare().boot(DRIVER, flavour)
    assert (node.state / "proc_driver/nvidia/version").read_text().startswith(named)
    information = (node.state / "proc_driver/nvidia/gpus/0000:1b:00.0/information").read_text()
    assert "Model: \t\t NVIDIA H100 80GB HBM3\n" in information


@pytest.mark.parametrize(
    ("sku", "driver", "flavour"), [("b200", DRIVER, "proprietary"), ("b200", "550.163.01", "open")]
)
def test_a_driver_that_does_not_know_the_gpu_refuses_it(
    bare: Make, sku: str, driver: str, flavour: str
) -> None:
    node = bare(sku).boot(driver, flavour)
    assert "NVRM: None of the NVIDIA devices were initialized." in node.run("dmesg").stdout
    assert node.run("nvidia-smi").returncode == 9


def test_a_machine_without_gpus_refuses_the_driver(bare: Make) -> None:
    node = bare("none").boot()
    node.install(DRIVER)
    done = node.run("modprobe", "nvidia")
    assert done.stderr == "modprobe: ERROR: could not insert 'nvidia': No such device\n"
    assert "NVRM: No NVIDIA GPU found." in node.run("dmesg").stdout


def test_a_module_for_another_kernel_is_refused(bare: Make) -> None:
    node = bare()
    node.install(DRIVER)
    path = node.root / "lib/modules" / platform.release() / "updates/dkms/nvidia.ko"
    release = platform.release().encode()
    path.write_bytes(path.read_bytes().replace(b"vermagic=" + release, b"vermagic=" + b"9" * len(release)))
    done = node.run("modprobe", "nvidia")
    assert done.stderr == "modprobe: ERROR: could not insert 'nvidia': Exec format error\n"


def test_a_used_module_stays(node: Make) -> None:
    one = node(fabric=False)
    done = one.run("rmmod", "nvidia")
    assert done.returncode == 1
    assert done.stderr == "rmmod: ERROR: Module nvidia is in use by: nvidia_drm nvidia_modeset nvidia_uvm\n"
    for module in ("nvidia_drm", "nvidia_modeset", "nvidia_uvm"):
        assert one.run("rmmod", module).returncode == 0
    assert one.run("rmmod", "nvidia").returncode == 0
    assert not (one.state / "proc_driver/nvidia").exists()
    assert (one.state / "proc_modules").read_text() == ""


def test_a_running_daemon_keeps_nvidia_loaded(node: Make) -> None:
    one = node()
    done = one.run("modprobe", "-r", "nvidia_uvm")
    assert (done.returncode, done.stderr) == (1, "modprobe: FATAL: Module nvidia_uvm is in use.\n")


def test_an_install_line_keeps_a_module_out(bare: Make) -> None:
    node = bare()
    node.file("etc/modprobe.d/no.conf", "install nvidia /bin/false\n")
    node.boot(DRIVER)
    assert not (node.state / "sys_module/nvidia").exists()
    assert node.run("modprobe", "nvidia").returncode == 1
    assert node.run("modprobe", "--ignore-install", "nvidia").returncode == 0


def test_modules_listed_for_boot_are_loaded(bare: Make) -> None:
    node = bare()
    node.file("etc/modules-load.d/rdma.conf", "# for nvlsm\nib_umad\n")
    node.run("boot")
    assert (node.state / "sys_module/ib_umad/initstate").exists()


def test_boot_forgets_what_ran(node: Make) -> None:
    one = node()
    assert one.run("nvidia-smi", "-pm", "1").returncode == 0
    one.run("boot")
    assert list((one.state / "run").iterdir()) == []
    assert "<persistence_mode>Disabled" in one.run("nvidia-smi", "-q", "-x").stdout


def test_dmesg_prints_times_in_the_forms_people_ask_for(node: Make) -> None:
    one = node()
    plain, iso = (one.run("dmesg", *form).stdout.splitlines() for form in ((), ("--time-format", "iso")))
    assert plain[0].startswith("[    0.000000] Linux version ")
    assert len(iso) == len(plain)
    assert iso[0][10] == "T"
    assert iso[0][26:32] == "+00:00"
    assert one.run("dmesg", "-T").stdout.startswith("[")
    stamps = [float(line[1:13]) for line in plain]
    assert stamps == sorted(stamps)


def test_an_xid_fault_is_in_the_log_now_and_after_the_next_boot_unless_it_happened_once(node: Make) -> None:
    one = node()
    one.break_("xid gpu=2 code=79", "xid gpu=1 code=31 once=yes")
    log = one.run("dmesg").stdout
    assert (
        "NVRM: Xid (PCI:0000:52:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus." in log
    )
    assert "NVRM: Xid (PCI:0000:43:00): 31, " in log
    one.run("boot")
    log = one.run("dmesg").stdout
    assert "Xid (PCI:0000:52:00): 79" in log
    assert "Xid (PCI:0000:43:00): 31" not in log


def test_an_xid_needs_a_driver_to_report_it(bare: Make) -> None:
    node = bare()
    node.break_("xid gpu=0 code=79")
    assert "Xid" not in node.run("dmesg").stdout
    node.install(DRIVER)
    node.run("modprobe", "nvidia")
    assert "Xid (PCI:0000:1b:00): 79" in node.run("dmesg").stdout


def test_configuration_space_is_what_lspci_reads(bare: Make) -> None:
    node = bare()
    config = node.state / "sys_pci/0000:1b:00.0/config"
    head = config.read_bytes()
    assert (len(head), head[:4], head[8:12]) == (64, b"\xde\x10\x30\x23", b"\xa1\x00\x02\x03")
    node.break_("gpu_off_bus gpu=0")
    assert config.read_bytes() == b"\xff" * 64


def test_a_cleanup_names_the_xid_before_it_as_drivers_do_since_570(node: Make) -> None:
    """kernel_rc.c of NVIDIA/open-gpu-kernel-modules has this text since 570.124.04; 570.86.16 lacks it."""
    for driver, words in (("550.163.01", ""), ("580.126.09", " caused by previous Xid 48")):
        one = node(driver=driver, name=f"gpu-{driver[:3]}")
        one.break_("xid_incident gpu=3 code=48")
        (cleanup,) = [line for line in one.run("dmesg").stdout.splitlines() if "): 45, " in line]
        assert cleanup.endswith(f"name=python, Ch 00000008{words}")


@pytest.mark.parametrize(
    ("driver", "words"), [("580.126.09", "0x2 (Node Reboot Required)"), ("610.43.02", "0x2 (OS Reboot)")]
)
def test_the_words_of_a_recovery_action_are_the_drivers(node: Make, driver: str, words: str) -> None:
    """Compare with gpu.c of NVIDIA/open-gpu-kernel-modules 595.45.04 and public logs of 610.43.02."""
    one = node(driver=driver)
    one.break_("xid_incident gpu=3 code=79")
    assert f"154, GPU recovery action changed from 0x0 (None) to {words}" in one.run("dmesg").stdout


@pytest.mark.parametrize("code", [145, 149])
def test_an_xid_of_nvlink_5_has_the_registers_of_its_link(node: Make, code: int) -> None:
    one = node("b200")
    one.break_(f"nvlink_storm code={code}")
    lines = [text for text in one.run("dmesg", "-t").stdout.splitlines() if f": {code}, " in text]
    assert len(lines) == 8
    for line in lines:
        assert re.search(r": \d+, [A-Z_]+ +(Nonf|F)atal +XC\d i0 Link \d\d \((0x[0-9a-f]{8}[ )]){6}$", line)
