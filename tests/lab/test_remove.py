"""Roles are removed in turn until a node equals one that never had any; stacks are switched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from testinfra.host import Host

from gpuprov_lab.spec import NodeSpec
from provision.desired import stack
from provision.desired.role import all_roles
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import LabNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
# Roles of other machines, each in its own test file: a monitoring host, a mesh host, a Slurm node.
ELSEWHERE = ("monitoring", "receptor", "slurm_health")
ROLES = [
    name for name, role in all_roles().items() if name not in ELSEWHERE and role.vendor in (None, "nvidia")
]
# What testinfra checks before and afterwards: files, services (with a suffix), packages.
LEFT = {
    "nvidia_repository": [
        *("/etc/apt/sources.list.d/nvidia-cuda.sources", "/usr/share/keyrings/nvidia-cuda.gpg"),
        "/etc/apt/preferences.d/nvidia-repository",
    ],
    "rdma": [
        *("rdma-core", "ibverbs-utils", "infiniband-diags", "perftest"),
        *("/etc/security/limits.d/90-gpuprov-rdma.conf", "/etc/systemd/system/slurmd.service.d"),
    ],
    "nvidia_driver": [
        *("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libcuda1", "libnvidia-ml1"),
        *("nvidia-persistenced", "nvidia-persistenced.service", "/usr/bin/nvidia-smi"),
        *("/etc/modprobe.d/blacklist-nouveau.conf", "/etc/apt/preferences.d/nvidia-driver"),
    ],
    "nvlink": ["nvidia-fabricmanager-580", "nvidia-fabricmanager.service"],
    "gpu_settings": ["/usr/local/sbin/gpuprov-gpu-settings", "gpuprov-gpu-settings.service"],
    "cuda_toolkit": [
        *("cuda-toolkit-12-9", "cuda-nvcc-12-9", "cuda-toolkit-12-9-config-common"),
        *("/etc/profile.d/gpuprov-cuda.sh", "/usr/local/cuda", "/etc/alternatives/cuda"),
    ],
    "nccl": ["libnccl2", "libnccl-dev", "/etc/nccl.conf", "/etc/apt/preferences.d/nccl"],
    "container_toolkit": [
        *("nvidia-container-toolkit", "libnvidia-container1", "nvidia-cdi-refresh.path"),
        *("/run/cdi/nvidia.yaml", "/etc/nvidia-container-runtime/config.toml"),
    ],
    "gpudirect_rdma": [],  # DMA-BUF needs nothing
    "host_settings": ["/etc/sysctl.d/90-gpuprov-host-settings.conf"],
    "validation_tools": ["gpu-burn", "nccl-tests", "nvbandwidth", "/usr/bin/gpu_burn"],
    "gpu_metrics": [
        *("prometheus-node-exporter", "datacenter-gpu-manager-exporter", "datacenter-gpu-manager-4-core"),
        *("nvidia-dcgm.service", "nvidia-dcgm-exporter.service", "prometheus-node-exporter.service"),
        *("/etc/gpuprov/dcgm-counters.csv", "/etc/systemd/system/nvidia-dcgm-exporter.service.d"),
    ],
    "node_health": [
        *("/usr/local/sbin/gpuprov-node-health", "/etc/gpuprov/node-health.json"),
        "gpuprov-node-health.timer",
    ],
    "package_lock": ["/etc/apt/preferences.d/gpuprov-lock"],
}
# Packages that a machine keeps according to the roles' READMEs: headers belong to the kernel.
KEPT = re.compile(r"linux-headers-\S+|linux-kbuild-\S+")
SETTINGS: dict[str, Any] = {
    "gpu_settings_power_limit": 500,
    "gpu_metrics_enabled": True,
    "node_health_enabled": True,
    "package_lock_versions": {"libnccl2": "2.29.7-1+cuda12.9"},
}


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield gpu-01, in the state that `gpuprov up` left, and gpu-02, which has never had a role."""
    wanted = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("remove", wanted, inventory, images={"gpu-01": images.h100()}) as running:
        yield running


@pytest.fixture(scope="module")
def node(lab: Lab) -> LabNode:
    return lab.node("gpu-01")


@pytest.fixture
def host(node: LabNode) -> Host:
    return node.testinfra()


def up(operator: Operator, *words: str, code: int = ExitCode.OK, **variables: Any) -> str:
    done = operator.call(
        "up", "--nodes", "gpu-01", "--yes", *words, timeout=1500, **{**SETTINGS, **variables}
    )
    assert done.returncode == code, said(done)
    return said(done)


def found_of(host: Host, role: str) -> list[str]:
    """Return the items in LEFT of the role that are present."""
    return [name for name in LEFT[role] if _is_there(host, name)]


def _is_there(host: Host, name: str) -> bool:
    if name.startswith("/"):
        return bool(host.file(name).exists or host.file(name).is_symlink)
    if name.endswith((".service", ".path", ".timer")):
        return bool(host.service(name).exists)
    return bool(host.package(name).is_installed)


