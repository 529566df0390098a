"""The families pci, cpu, memory, clock and limits, on trees modelled on a machine's /sys and /proc."""

from __future__ import annotations

import pytest

from tests.node.machine import Tree

# --- PCI

GPU, SWITCH_PORT, ROOT_PORT, NIC = "0000:1b:00.0", "0000:1a:00.0", "0000:17:01.0", "0000:1c:00.0"
OTHER_PORT, DISK = "0000:30:01.0", "0000:31:00.0"


def config(
    control: int | None, buses: tuple[int, int] | None, length: int = 4096, broken: bool = False
) -> bytes:
    """Return a configuration space: of a bridge above `buses`, and with an ACS control register if given."""
    space = bytearray(length)
    space[0:4] = b"\x86\x80\x52\x03"
    if buses:
        space[0x0E] = 0x81  # the multi-function bit, which must not matter
        space[0x18:0x1B] = bytes((0x17, *buses))
    if length > 256:
        following = 0x100 if broken else 0x148  # advanced error reporting, then the next capability
        space[0x100:0x104] = (0x0001 | 2 << 16 | following << 20).to_bytes(4, "little")
        if control is not None:
            space[0x148:0x150] = (0x000D | 1 << 16).to_bytes(4, "little") + b"\x5f\0" + bytes((control, 0))
    return bytes(space)


def device(tree: Tree, address: str, kind: str, vendor: str = "0x8086", space: bytes = b"") -> None:
    tree.lines(f"/sys/bus/pci/devices/{address}", **{"class": kind, "vendor": vendor})
    tree.file(f"/sys/bus/pci/devices/{address}/config", space or config(None, None))


@pytest.fixture
def server(tree: Tree) -> Tree:
    """Create a root port, a switch port and a GPU in a chain, and a disk below another root port."""
    device(tree, ROOT_PORT, "0x060400", space=config(0x1D, (0x18, 0x2F)))
    device(tree, SWITCH_PORT, "0x060400", space=config(0x00, (0x1B, 0x1B)))
    device(tree, GPU, "0x030200", "0x10de")
    device(tree, OTHER_PORT, "0x060400", space=config(0x1D, (0x31, 0x31)))
    device(tree, DISK, "0x010802")
    tree.file("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Xeon(R)  8480C\nflags\t\t: fpu vme sse2\n")
    return tree


def test_bridges_above_gpus_that_redirect_are_named_and_no_others(server: Tree) -> None:
    assert server.value("pci.acs_redirecting") == [ROOT_PORT]
    device(server, SWITCH_PORT, "0x060400", space=config(0x1D, (0x1B, 0x1B)))
    assert server.value("pci.acs_redirecting") == [ROOT_PORT, SWITCH_PORT]


@pytest.mark.parametrize(
    ("control", "harmful"), [(0x00, False), (0x01, False), (0x13, False), (0x04, True), (0x08, True)]
)
def test_redirection_is_harmful_and_source_validation_alone_is_not(
    server: Tree, control: int, harmful: bool
) -> None:
    device(server, ROOT_PORT, "0x060400", space=config(control, (0x18, 0x2F)))
    assert server.value("pci.acs_redirecting") == ([ROOT_PORT] if harmful else [])


def test_a_bridge_above_an_rdma_card_counts_and_one_above_an_ordinary_card_does_not(server: Tree) -> None:
    device(server, DISK, "0x020700")
    assert OTHER_PORT in server.value("pci.acs_redirecting")
    device(server, DISK, "0x020000")
    assert OTHER_PORT not in server.value("pci.acs_redirecting")
    server.file(f"/sys/bus/pci/devices/{DISK}/infiniband/mlx5_0/ports", "")
    assert OTHER_PORT in server.value("pci.acs_redirecting")


def test_the_same_bus_of_another_domain_is_another_bus(server: Tree) -> None:
    device(server, "0001:17:01.0", "0x060400", space=config(0x1D, (0x18, 0x2F)))
    assert server.value("pci.acs_redirecting") == [ROOT_PORT]


