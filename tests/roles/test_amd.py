"""AMD's roles: repositories, versions and refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from provision.node.modules import gpuprov_packages
from tests.roles.promises import promised as every
from tests.roles.promises import promised_by, values
from tests.support.described import machine

SERVER = "https://repo.radeon.com"
FINGERPRINT = "CA8BB4727A47B4D09B4EE8969386B48A1A693C5C"


def amd(system: str = "ubuntu 24.04", **gpu: Any) -> dict[str, Any]:
    """Return a machine with eight MI300X."""
    mi300x = {"vendor": "amd", "sku": "mi300x", "architecture": "cdna3", "fabric": "none"}
    return machine(system, "x86_64", **{**mi300x, **gpu})


def promised(role: str, system: str = "ubuntu 24.04", **declared: Any) -> dict[str, Any]:
    return values(every(amd(system), gpuprov_roles=[role], **declared))


# --- repositories


@pytest.mark.parametrize(
    ("system", "codename"),
    [("ubuntu 22.04", "jammy"), ("ubuntu 24.04", "noble"), ("debian 12", "jammy"), ("debian 13", "noble")],
)
def test_apt_gets_a_stanza_for_each_release_with_one_key(system: str, codename: str) -> None:
    facts = promised("amd_repository", system, rocm_versions=["6.4.4", "7.2.0"])
    stanzas = facts["file./etc/apt/sources.list.d/amd-rocm.sources.content"].split("\n\n")[1:]
    places = [re.findall(r"^URIs: (.*)$", each, re.MULTILINE)[0] for each in stanzas]
    assert places == [
        f"{SERVER}/amdgpu/30.30.3/ubuntu",
        f"{SERVER}/rocm/apt/6.4.4",
        f"{SERVER}/rocm/apt/7.2",  # package versions end in .0, the folder does not
        f"{SERVER}/graphics/7.2/ubuntu",  # ROCm 6 needs no such repository
        f"{SERVER}/amd-container-toolkit/apt",
    ]
    for each in stanzas:
        assert f"Suites: {codename}\nComponents: main\n" in each
        assert "Signed-By: /usr/share/keyrings/amd-rocm.gpg" in each
    assert facts["pgp_key./usr/share/keyrings/amd-rocm.gpg.fingerprints"] == [FINGERPRINT]
    assert 'Pin: origin "repo.radeon.com"' in facts["file./etc/apt/preferences.d/amd-repository.content"]
    assert not [fact for fact in facts if "yum" in fact or "rpm-gpg" in fact]


def test_dnf_gets_a_section_for_each_release_whose_id_tells_it() -> None:
    facts = promised("amd_repository", "rocky 9.6", rocm_version="7.2.3")
    text = facts["file./etc/yum.repos.d/amd-rocm.repo.content"]
    assert re.findall(r"^\[(.*)\]$", text, re.MULTILINE) == [
        *("amd-driver-30.30.3", "amd-rocm-7.2.3", "amd-graphics-7.2.3", "amd-container-toolkit")
    ]
    assert re.findall(r"^baseurl=(.*)$", text, re.MULTILINE) == [
        f"{SERVER}/amdgpu/30.30.3/el/9.6/main/x86_64/",
        f"{SERVER}/rocm/el9/7.2.3/main/",
        f"{SERVER}/graphics/7.2.3/el/9.6/main/x86_64/",
        f"{SERVER}/amd-container-toolkit/el9/main/",
    ]
    assert text.count("gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-amd-rocm\n") == 4
    assert not [fact for fact in facts if "/etc/apt" in fact]


def test_a_mirror_has_the_same_folders_and_its_host_is_preferred() -> None:
    facts = promised("amd_repository", amd_repository_url="http://mirror.example:8080/amd/")
    sources = facts["file./etc/apt/sources.list.d/amd-rocm.sources.content"]
    assert "URIs: http://mirror.example:8080/amd/rocm/apt/7.2.3\n" in sources
    assert 'origin "mirror.example"' in facts["file./etc/apt/preferences.d/amd-repository.content"]


def test_the_kernels_own_driver_needs_no_repository_of_the_driver() -> None:
    facts = promised("amd_repository", amdgpu_driver_source="inbox")
    assert "amdgpu/" not in facts["file./etc/apt/sources.list.d/amd-rocm.sources.content"]


def test_the_repository_of_amds_exporter_is_offered_where_it_is_declared() -> None:
    def sources(system: str, **declared: Any) -> str:
        facts = promised("amd_repository", system, **declared)
        return next(str(facts[fact]) for fact in facts if re.search(r"amd-rocm.(sources|repo).content", fact))

    told = {"gpu_metrics_enabled": True, "gpu_metrics_amd_version": "1.5.1"}
    assert f"URIs: {SERVER}/device-metrics-exporter/apt/1.5.1\n" in sources("ubuntu 22.04", **told)
    assert f"URIs: {SERVER}/device-metrics-exporter/apt/1.5.1\n" in sources("debian 13", **told)
    assert "exporter" not in sources("rocky 9.6", **told), "AMD has none there"
    for off in ({**told, "gpu_metrics_enabled": False}, {**told, "gpu_metrics_amd_version": ""}):
        assert "exporter" not in sources("ubuntu 24.04", **off)


# --- the driver

# Full package versions as seen in AMD's repositories.
PACKAGES = {
    ("30.30.3", "ubuntu 22.04"): (
        *("1:6.16.13.30300300-2327507.22.04", "30.30.3.0.30300300-2327507.22.04"),
        "6.16.13",
    ),
    ("6.4.4", "ubuntu 24.04"): (
        *("1:6.12.12.60404-2202139.24.04", "1:6.12.12.60404-2202139.24.04"),
        "6.12.12",
    ),
    ("6.4.2", "rocky 9.6"): ("6.12.12-2187269.el9", "6.12.12-2187269.el9", "6.12.12"),
    ("30.10.2", "rocky 9.6"): ("6.14.14-2226257.el9", "30.10.2.0.3010200-2226257.el9", "6.14.14"),
    ("30.10.2", "ubuntu 24.04"): ("1:6.14.14-2226257.24.04", "30.10.2.0.3010200-2226257.24.04", "6.14.14"),
}


def own(name: str, system: str, **declared: Any) -> Any:
    return renderer_for(all_roles()["amdgpu_driver"], declared, amd(system)).value(
        "{{ __amdgpu_driver_" + name + " }}"
    )


@pytest.mark.parametrize("which", PACKAGES, ids=" on ".join)
def test_a_release_means_the_packages_that_it_has(which: tuple[str, str]) -> None:
    (release, system), (dkms, firmware, module) = which, PACKAGES[which]
    facts = promised_by("amdgpu_driver", amd(system), version=release)
    for name, version in (("amdgpu-dkms", dkms), ("amdgpu-dkms-firmware", firmware)):
        assert facts[f"package.{name}.version"].holds(version), name
        wanted = own("wanted", system, amdgpu_driver_version=release)[name]
        assert gpuprov_packages.choose([version], wanted) == version, name
    assert facts["amdgpu.loaded_version"].value == facts["amdgpu.installed_version"].value == module
    assert {fact for fact, each in facts.items() if each.reboot} == {
        *("amdgpu.loaded_version", "file./etc/modprobe.d/gpuprov-amdgpu.conf.content")
    }


@pytest.mark.parametrize(
    ("release", "system", "dkms", "firmware"),
    [
        # Two releases with the same module version differ in the package, or in the firmware package.
        ("30.30.4", "ubuntu 24.04", "1:6.16.13.30300300-2327507.24.04", "30.30.3.0.30300300-2327507.24.04"),
        ("6.4.1", "ubuntu 24.04", "1:6.12.12.60404-2202139.24.04", "1:6.12.12.60404-2202139.24.04"),
        ("30.10.1", "rocky 9.6", None, "30.10.2.0.3010200-2226257.el9"),
        ("30.30.3", "rocky 9.6", "6.16.1-1.el9", "30.30.30.0.30303000-1.el9"),
    ],
)
def test_another_release_is_another(release: str, system: str, dkms: str | None, firmware: str) -> None:
    facts = promised_by("amdgpu_driver", amd(system), version=release)
    assert not facts["package.amdgpu-dkms.version"].holds(dkms)
    assert not facts["package.amdgpu-dkms-firmware.version"].holds(firmware)


def test_packages_of_another_release_do_not_count() -> None:
    origin = own("origin", "ubuntu 24.04", amdgpu_driver_version="30.30.3")
    assert re.search(origin, "https://repo.radeon.com/amdgpu/30.30.3/ubuntu noble/main amd64 Packages")
    assert re.search(origin, "amd-driver-30.30.3")
    for other in ("https://x/amdgpu/30.30.4/ubuntu noble/main amd64 Packages", "amd-driver-30.30.33"):
        assert not re.search(origin, other)


def test_the_kernels_own_driver_is_promised_without_amds_packages() -> None:
    facts = promised_by("amdgpu_driver", amd("debian 13"), source="inbox")
    assert facts["amdgpu.loaded_version"].holds("kernel 6.12.107+deb13-amd64")
    assert not facts["amdgpu.loaded_version"].holds("6.16.13")
    assert not facts["amdgpu.loaded_version"].holds(None)
    assert facts["package.amdgpu-dkms.status"].value == ["absent", "config-files"]
    assert facts["package.firmware-amd-graphics.status"].value == "installed"
    assert not [fact for fact in facts if "dkms." in fact.replace("amdgpu-dkms", "") or "headers" in fact]


def test_who_may_use_the_gpus() -> None:
    usual = promised_by("amdgpu_driver", amd())
    rules = "file./etc/udev/rules.d/70-amdgpu.rules.content"
    assert usual[rules].value is None
    assert usual["group.render.exists"].value is usual["group.video.exists"].value is True
    everybody = promised_by("amdgpu_driver", amd(), access="everybody")
    assert 'KERNEL=="kfd", MODE="0666"' in everybody[rules].value
    alice = promised_by("amdgpu_driver", amd(), users=["alice"])
    assert alice["group.render.members"].holds(["bob", "alice"])
    assert not alice["group.video.members"].holds(None)


def test_module_options_are_one_line_each() -> None:
    facts = promised_by("amdgpu_driver", amd(), module_options={"gpu_recovery": 1, "audio": 0})
    text = facts["file./etc/modprobe.d/gpuprov-amdgpu.conf.content"].value
    assert text.splitlines()[1:] == ["options amdgpu audio=0", "options amdgpu gpu_recovery=1"]


# --- ROCm and RCCL


def test_releases_of_rocm_lie_side_by_side_and_one_is_the_default() -> None:
    facts = promised_by("rocm", amd(), versions=["6.4.4", "7.2.3"], version="7.2.3", packages=["rocm"])
    assert facts["package.rocm6.4.4.version"].holds("6.4.4.60404-129~24.04")
    assert facts["package.rocm7.2.3.version"].holds("7.2.3.70203-90~24.04")
    assert not facts["package.rocm7.2.3.version"].holds("7.2.4.70204-93~24.04")
    assert facts["package.rocm7.2.3.held"].value is True
    assert facts["file./etc/alternatives/rocm.target"].value == "/opt/rocm-7.2.3"
    assert facts["file./var/lib/dpkg/alternatives/rocm.content"].holds("manual\n/opt/rocm\n")
    redhat = promised_by("rocm", amd("rocky 9.6"))
    assert redhat["package.amd-smi-lib7.2.3.version"].holds("26.2.2.70203-90.el9")
    assert "file./var/lib/alternatives/rocm.content" in redhat


def test_no_default_leaves_no_path() -> None:
    facts = values(promised_by("rocm", amd(), default=""))
    assert facts["file./etc/profile.d/gpuprov-rocm.sh.content"] is None
    assert facts["file./etc/ld.so.conf.d/gpuprov-rocm.conf.content"] is None
    assert not [fact for fact in facts if "alternatives" in fact or fact.endswith(".mode")]


@pytest.mark.parametrize(("system", "headers"), [("debian 13", "rccl-dev"), ("rocky 9.6", "rccl-devel")])
def test_rccl_is_that_of_its_rocm(system: str, headers: str) -> None:
    facts = promised_by("rccl", amd(system), rocm_versions=["7.2.3"])
    for name in ("rccl7.2.3", f"{headers}7.2.3"):
        assert facts[f"package.{name}.version"].holds("2.27.7.70203-90~24.04")
        assert not facts[f"package.{name}.version"].holds("2.27.7.70201-81~24.04")  # RCCL alone is unchanged


def test_settings_are_declared_once_for_both_libraries() -> None:
    shared = {"NCCL_IB_HCA": "=mlx5_0"}
    conf = "file./etc/rccl.conf.content"
    assert promised("rccl", nccl_settings=shared)[conf].splitlines()[1:] == ["NCCL_IB_HCA==mlx5_0"]
    own_ones = promised("rccl", nccl_settings=shared, rccl_settings={"RCCL_MSCCL_ENABLE": 0})
    assert own_ones[conf].splitlines()[1:] == ["RCCL_MSCCL_ENABLE=0"]


# --- programs of the checks


def test_the_checks_programs_are_those_of_one_release() -> None:
    facts = promised_by("amd_validation_tools", amd(), rocm_version="7.2.1", rocm_versions=["6.4.4", "7.2.1"])
    # The full version is the one in AMD's repository.
    assert facts["package.transferbench-dev7.2.1.version"].holds("1.64.00.70201-81~24.04")
    assert not facts["package.transferbench-dev7.2.1.version"].holds("1.64.00.70100-20~24.04")
    assert facts["package.rocm-validation-suite7.2.1.held"].value is True
    assert not [fact for fact in facts if "6.4.4" in fact or "_perf" in fact or "rccl-tests" in fact]
    redhat = promised_by("amd_validation_tools", amd("rocky 9.6"), rocm_version="7.2.1")
    assert "package.transferbench-devel7.2.1.status" in redhat


@pytest.mark.parametrize(
    ("declared", "method"),
    [
        ({}, "none"),
        ({"rccl_tests_method": "source"}, "source"),
        ({"rccl_tests_method": "package"}, "package"),
    ],
)
def test_where_rccl_tests_comes_from(declared: dict[str, str], method: str) -> None:
    facts = promised_by("amd_validation_tools", amd(), **declared)
    package, built = "package.rccl-tests.status" in facts, [fact for fact in facts if ".built." in fact]
    assert (package, bool(built)) == (method == "package", method == "source")
    assert ("file./usr/bin/all_reduce_perf.mode" in facts) is (method != "none")
    assert {each.step for each in facts.values()} == {"install"}


def test_the_default_revision_of_rccl_tests_needs_no_digest_and_any_other_does() -> None:
    fact = "file./opt/gpuprov/src/rccl-tests.built.content"
    usual = values(promised_by("amd_validation_tools", amd(), rccl_tests_method="source"))[fact]
    assert re.fullmatch(r"rccl-tests 20240910 [0-9a-f]{64}\n", usual)
    other = {"rccl_tests_method": "source", "rccl_tests_url": "https://example.org/a.tar.gz"}
    assert values(promised_by("amd_validation_tools", amd(), **other))[fact] == "rccl-tests 20240910 \n"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["2.27.7.70203-90~24.04"], "2.27.7.70203-90~24.04"),
        (["0.0.1-1", "7.2.3.70203-90.el9"], "7.2.3.70203-90.el9"),  # 0.0.1-1 is of another release
        (["2.27.7.170203-90", "2.27.7.70202-81"], None),
    ],
)
def test_a_package_of_rocm_is_told_by_the_release_in_its_version(
    offered: list[str], chosen: str | None
) -> None:
    assert gpuprov_packages.choose(offered, "*.70203") == chosen