def test_what_somebody_else_installed_is_not_taken_along(operator: Operator, host: Host) -> None:
    told = {"validation_tools_enabled": False, "package_lock_versions": {}}
    text = up(operator, "--remove", "nccl", code=ExitCode.UNHEALTHY, **told)
    assert "would also remove nccl-tests, which did not come with it" in text
    assert host.package("libnccl2").is_installed


def test_nothing_is_taken_from_under_a_program_that_computes(
    operator: Operator, host: Host, node: LabNode
) -> None:
    node.as_root("cd /usr/share/gpu-burn && setsid -f gpu_burn -i 3 4000 > /dev/null 2>&1")
    try:
        alone = {"gpuprov_roles": ["nvidia_repository", "nvidia_driver"]}
        text = up(operator, "--remove", "nvidia_driver", code=ExitCode.UNHEALTHY, **alone)
        assert re.search(r"Programs use the GPUs \(process \d+, \S*gpu_burn\)", text), text
        assert found_of(host, "nvidia_driver") == LEFT["nvidia_driver"]
    finally:
        node.as_root("pkill -KILL -f '[g]pu_burn -i 3' || true")


def test_check_mode_and_plan_name_what_goes_and_take_nothing(operator: Operator, host: Host) -> None:
    planned = operator.call("plan", "--nodes", "gpu-01", "--remove", "validation_tools")
    assert "nvbandwidth" in planned.stdout
    assert f"up {operator.inventory} --nodes gpu-01 --remove validation_tools would change" in planned.stdout
    assert "would change" in up(operator, "--check", "--remove", "validation_tools")
    assert found_of(host, "validation_tools") == LEFT["validation_tools"]


def test_every_role_is_removed_in_turn_until_the_node_is_like_one_that_had_none(
    operator: Operator, host: Host, lab: Lab
) -> None:
    up(operator)  # also applies the settings and the lock
    for role in reversed(ROLES):
        assert found_of(host, role) == LEFT[role], role
    kept = list(ROLES)
    for role in reversed(ROLES):
        kept.remove(role)
        assert "next: gpuprov plan" in up(operator, "--remove", role, gpuprov_roles=kept)
        assert found_of(host, role) == [], role
        held = set(host.check_output("apt-mark showhold").split())
        assert not held.intersection(LEFT[role]), role
        others = [each for each in kept if found_of(host, each) != LEFT[each]]
        assert others == [], f"{role} was removed, and with it something of {others}"
        assert f"without anything of {role}" in up(operator, "--remove", role, gpuprov_roles=kept)
    assert host.check_output("apt-mark showhold") == ""
    assert not host.file("/proc/driver/nvidia/version").exists
    # chrony stays, as the role's README states.
    lab.node("gpu-02").as_root("apt-get -q update && apt-get -qy install --no-install-recommends chrony")
    for what in (
        "dpkg-query --show --showformat '${db:Status-Abbrev} ${Package}\\n'",
        "find /etc /usr/local /opt -not -path '*/__pycache__*' | grep -v '/ssl/certs/'",
    ):
        mine, bare = (set(lab.node(name).as_root(what).stdout.splitlines()) for name in ("gpu-01", "gpu-02"))
        assert not {line for line in mine - bare if not KEPT.search(line)}
        assert not bare - mine, "something was taken away that no role had made"


def test_the_roles_come_back(operator: Operator, host: Host) -> None:
    up(operator)
    assert operator.call("drift", "--nodes", "gpu-01", **SETTINGS).returncode == ExitCode.OK
    assert found_of(host, "nvidia_driver") == LEFT["nvidia_driver"]


def test_the_stack_is_switched_up_and_down(operator: Operator, host: Host) -> None:
    """Verify with the expectations and with the node's own tools."""
    for name in ("r570-cuda12.8", "r580-cuda12.9", "r595-cuda13.2", "r570-cuda12.8"):
        chosen = stack.load(name).variables
        told: dict[str, Any] = {"gpuprov_stack": name, "package_lock_versions": {}}
        up(operator, **told)
        driver, toolkit = chosen["nvidia_driver_version"], chosen["cuda_toolkit_version"]
        assert f" {driver} " in host.file("/proc/driver/nvidia/version").content_string
        assert host.check_output("modinfo -F version nvidia") == driver
        assert host.package("libnccl2").version == chosen["nccl_version"]
        assert host.file("/etc/alternatives/cuda").linked_to == f"/usr/local/cuda-{toolkit}"
        packages = host.check_output(
            "dpkg-query -W -f '${db:Status-Abbrev}${Version}\n' 'libnvidia-[a-b]*' 'libnvidia-[d-z]*' "
            "'libcuda*' 'nvidia-fabricmanager*' | grep ^.i | sort -u"
        )
        assert packages == f"hi {driver}-1", "one version, all of it held"
        assert operator.call("drift", "--nodes", "gpu-01", **{**SETTINGS, **told}).returncode == ExitCode.OK