def test_conventional_bridges_and_endless_lists_have_no_acs(server: Tree) -> None:
    device(server, ROOT_PORT, "0x060400", space=config(None, (0x18, 0x2F), length=256))
    assert server.value("pci.acs_redirecting") == []
    device(server, ROOT_PORT, "0x060400", space=config(None, (0x18, 0x2F), broken=True))
    assert server.value("pci.acs_redirecting") == []


def test_what_only_root_may_read_is_a_problem_and_not_a_pass(server: Tree) -> None:
    device(server, ROOT_PORT, "0x060400", space=config(0x1D, (0x18, 0x2F))[:64])
    assert "root" in server.problem("pci.acs_redirecting")
    assert "root" in server.problem("pci.acs_harmful")


def test_in_a_virtual_machine_redirection_is_as_it_must_be(server: Tree) -> None:
    assert server.value("pci.hypervisor") is None
    assert server.value("pci.acs_harmful") == [ROOT_PORT]
    server.file("/proc/cpuinfo", "flags\t\t: fpu vme hypervisor sse2\n")
    assert server.value("pci.hypervisor") == "unknown"
    server.lines("/sys/class/dmi/id", sys_vendor="QEMU", product_name="Standard PC (Q35 + ICH9, 2009)")
    assert server.value("pci.hypervisor") == "QEMU Standard PC (Q35 + ICH9, 2009)"
    assert server.value("pci.acs_harmful") == []
    assert server.value("pci.acs_redirecting") == [ROOT_PORT]


@pytest.mark.parametrize(
    ("vendor", "product", "virtual"),
    [
        ("QEMU", "KVM Virtual Machine", True),
        ("NVIDIA", "GH200 P4352", False),
        ("Amazon EC2", "g5g.metal", False),
    ],
)
def test_arm_says_it_in_its_firmware_alone(tree: Tree, vendor: str, product: str, virtual: bool) -> None:
    tree.file("/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n")
    tree.lines("/sys/class/dmi/id", sys_vendor=vendor, product_name=product)
    assert (tree.value("pci.hypervisor") is not None) is virtual


def test_the_iommu_is_that_of_the_gpus(server: Tree) -> None:
    assert server.value("pci.iommu") == "off"
    server.link(f"/sys/bus/pci/devices/{GPU}/iommu_group", "../../../kernel/iommu_groups/7")
    server.link(f"/sys/bus/pci/devices/{DISK}/iommu_group", "../../../kernel/iommu_groups/9")
    server.file("/sys/kernel/iommu_groups/7/type", "identity\n")
    server.file("/sys/kernel/iommu_groups/9/type", "DMA-FQ\n")
    assert server.value("pci.iommu") == "passthrough"
    server.file("/sys/kernel/iommu_groups/7/type", "DMA\n")
    assert server.value("pci.iommu") == "translated"
    server.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/md0 intel_iommu=on iommu=pt quiet\n")
    assert server.value("pci.iommu_parameters") == ["intel_iommu=on", "iommu=pt"]


# --- CPUs and memory


def test_governors_are_named_once_and_none_is_no_trouble(tree: Tree) -> None:
    assert tree.value("cpu.governors") == []
    for number, governor in enumerate(("performance", "schedutil", "performance")):
        policy = f"/sys/devices/system/cpu/cpufreq/policy{number}"
        tree.lines(policy, scaling_governor=governor, scaling_driver="intel_pstate")
    assert tree.value("cpu.governors") == ["performance", "schedutil"]
    assert tree.value("cpu.frequency_drivers") == ["intel_pstate"]


def test_processors(tree: Tree) -> None:
    tree.file("/proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD  EPYC 9654\n")
    tree.file("/sys/devices/system/cpu/online", "0-63,128-191\n")
    assert tree.value("cpu.model") == "AMD EPYC 9654"
    assert tree.value("cpu.online") == 128
    tree.file("/sys/devices/system/cpu/online", "\n")
    assert "not understood" in tree.problem("cpu.online")


