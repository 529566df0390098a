"""The observing program, run as on a node: passed on standard input to an isolated Python."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.remote import protocol
from tests.node.machine import KEY, KEY_FINGERPRINT, PROGRAM, Machine


def pythons() -> list[str]:
    """Return this Python, and the oldest supported one if it is installed and runs."""
    old = shutil.which("python3.6")
    ran = old and subprocess.run([old, "-c", "pass"], capture_output=True).returncode == 0
    return [sys.executable, *([old] if old and ran else [])]


DPKG_STATUS = """\
Package: held-one
Status: hold ok installed
Architecture: all
Version: 580.126.09-1

Package: libfoo
Status: install ok installed
Architecture: i386
Version: 1:9-1

Package: libfoo
Status: install ok installed
Architecture: {native}
Version: 2:1.0+cuda12.9-1

Package: broken
Status: install ok half-configured
Architecture: {native}
Version: 550.163.01-2
Conffiles:
 /etc/broken.conf 0123456789abcdef
Description: Package: libfoo
 Version: 0

Package: leftover
Status: deinstall ok config-files
Architecture: {native}
Version: 1-1
"""


@pytest.fixture
def packages(machine: Machine) -> Callable[[str], Any]:
    native = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    machine.file("/var/lib/dpkg/status", DPKG_STATUS.format(native=native))
    return lambda fact: machine.value(f"package.{fact}")


def test_its_text_is_python_3_6_and_ascii() -> None:
    text = PROGRAM.encode("ascii").decode()
    ast.parse(text, feature_version=(3, 6))


def test_it_imports_nothing_but_what_starting_python_imports_anyway() -> None:
    """Importing json, re or subprocess would double the cost of an observation."""
    tree = ast.parse(PROGRAM)
    at_start = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert at_start == {"os", "select", "sys", "time"}


def test_the_markers_are_those_the_controller_looks_for() -> None:
    namespace: dict[str, Any] = {}
    exec(PROGRAM, namespace)  # noqa: S102
    assert namespace["BEGIN"].encode() + b" " == protocol.BEGIN
    assert namespace["END"].encode() == protocol.END


@pytest.mark.parametrize("python", pythons())
def test_base_facts_need_not_be_asked_for(machine: Machine, python: str) -> None:
    facts, problems = machine.ask(python=python)
    assert set(facts) == protocol.BASE_FACTS
    assert problems == {}
    assert facts["os.id"] == "debian"
    assert facts["os.version_id"] == "13"
    assert facts["os.codename"] == "trixie"
    assert facts["os.family"] == "debian"
    assert facts["os.arch"] == os.uname().machine
    assert facts["kernel.release"] == os.uname().release
    assert facts["boot.id"] == "1f2e-3d"
    assert (facts["boot.required"], facts["boot.reason"]) == (False, None)
    assert (facts["gpu.count"], facts["gpu.pci"], facts["gpu.nvswitch_count"]) == (0, [], 0)


def test_a_name_may_hold_the_kernels_release(machine: Machine) -> None:
    release = os.uname().release
    machine.file("/etc/" + release, "headers")
    facts, problems = machine.ask("file./etc/{kernel.release}.content")
    assert facts[f"file./etc/{release}.content"] == "headers"
    assert problems == {}


@pytest.mark.parametrize(
    ("os_release", "family"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "redhat"),
        ("ID=rhel\n", "redhat"),
        ("ID=arch\n", "arch"),
    ],
)
def test_os_family(machine: Machine, os_release: str, family: str) -> None:
    machine.file("/etc/os-release", os_release)
    assert machine.value("os.family") == family


def test_a_reboot_is_required_with_its_reason(machine: Machine) -> None:
    machine.file("/run/reboot-required", "*** System restart required ***\n")
    assert machine.value("boot.reason") == "*** System restart required ***"
    machine.file("/run/reboot-required.pkgs", "linux-image-amd64\nlibc6\nlibc6\n")
    facts, _ = machine.ask()
    assert facts["boot.required"] is True
    assert facts["boot.reason"] == "libc6, linux-image-amd64"


def test_gpus_switches_and_nothing_else_from_pci(machine: Machine) -> None:
    gpu = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}
    subsystem = {"subsystem_vendor": "0x10de", "subsystem_device": "0x16C1"}
    machine.pci("0000:9b:00.0", **gpu, **subsystem, current_link_width="8", max_link_width="16")
    machine.pci("0000:1b:00.0", **gpu)
    machine.pci("0000:05:00.0", vendor="0x10de", device="0x22a3", **{"class": "0x068000"})
    machine.pci("0000:1b:00.1", vendor="0x10de", device="0x22bb", **{"class": "0x040300"})  # its audio
    machine.pci("0000:02:00.0", vendor="0x1a03", device="0x2000", **{"class": "0x030000"})  # the BMC's screen
    facts, problems = machine.ask()
    assert problems == {}
    assert facts["gpu.count"] == 2
    assert facts["gpu.nvswitch_count"] == 1
    widths = {"link_width": None, "link_width_max": None}
    assert facts["gpu.pci"] == [
        {"address": "0000:1b:00.0", "device_id": "10de:2330", "subsystem_id": None, **widths},
        {"address": "0000:9b:00.0", "device_id": "10de:2330", "subsystem_id": "10de:16c1"}
        | {"link_width": 8, "link_width_max": 16},
    ]


RHEL = 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n'


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("held-one.version", "580.126.09-1"),
        ("held-one.held", True),
        ("libfoo.version", "2:1.0+cuda12.9-1"),
        ("libfoo.held", False),
        ("broken.status", "half-configured"),
        ("broken.version", "550.163.01-2"),
        ("leftover.status", "config-files"),
        ("leftover.version", None),
        ("nobody.status", "absent"),
        ("nobody.version", None),
        ("nobody.held", False),
    ],
)
def test_packages(packages: Callable[[str], Any], fact: str, value: Any) -> None:
    assert packages(fact) == value


def test_blank_lines_between_packages_may_be_several(machine: Machine) -> None:
    """Manual edits can leave such lines, and dpkg ignores them."""
    one = "Package: {}\nStatus: install ok installed\nArchitecture: all\nVersion: 1-1\n"
    machine.file("/var/lib/dpkg/status", one.format("first") + "\n\n" + one.format("second") + "\n\n\n\n")
    assert machine.value("package.first.version") == "1-1"
    assert machine.value("package.second.version") == "1-1"


def test_an_interrupted_dpkg_is_seen(machine: Machine, packages: Callable[[str], Any]) -> None:
    update = "Package: held-one\nStatus: hold ok unpacked\nArchitecture: all\nVersion: 590-1\n"
    machine.file("/var/lib/dpkg/updates/0001", update)
    machine.file("/var/lib/dpkg/updates/tmp.i", update.replace("590", "666"))
    assert packages("held-one.status") == "unpacked"
    assert packages("held-one.version") == "590-1"


def test_packages_of_rpm(machine: Machine) -> None:
    said = "cuda-drivers|3|580.126.09-1.el9\nkmod|(none)|28-10.el9\npackage no is not installed\n"
    machine.tool("rpm", f"printf '{said}'; exit 1")
    machine.file("/etc/os-release", RHEL)
    locks = (
        "\n# Added lock on Sat Nov 21 03:43:52 2026\ncuda-drivers-3:580.126.09-1.el9.*\nkmod-libs-0:1-1.*\n"
    )
    machine.file("/etc/dnf/plugins/versionlock.list", locks)
    names = [f"package.{name}" for name in ("cuda-drivers", "kmod", "no")]
    found = machine.values(*(f"{name}.{what}" for name in names for what in ("version", "held", "status")))
    assert list(found.values()) == [
        *("3:580.126.09-1.el9", True, "installed"),
        *("28-10.el9", False, "installed"),
        *(None, False, "absent"),
    ]


@pytest.mark.parametrize(
    ("path", "text", "held"),
    [
        ("plugins/versionlock.list", "nvlsm-0:2025.10.14-1.*\n", True),
        ("plugins/versionlock.list", "nvlsm-2025.10.14-*\n", True),
        ("plugins/versionlock.list", "nvlsm-0:2025.10.14-1.noarch\n", True),
        ("plugins/versionlock.list", "nvlsm-0:2025.06.1-1.*\n", False),
        ("plugins/versionlock.list", "nvlsm-0:2025.*\n", False),
        ("plugins/versionlock.list", "nvlsm\n", False),
        ("plugins/versionlock.list", "!nvlsm-0:2025.10.14-1.*\n", False),
        ("plugins/versionlock.list", "# nvlsm-0:2025.10.14-1.*\n", False),
        ("versionlock.toml", '[[packages]]\nname = "nvlsm"\n', False),
        (
            "versionlock.toml",
            'version = "1.0"\n[[packages]]\nname = "nvlsm"\n[[packages.conditions]]\n'
            'key = "evr"\ncomparator = "="\nvalue = "0:2025.10.14-1"\n',
            True,
        ),
    ],
)
def test_a_lock_holds_when_it_lets_no_other_version_in(
    machine: Machine, path: str, text: str, held: bool
) -> None:
    machine.file("/etc/os-release", RHEL)
    machine.tool("rpm", "printf 'nvlsm|(none)|2025.10.14-1\n'")
    machine.file(f"/etc/dnf/{path}", text)
    assert machine.value("package.nvlsm.held") is held


def test_the_family_decides_whose_database_is_asked(machine: Machine, packages: Callable[[str], Any]) -> None:
    machine.tool("rpm", "printf 'held-one|(none)|9-9\n'")
    assert packages("held-one.version") == "580.126.09-1", "rpm is a mere tool on Debian"
    machine.file("/etc/os-release", RHEL)
    assert packages("held-one.version") == "9-9", "dpkg is a mere tool on the RHEL family"


def test_a_package_of_rpm_can_be_asked_for_with_its_version(machine: Machine) -> None:
    machine.file("/etc/os-release", RHEL)
    machine.tool("rpm", "printf 'kernel-devel|(none)|5.14.0-503.el9\n'")
    for name in ("kernel-devel", "kernel-devel-5.14.0", "kernel-devel-5.14.0-503.el9"):
        assert machine.value(f"package.{name}.status") == "installed"
    assert machine.value(f"package.kernel-devel-5.14.0-503.el9.{os.uname().machine}.status") == "installed"
    assert machine.value("package.kernel-devel-5.14.0-999.el9.status") == "absent"


def test_files(machine: Machine) -> None:
    text = 'x = "é\t\\"\n\x7f'.encode()
    machine.file("/etc/a.b.conf", text, mode=0o640)
    (machine.root / "etc/link").symlink_to("/etc/elsewhere")
    machine.file("/etc/passwd", f"someone:x:{os.getuid()}:1::/:/bin/sh\n")
    machine.file("/etc/group", f"some:x:{os.getgid()}:\n")
    names = ("content", "exists", "mode", "owner", "sha256", "target")
    digest = hashlib.sha256(text).hexdigest()
    found = machine.values(*(f"file./etc/a.b.conf.{name}" for name in names))
    assert list(found.values()) == [text.decode(), True, "0640", "someone:some", digest, None]
    found = machine.values("file./etc/link.target", "file./etc/link.exists")
    assert list(found.values()) == ["/etc/elsewhere", False]


def test_the_sha256_of_a_file_larger_than_what_is_shown(machine: Machine) -> None:
    machine.file("/opt/large", b"a" * 1_000_000)
    assert machine.value("file./opt/large.sha256") == (
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
    )
    assert machine.problem("file./opt/large.content") == "larger than 64 KiB"


@pytest.mark.parametrize("attribute", ["content", "mode", "owner", "sha256", "target"])
def test_what_is_not_there_is_null(machine: Machine, attribute: str) -> None:
    assert machine.value(f"file./etc/nothing/at/all.{attribute}") is None
    assert machine.value("file./etc/nothing/at/all.exists") is False


def test_what_may_not_be_read_is_a_problem_and_not_null() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # pytest's own folders are closed to the user below
        machine = Machine(Path(folder) / "root")
        machine.file("/etc/secret", "x", mode=0)
        machine.file("/closed/file", "x").parent.chmod(0)
        asked = ["file./etc/secret.content", "file./etc/secret.mode", "file./closed/file.exists"]
        become_nobody = "import os, select\nos.setuid(65534)\n" if os.geteuid() == 0 else ""
        output = machine.run(*asked, first=become_nobody)
        (machine.root / "closed").chmod(0o755)
    facts, problems = protocol.facts_of(protocol.unframed(output), asked)
    assert facts["file./etc/secret.mode"] == "0000"
    assert set(problems) == {"file./etc/secret.content", "file./closed/file.exists"}
    assert problems["file./etc/secret.content"].startswith("permission denied")


def test_what_is_no_file_is_a_problem_and_no_wait(machine: Machine) -> None:
    (machine.root / "etc/folder").mkdir()
    os.mkfifo(machine.root / "etc/fifo")
    assert machine.problem("file./etc/folder.content") == "not a regular file"
    assert machine.problem("file./etc/fifo.content") == "not a regular file"


def test_modules(machine: Machine) -> None:
    machine.file("/sys/module/nvidia_uvm/initstate", "live\n")
    machine.file("/sys/module/kernel/parameters/panic", "0\n")
    assert machine.value("module.nvidia-uvm.loaded") is True
    assert machine.value("module.nvidia_uvm.loaded") is True
    assert machine.value("module.kernel.loaded") is False
    assert machine.value("module.nouveau.loaded") is False


@pytest.mark.parametrize(
    ("text", "flavour", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build  (x@y)  Fri\n"
            "GCC version:  gcc version 14.2.0 (Debian 14.2.0-19)\n",
            "open",
            "580.126.09",
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
            "proprietary",
            "535.104.05",
        ),
    ],
)
def test_the_loaded_driver(machine: Machine, text: str, flavour: str, version: str) -> None:
    machine.file("/proc/driver/nvidia/version", text)
    assert machine.value("driver.flavour") == flavour
    assert machine.value("driver.loaded_version") == version


def test_no_driver_loaded_is_null_and_nonsense_is_a_problem(machine: Machine) -> None:
    assert machine.value("driver.loaded_version") is None
    machine.file("/proc/driver/nvidia/version", "NVRM version: who knows 1.2\n")
    assert "not understood" in machine.problem("driver.loaded_version")


def test_the_driver_on_disk(machine: Machine) -> None:
    machine.tool("modinfo", 'echo "modinfo: ERROR: Module nvidia not found." >&2; exit 1')
    assert machine.value("driver.installed_version") is None
    machine.tool("modinfo", 'echo 580.126.09; echo "modinfo: ERROR: Module x not found." >&2; exit 1')
    assert machine.value("driver.installed_version") == "580.126.09"
    machine.tool("modinfo", "echo gibberish")
    assert machine.problem("driver.installed_version") == "modinfo answered: gibberish"


def test_the_driver_of_user_space_through_a_chain_of_links(machine: Machine) -> None:
    assert machine.value("driver.userspace_version") is None
    folder = machine.root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").symlink_to("/etc/alternatives/nvidia--libnvidia-ml.so.1")
    (machine.root / "etc/alternatives").mkdir()
    target = machine.root / "etc/alternatives/nvidia--libnvidia-ml.so.1"
    target.symlink_to("../../usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01")
    assert machine.value("driver.userspace_version") == "550.163.01"


def test_services(machine: Machine) -> None:
    machine.tool(
        "systemctl",
        """\
