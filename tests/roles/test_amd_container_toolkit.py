"""Expectations of amd_container_toolkit for package, CDI specification and runtimes; its refusals."""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Any

import jinja2
import pytest

from provision import yamlfile
from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from provision.node.modules import gpuprov_packages
from tests.roles.promises import promised as every
from tests.roles.promises import promised_by, values
from tests.support.described import machine

ROLE = "amd_container_toolkit"
UNIT = "/etc/systemd/system/gpuprov-amd-cdi.service"


def amd(system: str = "ubuntu 24.04", **gpu: Any) -> dict[str, Any]:
    """Return a machine with eight MI300X."""
    mi300x = {"vendor": "amd", "sku": "mi300x", "architecture": "cdna3", "fabric": "none"}
    return machine(system, "x86_64", **{**mi300x, **gpu})


promised = partial(promised_by, ROLE)


# Full package versions: 1.3.0~24.04 was seen with apt, the others follow the package's build files.
@pytest.mark.parametrize(
    ("system", "version", "others"),
    [
        ("ubuntu 22.04", "1.3.0~22.04", ("1.3.0~24.04", "1.2.0~22.04", "11.3.0~22.04")),
        ("ubuntu 24.04", "1.3.0~24.04", ("1.3.0~22.04", "1.3.0~24.041", None)),
        ("debian 12", "1.3.0~22.04", ("1.3.0~24.04",)),
        ("debian 13", "1.3.0~24.04", ("1.3.0~22.04",)),
        ("rocky 9.6", "1.3.0-1.el9", ("1.3.01-1.el9", "1.2.0-1.el9")),
    ],
)
def test_a_release_means_the_package_of_the_system(
    system: str, version: str, others: tuple[Any, ...]
) -> None:
    facts = promised(amd(system))
    assert facts["package.amd-container-toolkit.version"].holds(version)
    assert not any(facts["package.amd-container-toolkit.version"].holds(other) for other in others)
    assert facts["package.amd-container-toolkit.held"].value is True
    full = renderer_for(all_roles()[ROLE], {}, amd(system)).value("{{ __amd_container_toolkit_full }}")
    assert gpuprov_packages.choose([*filter(None, others), version], full) == version
    preferences = [fact for fact in facts if fact.startswith("file./etc/apt/")]
    assert bool(preferences) is not system.startswith("rocky")
    if preferences:
        assert f"Pin: version {version}\n" in values(facts)[preferences[0]]


@pytest.mark.parametrize(
    ("system", "program"), [("debian 13", "/usr/local/bin/amd-ctk"), ("rocky 9.6", "/usr/bin/amd-ctk")]
)
def test_the_gpus_are_described_at_each_boot_before_a_runtime_starts(system: str, program: str) -> None:
    facts = promised(amd(system))
    text = facts[f"file.{UNIT}.content"].value
    assert f"ExecStart={program} cdi generate\n" in text
    assert "Before=docker.service containerd.service crio.service\n" in text
    assert text.index("ExecStartPre=/bin/rm -f /etc/cdi/amd.json") < text.index("ExecStart=")
    assert facts["service.gpuprov-amd-cdi.service.enabled"].value == "enabled"
    assert facts["amd_cdi.missing"].value == facts["amd_cdi.stale"].value == []
    assert not [fact for fact in promised(amd(system, count=0)) if fact.startswith("amd_cdi.")]


def test_without_cdi_nothing_is_described() -> None:
    facts = values(promised(amd(), cdi=False, runtimes=["docker"]))
    assert facts[f"file.{UNIT}.content"] is None
    assert facts["file./etc/cdi/amd.json.exists"] is False
    assert not [fact for fact in facts if "amd_cdi" in fact or fact.endswith(".cdi")]


def test_docker_is_told_and_the_others_have_to_be_there() -> None:
    assert not [fact for fact in promised(amd()) if fact.startswith("container_runtime.")]
    facts = promised(amd(), runtimes=["docker", "podman", "containerd"])
    found = {fact: each.value for fact, each in facts.items() if fact.startswith("container_runtime.")}
    assert found == {
        "container_runtime.docker.amd_path": "amd-container-runtime",
        "container_runtime.docker.cdi": True,
        "container_runtime.docker.restart_required": False,
        "container_runtime.podman.installed": True,
        "container_runtime.containerd.installed": True,
    }
    assert facts["container_runtime.docker.amd_path"].restarts == ()
    assert facts["container_runtime.docker.cdi"].restarts == ("docker.service",)


@pytest.mark.parametrize("told", ["auto", ["auto"]])
def test_auto_promises_that_docker_was_not_forgotten(told: Any) -> None:
    found = {fact for fact in promised(amd(), runtimes=told) if fact.startswith("container_runtime.")}
    assert found == {
        *("container_runtime.all.amd_unconfigured", "container_runtime.all.amd_without_cdi"),
        "container_runtime.docker.restart_required",
    }


def test_a_fleet_of_both_vendors_declares_its_runtimes_once() -> None:
    declared = {"container_toolkit_runtimes": ["docker"], "container_toolkit_cdi": False}
    facts = every(amd(), gpuprov_roles=[ROLE], **declared)
    assert "container_runtime.docker.amd_path" in facts
    assert "container_runtime.docker.cdi" not in facts


