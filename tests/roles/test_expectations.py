"""Expectations of the roles on every kind of machine: known facts, reasons, none from disabled roles."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from provision import paths
from provision.desired import expectations, stack
from provision.desired.role import all_roles
from provision.drift.assess import GIVEN
from provision.remote import node_program
from tests.roles.promises import promised
from tests.support.described import machine

ROLES = sorted(all_roles())
# Roles that do nothing until enabled.
LATER = {
    "slurm_health_include": True,
    **{
        f"{role}_enabled": True
        for role in ("gpu_metrics", "node_health", "slurm_health", "monitoring", "receptor")
    },
}
STACKS = sorted(file.stem for file in (paths.DATA / "stacks").glob("*.yml"))


def known_families() -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    text = node_program.text_for([f"{family}.x" for family in node_program.families()])
    exec(text, namespace)  # noqa: S102
    return dict(namespace["FAMILIES"])


def vendor(role: str) -> str:
    """Return the vendor of the GPUs for which the role runs."""
    return all_roles()[role].vendor or "nvidia"


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("version", ["12", "13"])
@pytest.mark.parametrize("fabric", ["none", "nvswitch", "nvlink5"])
def test_every_promise_is_about_a_fact_that_is_observed(name: str, version: str, fabric: str) -> None:
    known = known_families()
    declared = {**stack.load(name).variables, **LATER, **GIVEN}
    vendor = "amd" if "rocm_version" in declared else "nvidia"
    found = expectations.of_node(declared, machine(f"debian {version}", fabric=fabric, vendor=vendor))
    theirs = {role for role in ROLES if all_roles()[role].vendor in (None, vendor)}
    assert {each.role for each in found} == theirs - ({"nvlink"} if fabric == "none" else set())
    for each in found:
        probe, _, rest = each.fact.partition(".")
        assert known[probe].knows(rest), each.fact
        assert len(each.why) > 15, each.fact
        assert "{{" not in each.fact + str(each.value)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("fabric", ["none", "nvlink5"])
def test_a_role_that_is_off_promises_nothing(role: str, fabric: str) -> None:
    found = promised(machine(fabric=fabric, vendor=vendor(role)), **{f"{role}_enabled": False})
    assert not [each.fact for each in found.values() if each.role == role]


@pytest.mark.parametrize("role", ROLES)
def test_every_file_is_promised_with_content_owner_and_mode(role: str) -> None:
    """Each file of a role can be broken in three ways, and each must be detected."""
    declared = {
        "nvidia_repository_tools_url": "http://mirror.example/tools",
        "gpu_metrics_enabled": True,
        "node_health_enabled": True,
        "slurm_health_enabled": True,
        "receptor_enabled": True,
    }
    facts = promised(machine(fabric="nvlink5", vendor=vendor(role)), **declared)
    written = [f for f, each in facts.items() if each.role == role and f.endswith(".content") and each.value]
    for fact in written:
        if facts[fact].operator == "template":
            stem = fact.removesuffix(".content")
            assert facts[f"{stem}.mode"].value in ("0644", "0755"), fact
            assert facts[f"{stem}.owner"].value == "root:root", fact


def test_three_versions_of_the_driver_are_promised_and_only_those_in_memory_need_a_reboot() -> None:
    facts = promised(nvidia_driver_version="580.95.05")
    for name in ("loaded", "installed", "userspace"):
        assert facts[f"driver.{name}_version"].value == "580.95.05"
    reboots = {fact for fact, each in facts.items() if each.reboot and each.role == "nvidia_driver"}
    options = "file./etc/modprobe.d/gpuprov-nvidia.conf.content"
    assert reboots == {"driver.loaded_version", "driver.flavour", "module.nouveau.loaded", options}


@pytest.mark.parametrize(
    ("architecture", "flavour", "package"),
    [
        ("volta", "proprietary", "nvidia-kernel-dkms"),
        ("hopper", "open", "nvidia-kernel-open-dkms"),
        ("blackwell-ultra", "open", "nvidia-kernel-open-dkms"),
        (None, "open", "nvidia-kernel-open-dkms"),
    ],
)
def test_the_kernel_module_follows_the_architecture(architecture: Any, flavour: str, package: str) -> None:
    facts = promised(machine(architecture=architecture))
    assert facts["driver.flavour"].value == flavour
    assert facts[f"package.{package}.version"].value == "580.126.09"
    other = {"nvidia-kernel-dkms": "nvidia-kernel-open-dkms"}.get(package, "nvidia-kernel-dkms")
    assert facts[f"package.{other}.status"].value == ["absent", "config-files"]


def test_fabric_manager_is_promised_only_where_there_is_a_fabric() -> None:
    assert not [fact for fact in promised(machine(fabric="none")) if "fabric" in fact]
    assert "package.nvlsm.status" not in promised(machine(fabric="nvswitch"))
    assert "package.nvlsm.status" in promised(machine(fabric="nvlink5"))


def test_the_tools_repository_exists_only_when_declared() -> None:
    file = "file./etc/apt/sources.list.d/gpuprov-tools.sources.content"
    assert promised()[file].value is None
    declared = promised(
        nvidia_repository_tools_url="http://mirror.example/tools/",
        nvidia_repository_tools_key_fingerprint="AB" * 20,
    )
    assert "URIs: http://mirror.example/tools/\n" in declared[file].value
    assert declared["package.gpu-burn.version"].value == "1.1"
    assert "package.gpu-burn.version" not in promised()


def test_priorities_name_the_host_alone() -> None:
    facts = promised(nvidia_repository_cuda_url="http://user:secret@mirror.example:8080/cuda")
    text = facts["file./etc/apt/preferences.d/nvidia-repository.content"].value
    assert 'Pin: origin "mirror.example"\n' in text
    assert "secret" not in text


def test_settings_reach_their_files() -> None:
    facts = promised(
        nvidia_driver_module_options={"NVreg_RestrictProfilingToAdminUsers": 0},
        rdma_memlock="1048576",
    )
    options = facts["file./etc/modprobe.d/gpuprov-nvidia.conf.content"].value
    assert options.endswith("\noptions nvidia NVreg_RestrictProfilingToAdminUsers=0\n")
    limit = facts["file./etc/systemd/system.conf.d/90-gpuprov-rdma.conf.content"].value
    assert limit.endswith("[Manager]\nDefaultLimitMEMLOCK=1048576K\n")


@pytest.mark.parametrize("hold", [True, False])
def test_holding_is_promised_both_ways(hold: bool) -> None:
    facts = promised(nvidia_driver_hold=hold, cuda_toolkit_hold=hold, nccl_hold=hold)
    for package in ("libnvidia-ml1", "cuda-nvcc-12-9", "libnccl2"):
        assert facts[f"package.{package}.held"].value is hold


def test_without_persistence_the_override_is_gone_and_the_daemon_off() -> None:
    facts = promised(nvidia_driver_persistence=False)
    assert facts["file./etc/systemd/system/nvidia-persistenced.service.d/gpuprov.conf.content"].value is None
    assert facts["service.nvidia-persistenced.enabled"].value == "disabled"


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_pins_everything_and_says_where_its_numbers_come_from(name: str) -> None:
    data = yaml.safe_load((paths.DATA / "stacks" / f"{name}.yml").read_text())
    assert data["name"] == name
    assert data["sources"]
    chosen = data["variables"]
    if "rocm_version" in chosen:
        driver, rocm = re.fullmatch(r"amdgpu([\d.]+)-rocm([\d.]+)", name).groups()  # type: ignore[union-attr]
        assert set(chosen) == {"amdgpu_driver_version", "rocm_version"}  # RCCL's version follows
        assert chosen["amdgpu_driver_version"].startswith(driver + ".")
        assert chosen["rocm_version"].startswith(rocm + ".")
        return
    versions = {f"{each}_version" for each in ("nvidia_driver", "cuda_toolkit", "nccl", "container_toolkit")}
    assert set(chosen) == versions | {"cuda_toolkit_release"}
    assert chosen["cuda_toolkit_release"].startswith(chosen["cuda_toolkit_version"] + ".")
    major = chosen["cuda_toolkit_version"].split(".")[0]
    assert f"+cuda{major}." in chosen["nccl_version"]
    branch, cuda = re.fullmatch(r"r(\d+)-cuda([\d.]+)", name).groups()  # type: ignore[union-attr]
    assert chosen["nvidia_driver_version"].startswith(branch + ".")
    assert chosen["cuda_toolkit_version"] == cuda


MPIRUN = {"debian": "/usr/bin/mpirun", "redhat": "/usr/lib64/openmpi/bin/mpirun"}
MPI_PACKAGES = {"debian": ("openmpi-bin", "libopenmpi-dev"), "redhat": ("openmpi", "openmpi-devel")}


@pytest.mark.parametrize("family", ["debian", "redhat"])
@pytest.mark.parametrize("method", ["package", "source"])
def test_mpi_is_promised_where_it_is_asked_for_and_its_headers_for_a_build(family: str, method: str) -> None:
    node = machine("rocky 9.4" if family == "redhat" else "debian 13")
    run, build = (f"package.{name}.status" for name in MPI_PACKAGES[family])
    mpirun = f"file.{MPIRUN[family]}.exists"
    stamp = "file./opt/gpuprov/src/nccl-tests.built.content"
    without = promised(node, validation_tools_method=method)
    assert not {run, build, mpirun} & set(without)
    found = promised(node, validation_tools_method=method, validation_tools_mpi=True)
    assert found[run].value == "installed"
    assert found[mpirun].value is True
    assert (build in found) == (method == "source")
    if method == "source":
        assert found[stamp].value == without[stamp].value.replace("\n", " MPI\n")


def test_a_sites_own_mpirun_is_promised_where_it_is() -> None:
    found = promised(validation_tools_mpi=True, validation_tools_mpirun_path="/opt/hpcx/ompi/bin/mpirun")
    assert found["file./opt/hpcx/ompi/bin/mpirun.exists"].value is True
    assert "file./usr/bin/mpirun.exists" not in found


@pytest.mark.parametrize(
    ("tool", "version"), [("gpu-burn", "1.1"), ("nccl-tests", "2.18.3"), ("nvbandwidth", "0.8")]
)
def test_a_source_of_the_default_version_needs_no_digest_and_any_other_does(tool: str, version: str) -> None:
    fact, name = f"file./opt/gpuprov/src/{tool}.built.content", f"validation_tools_{tool.replace('-', '_')}"
    usual = promised(validation_tools_method="source")[fact].value
    assert re.fullmatch(rf"{tool} {re.escape(version)} [0-9a-f]{{64}}\n", usual)
    other = {f"{name}_url": "https://example.org/a.tar.gz", f"{name}_version": "9.9"}
    assert promised(validation_tools_method="source", **other)[fact].value == f"{tool} 9.9 \n"