test "$*" = "show --no-pager --property=LoadState,ActiveState,UnitFileState -- a.timer b c" || exit 9
printf 'LoadState=loaded\\nActiveState=active\\nUnitFileState=enabled\\n\\n'
printf 'LoadState=not-found\\nActiveState=inactive\\nUnitFileState=\\n\\n'
printf 'LoadState=loaded\\nActiveState=failed\\nUnitFileState=static\\n'""",
    )
    names = [f"service.{unit}.{what}" for unit in ("a.timer", "b", "c") for what in ("active", "enabled")]
    found = machine.values(*names)
    assert list(found.values()) == ["active", "enabled", None, None, "failed", "static"]


def test_a_manager_that_does_not_answer_is_a_problem(machine: Machine) -> None:
    machine.tool("systemctl", 'echo "Failed to connect to bus: Host is down" >&2; exit 1')
    assert "Host is down" in machine.problem("service.ssh.active")
    (machine.root / "usr/bin/systemctl").unlink()
    assert machine.problem("service.ssh.active") == "systemctl is not installed"


def test_keys_armoured_binary_and_several(machine: Machine) -> None:
    import base64

    packets = base64.b64decode("".join(KEY.splitlines()[3:-2]))
    machine.file("/k/one.asc", KEY)
    machine.file("/k/one.gpg", packets)
    machine.file("/k/two.gpg", packets * 2)
    assert machine.value("pgp_key./k/one.asc.fingerprints") == [KEY_FINGERPRINT]
    assert machine.value("pgp_key./k/one.gpg.fingerprints") == [KEY_FINGERPRINT]
    assert machine.value("pgp_key./k/two.gpg.fingerprints") == [KEY_FINGERPRINT] * 2
    assert machine.value("pgp_key./k/none.gpg.fingerprints") is None


def test_what_is_no_keyring_is_a_problem(machine: Machine) -> None:
    machine.file("/k/html.gpg", "<html>404</html>")
    machine.file("/k/cut.gpg", b"\x98\x33\x04")
    machine.file("/k/box.kbx", b"\0\0\0\x20\x01\x01\0\0KBXf" + b"\0" * 20)
    machine.file("/k/old.gpg", b"\x98\x02\x03\x00")
    assert machine.problem("pgp_key./k/html.gpg.fingerprints") == "not an OpenPGP keyring"
    assert machine.problem("pgp_key./k/cut.gpg.fingerprints") == "not an OpenPGP keyring"
    assert "keybox" in machine.problem("pgp_key./k/box.kbx.fingerprints")
    assert "version 3" in machine.problem("pgp_key./k/old.gpg.fingerprints")


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 19001 1 ffff 100
   1: 0100007F:15B3 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 19002 1 ffff 20
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr
   0: 00000000000000000000000000000000:24B8 00000000000000000000000000000000:0000 0A 00000000:00000000 00
"""


