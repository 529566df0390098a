"""Expectations of the role host_settings, and the effects of its program on a machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.roles.promises import promised
from tests.roles.scripts import Stage, needs_root
from tests.support.described import machine

PROGRAM = "file./usr/local/sbin/gpuprov-host-settings.content"
ROOT_PORT, OTHER_PORT, OTHER_DOMAIN = "0000:16:01.0", "0000:30:01.0", "0001:16:01.0"


def program(**declared: Any) -> str:
    return str(promised(**declared)[PROGRAM].value)


# --- expectations


def test_a_machine_without_frequency_policies_or_its_own_clock_is_as_declared() -> None:
    facts = promised()
    assert facts["cpu.governors"].holds(["performance"])
    assert facts["cpu.governors"].holds([])
    assert not facts["cpu.governors"].holds(["performance", "schedutil"])
    assert facts["clock.state"].holds("host")
    assert not facts["clock.state"].holds("unsynchronised")
    assert not facts["clock.keeper"].holds(None)
    assert facts["memory.numa_balancing"].holds(False)


@pytest.mark.parametrize(
    ("value", "found", "holds"),
    [
        ("4096 87380 16777216", "4096\t87380\t16777216", True),
        ("4096 87380 16777216", "4096\t87380\t6291456", False),
        (True, "1", True),
        (False, "1", False),
        (1024, "1024", True),
        (1024, "10240", False),
        ("|/usr/lib/core %p", "|/usr/lib/core %p", True),
        ("10.0.0.1", "10x0x0x1", False),
    ],
)
def test_kernel_parameters_are_compared_as_the_kernel_prints_them(
    value: Any, found: str, holds: bool
) -> None:
    facts = promised(host_settings_sysctls={"net.ipv4.tcp_rmem": value})
    assert facts["sysctl.net.ipv4.tcp_rmem.value"].holds(found) is holds


def test_what_is_null_is_neither_promised_nor_written() -> None:
    off = {"host_settings_cpu_governor": None, "host_settings_numa_balancing": None}
    facts = promised(**off, host_settings_time_sync="none")
    assert facts[PROGRAM].value is None
    ours = {fact for fact, each in facts.items() if each.role == "host_settings"}
    assert not [fact for fact in ours if fact.startswith(("cpu.", "memory.", "clock.", "pci.", "sysctl."))]
    text = facts["file./etc/sysctl.d/90-gpuprov-host-settings.conf.content"].value
    assert [line for line in text.splitlines() if not line.startswith("#")] == []


def test_servers_go_where_the_program_that_keeps_the_clock_reads_them() -> None:
    servers = {"host_settings_time_servers": ["ntp1.example", "10.0.0.1"]}
    chrony = promised(**servers)["file./etc/chrony/conf.d/gpuprov.conf.content"].value
    assert chrony.endswith("server ntp1.example iburst\nserver 10.0.0.1 iburst\n")
    other = promised(**servers, host_settings_time_sync="timesyncd")
    text = other["file./etc/systemd/timesyncd.conf.d/gpuprov.conf.content"].value
    assert text.endswith("[Time]\nNTP=ntp1.example 10.0.0.1\n")
    assert "file./etc/chrony.d/gpuprov.conf.content" in promised(machine("rocky 9"), **servers)


@pytest.mark.parametrize(("size", "octets"), [("64G", 64 << 30), ("512M", 512 << 20), ("8K", 8192)])
def test_the_size_of_shared_memory_is_promised_in_bytes(size: str, octets: int) -> None:
    assert promised(host_settings_shm_size=size)["memory.shm_bytes"].value == octets


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"host_settings_disable_acs": True, "host_settings_shm_size": "1G"},
        {"host_settings_cpu_governor": None, "host_settings_transparent_hugepage": "never"},
    ],
)
def test_the_program_is_shell_whatever_is_declared(declared: dict[str, Any]) -> None:
    done = subprocess.run(["sh", "-n"], input=program(**declared), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


# --- the program


@needs_root
def test_governors_and_huge_pages_are_set_once(stage: Stage) -> None:
    policies = "devices/system/cpu/cpufreq/policy{}/scaling_governor"
    one, two = (
        stage.file(policies.format(n), text) for n, text in enumerate(("schedutil\n", "performance\n"))
    )
    pages = stage.file("kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    text = program(host_settings_transparent_hugepage="never")
    done = stage.run(text)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2, "policy1 was right already"
    assert (one.read_text(), two.read_text(), pages.read_text()) == (
        "performance\n",
        "performance\n",
        "never\n",
    )
    pages.write_text("always madvise [never]\n")
    assert stage.run(text).stdout == ""


@needs_root
def test_a_setting_that_is_not_taken_is_said(stage: Stage) -> None:
    (stage.sys / "devices/system/cpu/cpufreq/policy0/scaling_governor").mkdir(parents=True)
    done = stage.run(program())
    assert done.returncode == 1
    assert "does not take performance" in done.stderr


SETPCI = """\
python3 - "$@" <<'END'
import sys
address, what = sys.argv[2:4]
name, _, value = what.partition("=")
place = "/sys/bus/pci/devices/" + address + "/config"
space = bytearray(open(place, "rb").read())
at, size = {"SECONDARY_BUS": (0x19, 1), "SUBORDINATE_BUS": (0x1A, 1), "ECAP_ACS+6.w": (0x10E, 2)}[name]
if name.startswith("ECAP") and space[0x108] != 0x0D:
    sys.exit("setpci: " + address + ": Instance #0 of Extended capability 000d not found")