@pytest.mark.parametrize(
    ("declared", "system", "offered"),
    [
        ({}, "ubuntu 24.04", True),
        ({}, "rocky 9.6", True),
        ({}, "rocky 10.0", False),  # AMD offers no package
        ({"amd_container_toolkit_enabled": False}, "ubuntu 24.04", False),
        ({"amd_repository_toolkit": False}, "ubuntu 24.04", False),  # a mirror may lack it
        ({"gpuprov_roles": ["amd_repository"]}, "debian 12", True),  # as `up` runs it if only it is needed
    ],
)
def test_the_repository_is_offered_where_the_role_installs_from_it(
    declared: dict[str, Any], system: str, offered: bool
) -> None:
    facts = values(every(amd(system), **declared))
    redhat = system.startswith("rocky")
    folder = f"amd-container-toolkit/{'el9/main/' if redhat else 'apt'}\n"
    name = "yum.repos.d/amd-rocm.repo" if redhat else "apt/sources.list.d/amd-rocm.sources"
    assert (folder in facts[f"file./etc/{name}.content"]) is offered


# --- refusals


def refusal(file: str, **known: Any) -> str:
    """Return the refusal that a play without gpuprov shows before any change."""
    (task,) = (
        task
        for task in yamlfile.load(all_roles()[ROLE].path / "tasks" / file)
        if f"__{ROLE}_refused" in task.get("vars", {})
    )
    environment = jinja2.Environment()  # noqa: S701 - no HTML
    environment.filters["intersect"] = lambda one, other: [each for each in one if each in other]
    environment.filters["difference"] = lambda one, other: [each for each in one if each not in other]
    environment.tests["version"] = lambda one, other, _: (
        [*map(int, one.split("."))] < [*map(int, other.split("."))]
    )
    environment.tests["match"] = lambda text, pattern: re.match(pattern, str(text)) is not None
    environment.tests["search"] = lambda text, pattern: re.search(pattern, str(text)) is not None
    told = {f"__{ROLE}_{name}": value for name, value in known.items() if name != "declared"}
    declared = {"version": "1.3.0", "install_runtime": "", "cdi": True, **known.get("declared", {})}
    values = {f"{ROLE}_{name}": value for name, value in declared.items()}
    said = {"gpuprov_node": amd(), "ansible_check_mode": False, **values, **told}
    for name, text in task["vars"].items():  # messages are rendered before one is selected
        if name not in said:
            rendered = environment.from_string(text).render(said).strip()
            plain = rendered in ("True", "False") or rendered.startswith("[")
            said[name] = ast.literal_eval(rendered) if plain else rendered
    return " ".join(said[f"__{ROLE}_refused"].split())


OLDER = {"wanted": ["containerd"], "found": {"containerd": "1.7.24"}}
# containerd 1.7.24 config dump
NO_FILE = (
    "containerd: failed to load TOML: /etc/containerd/config.toml: open /etc/containerd/config.toml:"
    " no such file or directory\n"
)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, ""),
        ({"wanted": ["crio", "auto"]}, "requests crio, which is not installed"),
        ({"docker": True, "found": {"docker": "20.10.24"}}, "Docker 20.10.24 on this machine"),
        ({"docker": True, "found": {"docker": "25.0.1"}}, ""),
        ({"docker": True, "found": {"docker": "20.10.24"}, "declared": {"cdi": False}}, ""),
        (OLDER, "CDI is off in containerd 1.7.24"),
        ({"wanted": ["containerd"], "found": {"containerd": "2.1.4"}, "cdi": "true"}, ""),
        ({**OLDER, "dump": {"rc": 1, "stdout": "", "stderr": NO_FILE}}, "CDI is off in containerd 1.7.24"),
        ({**OLDER, "dump": {"rc": 1, "stdout": "", "stderr": NO_FILE}, "cdi": "true"}, ""),
        ({"wanted": ["auto"]}, ""),  # there, containerd is Docker's or a kubelet's
    ],
)
def test_runtimes_that_cannot_do_it_are_refused(known: dict[str, Any], words: str) -> None:
    dump = {"rc": 0, "stdout": f"    enable_cdi = {known.get('cdi', 'false')}\n", "stderr": ""}
    said = {"containerd_settings": {**dump, **known.get("dump", {})}, "containerd_defaults": dump}
    usual = {"docker": False, "wanted": [], "found": {}, "said": {"programs": said}}
    text = refusal("runtimes.yml", **{**usual, **known})
    assert bool(text) == bool(words)
    assert words in text


@pytest.mark.parametrize(
    ("settings", "toolkit", "others", "words"),
    [
        ({}, "installed", [], ""),
        ({"default-runtime": "amd"}, "installed", [], "makes amd the default runtime"),
        ({}, "installed", ["nic.yaml"], "and with it nic.yaml: these are not AMD's. Move them"),
        ({}, "", ["nic.yaml"], ""),
    ],
)
def test_a_removal_that_others_would_suffer_from_is_refused(
    settings: dict[str, Any], toolkit: str, others: list[str], words: str
) -> None:
    before = {"programs": {"toolkit": {"stdout": toolkit}}}
    said = refusal("remove.yml", settings={"settings": settings}, before=before, others=others)
    assert bool(said) == bool(words)
    assert words in said