def test_a_port_that_somebody_listens_on(machine: Machine) -> None:
    machine.file("/proc/net/tcp", TCP)
    assert machine.value("tcp.22.listening") is True
    assert machine.value("tcp.9400.listening") is False, "this kernel has no IPv6"
    machine.file("/proc/net/tcp6", TCP6)
    assert machine.value("tcp.9400.listening") is True
    assert machine.value("tcp.5555.listening") is False, "a connection is no listener"
    assert machine.problem("tcp.http.listening") == "http is not a port"


def test_sysctl(machine: Machine) -> None:
    machine.file("/proc/sys/net/ipv4/conf/eth0.1/rp_filter", "2\n")
    machine.file("/proc/sys/vm/nr_hugepages", "0\n")
    assert machine.value("sysctl.vm.nr_hugepages.value") == "0"
    assert machine.value("sysctl.net.ipv4.conf.eth0/1.rp_filter.value") == "2"
    assert machine.value("sysctl.net/ipv4/conf/eth0.1/rp_filter.value") == "2"
    assert machine.value("sysctl.no.such.value") is None


@pytest.mark.parametrize(
    "fact", ["weather", "file.content", "driver.x.flavour", "package.bash.colour", "x.y.z"]
)
def test_an_unknown_fact_is_a_problem(machine: Machine, fact: str) -> None:
    assert machine.problem(fact) == "no such fact"