def test_memory_settings_and_a_kernel_without_them(tree: Tree) -> None:
    (tree.root / "dev/shm").mkdir(parents=True)
    assert tree.value("memory.transparent_hugepage") == "absent"
    assert tree.value("memory.numa_balancing") is False
    tree.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    tree.file("/proc/sys/kernel/numa_balancing", "1\n")
    assert tree.value("memory.transparent_hugepage") == "madvise"
    assert tree.value("memory.numa_balancing") is True
    assert tree.value("memory.shm_bytes") > 1 << 20
    tree.file("/sys/kernel/mm/transparent_hugepage/enabled", "garbage\n")
    assert "not understood" in tree.problem("memory.transparent_hugepage")


# --- clock

OWN, HOSTS = "CapBnd:\t000001ffffffffff\n", "CapBnd:\t00000000fcecafff\n"


def test_a_clock_is_synchronised_when_the_kernel_or_timesyncd_says_so(tree: Tree) -> None:
    tree.file("/proc/self/status", OWN)
    assert tree.value("clock.state") in ("synchronised", "unsynchronised")
    tree.file("/run/systemd/timesync/synchronized", "")
    assert tree.value("clock.state") == "synchronised"
    assert tree.value("clock.largest_error_us") >= 0


def test_the_clock_of_a_container_is_its_hosts(tree: Tree) -> None:
    tree.file("/proc/self/status", HOSTS)
    tree.tool("systemctl", "exit 0")
    assert tree.value("clock.state") == "host"
    assert tree.value("clock.keeper") == "host"


def test_the_keeper_is_the_one_that_runs(tree: Tree) -> None:
    tree.file("/proc/self/status", OWN)
    active = 'case "$unit" in *timesyncd*) echo ActiveState=active;; *) echo ActiveState=inactive;; esac'
    tree.tool("systemctl", f"shift 4; for unit; do {active}; echo; done")
    assert tree.value("clock.keeper") == "timesyncd"
    tree.tool("systemctl", "shift 4; for unit; do echo ActiveState=failed; echo; done")
    assert tree.value("clock.keeper") is None
    tree.tool("systemctl", "echo Failed to connect to bus")
    assert "Failed to connect" in tree.problem("clock.keeper")


# --- locked memory

LIMITS = "Limit                     Soft Limit           Hard Limit           Units\n{}"
LOCKED = "Max locked memory         {:<20} {:<20} bytes\n"


def test_the_limit_of_a_session_is_that_of_the_process_that_asks(tree: Tree) -> None:
    tree.file("/proc/self/limits", LIMITS.format(LOCKED.format("8388608", "unlimited")))
    assert tree.value("limits.session.memlock") == "8192"
    tree.file("/proc/self/limits", LIMITS.format(LOCKED.format("unlimited", "unlimited")))
    assert tree.value("limits.session.memlock") == "unlimited"
    tree.file("/proc/self/limits", LIMITS.format(""))
    assert "says nothing" in tree.problem("limits.session.memlock")


def test_the_limit_of_services_is_the_running_ones_before_the_configured(tree: Tree) -> None:
    show = """\
case "$*" in *DefaultLimitMEMLOCKSoft) echo DefaultLimitMEMLOCKSoft=infinity; exit;; esac
shift 4
for unit; do
  case "$unit" in
    docker.service) printf 'LoadState=loaded\\nMainPID=812\\nLimitMEMLOCKSoft=infinity\\n\\n';;
    slurmd.service) printf 'LoadState=loaded\\nMainPID=0\\nLimitMEMLOCKSoft=infinity\\n\\n';;
    *) printf 'LoadState=not-found\\nMainPID=0\\nLimitMEMLOCKSoft=infinity\\n\\n';;
  esac
done"""
    tree.tool("systemctl", show)
    tree.file("/proc/812/limits", LIMITS.format(LOCKED.format("65536", "unlimited")))
    units = [f"limits.{unit}.service.memlock" for unit in ("crio", "docker", "slurmd")]
    facts = tree.values("limits.systemd.memlock", *units)
    assert facts.pop("limits.systemd.memlock") == "unlimited"
    assert list(facts.values()) == ["absent", "64", "unlimited"], "docker still runs with its old one"