if value:
    space[at:at + size] = int(value, 16).to_bytes(size, "little")
    open(place, "wb").write(space)
else:
    print("%0*x" % (2 * size, int.from_bytes(space[at:at + size], "little")))
END"""


def device(stage: Stage, address: str, kind: str, vendor: str = "0x8086") -> None:
    stage.file(f"bus/pci/devices/{address}/class", kind + "\n")
    stage.file(f"bus/pci/devices/{address}/vendor", vendor + "\n")


def bridge(stage: Stage, address: str, below: tuple[int, int], control: int | None) -> Path:
    device(stage, address, "0x060400")
    space = bytearray(4096)
    space[0x19:0x1B] = bytes(below)
    if control is not None:
        space[0x108], space[0x10E] = 0x0D, control
    return stage.file(f"bus/pci/devices/{address}/config", bytes(space))


@pytest.fixture
def server(stage: Stage) -> dict[str, Path]:
    """Build a machine with a GPU at bus 1b, an RDMA card at bus 9d and a disk at bus 31."""
    stage.program("setpci", SETPCI)
    device(stage, "0000:1b:00.0", "0x030200", "0x10de")
    device(stage, "0000:9d:00.0", "0x020700", "0x15b3")
    device(stage, "0000:31:00.0", "0x010802")
    return {
        "above the GPU": bridge(stage, ROOT_PORT, (0x18, 0x2F), 0x1D),
        "above the card": bridge(stage, "0000:98:01.0", (0x9D, 0x9D), 0x08),
        "only validating": bridge(stage, "0000:19:00.0", (0x1B, 0x1B), 0x01),
        "without ACS": bridge(stage, "0000:1a:00.0", (0x1B, 0x1B), None),
        "above a disk": bridge(stage, OTHER_PORT, (0x31, 0x31), 0x1D),
        "of another domain": bridge(stage, OTHER_DOMAIN, (0x18, 0x2F), 0x1D),
    }


@needs_root
def test_access_control_is_cleared_in_the_harmful_bridges_and_in_no_other(
    stage: Stage, server: dict[str, Path]
) -> None:
    done = stage.run(program(host_settings_disable_acs=True))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{ROOT_PORT}: ACSCtl 001d -> 0000",
        "0000:98:01.0: ACSCtl 0008 -> 0000",
    ]
    left = {name: file.read_bytes()[0x10E] for name, file in server.items()}
    cleared = {"above the GPU": 0, "above the card": 0, "without ACS": 0}
    assert left == {**cleared, "only validating": 1, "above a disk": 0x1D, "of another domain": 0x1D}
    again = stage.run(program(host_settings_disable_acs=True))
    assert (again.returncode, again.stdout) == (0, "")


@needs_root
def test_in_a_virtual_machine_nothing_is_touched(stage: Stage, server: dict[str, Path]) -> None:
    stage.cpuinfo("flags\t\t: fpu vme hypervisor sse2\n")
    before = {name: file.read_bytes() for name, file in server.items()}
    done = stage.run(program(host_settings_disable_acs=True))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {name: file.read_bytes() for name, file in server.items()} == before
    assert stage.ran("setpci") == []


@needs_root
@pytest.mark.usefixtures("server")
def test_a_bridge_that_keeps_its_setting_is_named(stage: Stage) -> None:
    stage.program("setpci", SETPCI.replace('open(place, "wb").write(space)', "pass"))
    done = stage.run(program(host_settings_disable_acs=True))
    assert done.returncode == 1
    assert f"{ROOT_PORT}: the bridge keeps ACSCtl 001d" in done.stderr


@needs_root
@pytest.mark.usefixtures("server")
def test_nobody_asked_nothing_is_read(stage: Stage) -> None:
    assert stage.run(program()).returncode == 0
    assert stage.ran("setpci") == []