def test_a_tool_that_hangs_costs_its_own_facts_only(machine: Machine) -> None:
    """The tool ignores TERM, and its child keeps the pipe open."""
    machine.tool("systemctl", "trap '' TERM HUP INT; sleep 300 & sleep 300")
    machine.tool("modinfo", "echo 580.126.09")
    facts, problems = machine.ask("service.ssh.active", "driver.installed_version", probe_seconds=0.3)
    assert problems == {"service.ssh.active": "systemctl: no answer within 0.3 s"}
    assert facts["driver.installed_version"] == "580.126.09"
    assert facts["os.id"] == "debian"


def test_a_file_that_hangs_costs_its_own_fact_only(machine: Machine) -> None:
    """A sleep in the reading process stands for a file system that does not answer."""
    machine.file("/etc/after", "here")
    text = PROGRAM.replace(
        "def file_attribute(path, attribute):",
        "def file_attribute(path, attribute):\n    if 'stuck' in path:\n        time.sleep(300)",
    )
    request: dict[str, Any] = {
        "facts": ["file./etc/stuck.content", "file./etc/after.content", "sysctl.vm.x.value"],
        "root": str(machine.root),
        "probe_seconds": 0.3,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"],
        input=f"{text}\nmain({request!a})\n".encode(),
        stdout=subprocess.PIPE,
        timeout=60,
    )
    facts, problems = protocol.facts_of(protocol.unframed(done.stdout), request["facts"])
    assert problems == {"file./etc/stuck.content": "no answer within 0.3 s"}
    assert facts["file./etc/after.content"] == "here" or facts["sysctl.vm.x.value"] is None
    assert facts["gpu.count"] == 0


