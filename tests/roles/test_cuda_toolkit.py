"""Several CUDA toolkits: expectations of each, impossible ones, and no driver as a dependency."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpuprov_lab.debfile import Deb
from gpuprov_lab.packages import read_packages
from gpuprov_lab.places import PACKAGES
from provision.desired import compatibility, stack
from tests.roles.promises import promised_by, values
from tests.support.described import machine

DRIVER = re.compile(r"nvidia-|libnvidia-|cuda-drivers|libcuda1")


def declared(**settings: Any) -> dict[str, Any]:
    named = {f"cuda_toolkit_{name}": value for name, value in settings.items()}
    roles = {"gpuprov_roles": ["nvidia_driver", "cuda_toolkit"]}
    return {**stack.load(stack.DEFAULT).variables, **roles, **named}


def promised(system: str = "debian 13", **settings: Any) -> dict[str, Any]:
    return values(promised_by("cuda_toolkit", machine(system), **settings))


def test_a_stack_alone_promises_its_one_toolkit() -> None:
    facts = promised()
    assert facts["package.cuda-toolkit-12-9.version"] == "12.9.1"
    assert facts["file./etc/alternatives/cuda.target"] == "/usr/local/cuda-12.9"
    assert not [fact for fact in facts if "12-8" in fact or "13-0" in fact]


def test_toolkits_stand_side_by_side_and_one_is_the_default() -> None:
    facts = promised(versions=["12.8", "12.9", "13.0"], releases={"12.8": "12.8.0"}, default="12.8")
    for suffix in ("12-8", "12-9", "13-0"):
        assert facts[f"package.cuda-nvcc-{suffix}.status"] == "installed"
        assert facts[f"package.cuda-toolkit-{suffix}.held"] is True
    assert facts["package.cuda-toolkit-12-8.version"] == "12.8.0"
    assert facts["package.cuda-toolkit-12-9.version"] == "12.9.1", "the release the stack pins"
    assert "package.cuda-toolkit-13-0.version" not in facts, "nobody pinned it"
    assert facts["file./etc/alternatives/cuda.target"] == "/usr/local/cuda-12.8"
    assert facts["file./var/lib/dpkg/alternatives/cuda.content"] == "\\Amanual\n"


def test_no_default_is_a_choice() -> None:
    facts = promised(default="")
    assert facts["file./etc/profile.d/gpuprov-cuda.sh.content"] is None
    assert "file./usr/local/cuda.target" not in facts


def test_others_are_promised_away_only_when_asked() -> None:
    assert "absent" not in promised(versions=["12.8", "12.9"]).values()
    facts = promised(versions=["12.8", "12.9"], remove_others=True)
    assert facts["package.cuda-toolkit-13-0.status"] == "absent"
    assert facts["package.cuda-toolkit-12-8.status"] == "installed"


def test_alternatives_are_where_the_distribution_keeps_them() -> None:
    facts = promised("rocky 9.4")
    assert facts["file./var/lib/alternatives/cuda.content"] == "\\Amanual\n"
    assert promised("ubuntu 24.04") == promised()


@pytest.mark.parametrize(
    ("settings", "rule", "words"),
    [
        (
            {"versions": ["12.9", "12.7"]},
            "cuda-release-exists",
            "cuda_toolkit_versions: there is no release 12.7",
        ),
        ({"versions": ["12.9", 12.8]}, "cuda-version-format", "cuda_toolkit_versions: 12.8 is not a version"),
    ],
)
def test_every_version_has_to_exist(settings: dict[str, Any], rule: str, words: str) -> None:
    (refusal,) = compatibility.check_declared(declared(**settings), "gpu-01")
    assert (refusal.rule, words in refusal.what) == (rule, True), refusal


def test_every_version_has_to_run_on_the_driver() -> None:
    older = {**declared(versions=["12.8", "13.0"]), **stack.load("r570-cuda12.8").variables}
    (refusal,) = compatibility.check_declared(older, "gpu-01")
    assert refusal.rule == "cuda-driver-floor"
    assert "cuda_toolkit_versions: CUDA toolkit 13.0 needs driver 580.65.06 or newer" in refusal.what
    assert not compatibility.check_declared(declared(versions=["12.8", "13.0"]), "gpu-01")


def closure(debs: dict[str, Deb], name: str) -> set[str]:
    """Return every package that installing one brings along."""
    packages: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in packages or one not in debs:
            continue
        packages.add(one)
        waiting += [wish.split()[0] for wish in debs[one].control["Depends"].split(",") if wish.strip()]
    return packages


def test_no_toolkit_brings_a_driver_and_the_metapackages_would() -> None:
    debs = {
        deb.control["Package"]: deb for found in read_packages(PACKAGES, "6.12").values() for deb in found
    }
    for fact in promised(versions=["12.8", "12.9", "13.0", "13.2"]):
        match = re.fullmatch(r"package\.(.+)\.status", fact)
        if match:
            assert match[1] in debs
            assert not [name for name in closure(debs, match[1]) if DRIVER.match(name)], match[1]
    for name in ("cuda", "cuda-12-9"):
        assert [each for each in closure(debs, name) if DRIVER.match(each)], (
            "what the role keeps away is there"
        )
