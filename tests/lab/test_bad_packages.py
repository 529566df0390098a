"""A wrong key and a tampered package: a clear message, nothing half done, and the next run works.

The tests run in the order written: each starts from the state that the previous one left.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import running_lab

ROLES = ["nvidia_repository", "nvidia_driver"]
CUDA = "cuda/repos/debian13/x86_64"
OTHER = "580.95.05"  # another release that the repository offers
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("bad")
    with running_lab("bad", (NodeSpec("gpu-01", "l40s"),), folder / "lab.yml") as running:
        # All labs share the repositories, so this lab serves a copy that tests may corrupt.
        www = running.record.place.www
        copy = folder / "www"
        shutil.copytree(www.resolve(), copy)
        www.unlink()
        www.symlink_to(copy)
        yield running


@pytest.fixture(scope="module")
def node(lab: Any) -> Any:
    return lab.node("gpu-01")


@pytest.fixture(scope="module")
def served(lab: Any) -> Path:
    return Path(lab.record.place.www.resolve())


def consistent(node: Any) -> None:
    """Assert that nothing is half configured and that apt has nothing to repair."""
    assert node.run("sudo dpkg --audit").stdout == ""
    assert node.run("sudo apt-get check", check=False).returncode == 0


def test_another_key_than_declared_is_refused_by_name(operator: Operator, node: Any, served: Path) -> None:
    key = served / CUDA / "8793F200.pub"
    right = key.read_bytes()
    key.write_bytes((served / "tools" / "site.asc").read_bytes())
    try:
        done = operator.call("up", gpuprov_roles=ROLES)
    finally:
        key.write_bytes(right)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert f"{CUDA}/8793F200.pub is not the expected one and was not installed. Expected fingerprint" in said(
        done
    )
    assert node.run("ls /usr/share/keyrings/nvidia-cuda.gpg", check=False).returncode != 0
    assert node.run("ls /etc/apt/sources.list.d/nvidia-cuda.sources", check=False).returncode != 0
    consistent(node)


@pytest.mark.long
def test_a_tampered_package_is_not_installed_and_named(operator: Operator, node: Any, served: Path) -> None:
    package = served / CUDA / "nvidia-kernel-support_580.126.09-1_amd64.deb"
    right = package.read_bytes()
    middle = len(right) // 2
    package.write_bytes(right[:middle] + bytes([right[middle] ^ 0xFF]) + right[middle + 1 :])
    try:
        done = operator.call("up", gpuprov_roles=ROLES)
    finally:
        package.write_bytes(right)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert "A package in the repository is not the one that its signed index names" in said(done)
    assert f"/{CUDA}/./{package.name}" in said(done)
    assert "Hash Sum mismatch" in said(done)
    installed = node.run(
        "dpkg-query -W -f '${db:Status-Status} ${Package}\\n' 'nvidia-driver-cuda' libcuda1", check=False
    )
    assert "installed nvidia-driver-cuda" not in installed.stdout.replace("not-installed", "")
    consistent(node)


@pytest.mark.long
def test_a_second_source_with_another_key_is_named_by_plan_drift_and_up(
    operator: Operator, node: Any
) -> None:
    roles: dict[str, Any] = {"gpuprov_roles": ["nvidia_repository"]}
    done = operator.call("up", **roles)
    assert done.returncode == ExitCode.OK, said(done)
    file = "/etc/apt/sources.list.d/site.list"
    url = node.run("grep -h ^URIs /etc/apt/sources.list.d/nvidia-cuda.sources").stdout.split()[1]
    node.run(f"echo 'deb [signed-by=/etc/os-release] {url} /' | sudo tee {file}")
    for verb, code in (("plan", ExitCode.OK), ("drift", ExitCode.DRIFT), ("up", ExitCode.UNHEALTHY)) * 2:
        done = operator.call(verb, **roles)
        assert done.returncode == code, said(done)
        assert "apt cannot read its sources: Conflicting values set for option Signed-By" in said(done)
        assert f"(/etc/apt/sources.list.d/nvidia-cuda.sources and {file})" in said(done)
    assert node.run(f"cat {file}").stdout.startswith("deb [signed-by=/etc/os-release]")
    # A change to gpuprov's own source file makes the role refresh the lists, which apt refuses.
    node.run("sudo sh -c 'echo >> /etc/apt/sources.list.d/nvidia-cuda.sources'")
    done = operator.call("up", **roles)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert f"correct or remove one, in /etc/apt/sources.list.d/nvidia-cuda.sources, {file}" in said(done)
    node.run(f"sudo rm {file}")
    done = operator.call("up", **roles)
    assert done.returncode == ExitCode.OK, said(done)
    assert operator.drifted(**roles) == {}


SITE = "/etc/apt/sources.list.d/site.list"


def named_everywhere(operator: Operator, words: str, failing: str, **roles: Any) -> None:
    """Assert that `plan` and `drift` print `words` before and after an `up` that prints `failing`."""
    up = ("up", ExitCode.UNHEALTHY)
    for verb, code in (("plan", ExitCode.OK), up, ("drift", ExitCode.DRIFT)):
        done = operator.call(verb, **roles)
        assert done.returncode == code, said(done)
        assert (failing if verb == "up" else words) in said(done), said(done)


@pytest.mark.long
def test_a_source_that_cannot_be_read_or_lost_its_key_is_named(operator: Operator, node: Any) -> None:
    roles: dict[str, Any] = {"gpuprov_roles": ["nvidia_repository"]}
    url = node.run("grep -h ^URIs /etc/apt/sources.list.d/nvidia-cuda.sources").stdout.split()[1]
    for line, words in (
        ("deb http://mirror.example", f"Malformed entry 1 in list file {SITE} (Suite)"),
        (
            f"deb [signed-by=/usr/share/keyrings/gone.gpg] {url}other/ /",
            f"its key /usr/share/keyrings/gone.gpg is missing ({SITE})",
        ),
    ):
        node.as_root(f"echo '{line}' > {SITE}")
        words = f"apt cannot read its sources: {words}"
        named_everywhere(operator, words, words, **roles)
        assert node.run(f"cat {SITE}").stdout.strip() == line, "a file of others stays as it is"
    node.as_root(f"rm {SITE}")
    assert operator.drifted(**roles) == {}


@pytest.mark.long
def test_a_pin_of_others_is_named_before_and_after_the_driver_is_there(operator: Operator, node: Any) -> None:
    file = "/etc/apt/preferences.d/site"
    pin = "Package: *nvidia* libcuda1\nPin: version 570.*\nPin-Priority: 1002\n"
    node.as_root(f"printf '{pin}' > {file}")
    words = f"kept from the declared driver by {file}: Package: *nvidia* libcuda1, Pin: version 570.*"
    named_everywhere(operator, words, words, gpuprov_roles=ROLES)
    node.as_root(f"rm {file}")


WATCH = """\
Package: sitewatch
Version: 1.0
Architecture: all
Maintainer: site <root@localhost>
Depends: libnvidia-ml1 (= 580.126.09-1)
Description: watch of a site
"""


@pytest.mark.long
def test_a_held_package_that_needs_another_driver_is_named_with_its_release(
    operator: Operator, node: Any
) -> None:
    """The driver is installed and held by its role, which is fine; a site's package needs this release."""
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.OK, said(done)
    before = {"gpuprov_roles": ROLES}
    other = {**before, "nvidia_driver_version": OTHER}
    held = node.run("apt-mark showhold").stdout.split()
    assert "libcuda1" in held
    fact = f"packages.{OTHER}.overruled_by"
    assert fact not in operator.drifted(**other), "what the role holds it lets go of"
    node.as_root("mkdir -p /tmp/sitewatch/DEBIAN; cat > /tmp/sitewatch/DEBIAN/control", said=WATCH)
    node.as_root("dpkg-deb --build /tmp/sitewatch; dpkg -i /tmp/sitewatch.deb; apt-mark hold sitewatch")
    assert operator.drifted(**before) == {}, "nothing has to move"
    words = (
        "sitewatch 1.0, which is held and needs libnvidia-ml1 580.126.09-1 "
        "(release it: apt-mark unhold sitewatch)"
    )
    failing = (
        "somebody keeps back sitewatch, which is in the way of the declared packages: release it on the node "
        "(apt-mark unhold sitewatch)"
    )
    named_everywhere(operator, words, failing, **other)
    assert "sitewatch" in node.run("apt-mark showhold").stdout.split()
    consistent(node)
    node.as_root("apt-mark unhold sitewatch; dpkg --purge sitewatch; rm -r /tmp/sitewatch*")
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.OK, said(done)
    assert operator.drifted(**before) == {}
    assert sorted(node.run("apt-mark showhold").stdout.split()) == sorted(held)


@pytest.mark.long
def test_the_next_run_works_when_the_causes_are_gone(operator: Operator, node: Any) -> None:
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.OK, said(done)
    assert "580.126.09" in node.run("cat /proc/driver/nvidia/version").stdout
    assert operator.drifted(gpuprov_roles=ROLES) == {}
    consistent(node)


@pytest.mark.long
def test_a_masked_unit_and_an_empty_library_are_named_and_repaired(operator: Operator, node: Any) -> None:
    library = node.run("readlink -f /usr/lib/x86_64-linux-gnu/libcuda.so.1").stdout.strip()
    node.run("sudo systemctl mask --now nvidia-persistenced.service")
    node.run(f"sudo truncate -s 0 {library}")
    drifted = operator.drifted(gpuprov_roles=ROLES)
    assert drifted["service.nvidia-persistenced.enabled"]["found"] == "masked"
    assert library.rpartition("/")[0] in str(drifted["driver.broken_libraries"]["found"])
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.OK, said(done)
    assert operator.drifted(gpuprov_roles=ROLES) == {}