def test_a_deadline_for_all(machine: Machine) -> None:
    machine.tool("systemctl", "sleep 300")
    facts, problems = machine.ask("service.ssh.active", seconds=0.3)
    assert problems == {"service.ssh.active": "systemctl: no time was left for it"}
    assert facts["os.id"] == "debian"


def test_an_answer_has_a_limit_and_says_what_it_left_out(machine: Machine) -> None:
    names = []
    for number in range(20):
        machine.file(f"/etc/f{number:02}", "x" * 60_000)
        names.append(f"file./etc/f{number:02}.content")
    facts, problems = machine.ask(*names)
    assert len(machine.run(*names)) < 1_100_000
    assert 10 < sum(name in facts for name in names) < 20
    left_out = set(names) - set(facts)
    assert {problems[name] for name in left_out} == {"left out: the whole answer passed 1024 KiB"}
    assert "file./etc/f00.content" in machine.ask(*names, bytes=70_000)[0]
    assert "file./etc/f01.content" in machine.ask(*names, bytes=70_000)[1]


def test_a_tool_that_floods_does_not_drown_the_answer(machine: Machine) -> None:
    machine.tool("systemctl", "exec yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
    assert len(machine.problem("service.ssh.active")) < 300


def test_it_leaves_nothing_behind(machine: Machine) -> None:
    before = sorted(str(path) for path in machine.root.rglob("*"))
    machine.ask("file./etc/os-release.content", "package.x.version")
    assert sorted(str(path) for path in machine.root.rglob("*")) == before
