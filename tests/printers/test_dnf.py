"""What dnf 4 and dnf 5 print of each failure, and the cause that gpuprov names for it: in the long set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from provision.node.modules import gpuprov_packages
from provision.node.observe import packages
from provision.node.observe.package import RPM_FORM, rpm_rows
from provision.remote.ansible.messages import cause_of
from tests.printers import root
from tests.printers.apt import served
from tests.printers.root import Root

pytestmark = pytest.mark.long
PACKAGES = {
    "dnf": ("trixie", "dnf", "dnf-plugins-core", "rpm", "createrepo-c", "dash", "coreutils"),  # dnf 4.23
    "dnf5": ("forky", "dnf5", "rpm", "createrepo-c", "dash", "coreutils"),
}
SPEC = """\
Name: {name}
Version: {version}
Release: 1
Summary: t
License: t
BuildArch: noarch
{more}
%description
t
%files
"""
BUILT = (
    *(("foo", "1.0", ""), ("foo", "2.0", ""), ("baz", "1.0", "")),
    *(("bar", "1.0", "Requires: baz = 2.0"), ("qux", "1.0", "Requires: baz")),
)


@dataclass(frozen=True)
class Machine:
    """One release of dnf, and a repository that it knows."""

    root: Root
    program: str
    url: str

    def run(self, script: str) -> CompletedProcess[str]:
        return self.root.run("sh", "-c", script, network=True, environment={"LC_ALL": "C"}, timeout=120)

    def dnf(self, *words: str) -> CompletedProcess[str]:
        """Run it with the options that gpuprov_packages gives."""
        return self.run(" ".join([self.program, *gpuprov_packages.DNF[1:], *words]))

    def repository(self, url: str, **settings: str) -> None:
        lines = {"name": "t", "baseurl": url, "gpgcheck": "0", "retries": "1", "timeout": "5", **settings}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (self.root.own / "etc/yum.repos.d/t.repo").write_text(f"[t]\n{text}")

    def fails(self, *words: str) -> str:
        done = self.dnf("--assumeyes", *words)
        assert done.returncode != 0, done.stdout
        return cause_of(done.stdout + done.stderr) or f"no cause: {done.stdout}{done.stderr}"


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    suite, *packages = PACKAGES[request.param]
    programs = root.make(tmp_path / "own", request.param, suite, *packages)
    (programs.own / "etc/yum.repos.d").mkdir(exist_ok=True)
    # Not the repository of what was downloaded before, which a plugin adds.
    for plugin in programs.own.glob("etc/dnf/**/local.conf"):
        plugin.write_text("[main]\nenabled = false\n")
    # As RHEL ships it; Debian's skips a repository that does not answer.
    (programs.own / "etc/dnf/dnf.conf").write_text("[main]\nskip_if_unavailable=False\n")
    www = programs.own / "tmp/www"
    www.mkdir()
    with served(www) as url:
        found = Machine(programs, request.param, url)
        for name, version, more in BUILT:
            text = SPEC.format(name=name, version=version, more=more)
            (programs.own / f"tmp/{name}-{version}.spec").write_text(text)
        build = "rpmbuild --quiet -bb --define '_rpmdir /tmp/www' --define '_topdir /tmp/top' --target noarch"
        done = found.run(f"{build} /tmp/*.spec && createrepo_c -q /tmp/www && rpm --initdb")
        assert done.returncode == 0, done.stderr
        found.repository(url)
        yield found


def _no_package(machine: Machine) -> str:
    for file in machine.root.own.glob("tmp/www/**/foo-2.0-1.noarch.rpm"):
        file.unlink()
    return machine.fails("install", "foo")


def _unsigned(machine: Machine) -> str:
    machine.repository(machine.url, gpgcheck="1")
    return machine.fails("install", "baz")


def _unsigned_list(machine: Machine) -> str:
    machine.repository(machine.url, repo_gpgcheck="1")
    return machine.fails("--refresh", "makecache")


def _refused(machine: Machine) -> str:
    machine.repository("http://127.0.0.1:9/")
    return machine.fails("--refresh", "makecache")


FAILURES: dict[str, tuple[Callable[[Machine], str], str]] = {
    "no package": (_no_package, r"no mirror served the package \S*foo-2.0-1.noarch"),
    "a package without signature": (_unsigned, "the package baz-1.0-1.noarch.* is not signed by a key"),
    "a list without signature": (_unsigned_list, "the package list is not signed"),
    "nobody listens": (_refused, "the package repository t did not serve the request"),
}
EACH = pytest.mark.parametrize("machine", PACKAGES, indirect=True)


@EACH
@pytest.mark.parametrize("name", FAILURES)
def test_the_cause_of_a_failure_of_dnf_is_named(name: str, machine: Machine) -> None:
    provoke, expected = FAILURES[name]
    found = provoke(machine)
    assert re.match(expected, found), found


class Module:
    """What gpuprov_packages needs of Ansible's module, with the real dnf behind it."""

    def __init__(self, machine: Machine, **options: Any) -> None:
        self.machine, self.check_mode = machine, False
        defaults = {"lock_timeout": 60, "recommended": False, "erase": False, "untouched": [], "origin": ""}
        self.params = defaults | {"autoremove": False} | options

    def run_command(self, command: list[str], **_more: object) -> tuple[int, str, str]:
        words = [self.machine.program if word == "dnf" else f"'{word}'" for word in command]
        done = self.machine.run(" ".join(words))
        return done.returncode, done.stdout, done.stderr

    def fail_json(self, **answer: Any) -> None:
        raise AssertionError(answer)


@EACH
def test_packages_are_offered_installed_replaced_and_removed(machine: Machine) -> None:
    module = Module(machine, erase=True, untouched=["other*"])
    dnf = gpuprov_packages.Dnf(module)
    assert dnf.look_up({"foo", "none"}) == {"foo": ["2.0-1", "1.0-1"]}
    assert dnf.installed({"foo", "none"}) == {}
    module.check_mode = True
    assert dnf.install([dnf.spec("foo", "1.0-1")]) is True
    module.check_mode = False
    assert dnf.installed({"foo"}) == {}
    assert dnf.install([dnf.spec("foo", "1.0-1")]) is True
    assert dnf.installed({"foo"}) == {"foo": "1.0-1"}
    module.check_mode = True
    assert dnf.install([dnf.spec("foo", "1.0-1")]) is False
    module.check_mode = False
    assert dnf.install([dnf.spec("foo", "2.0-1")]) is True
    assert list(dnf.removed) == ["foo-1.0-1.noarch"]
    assert dnf.remove(["foo"]) is True
    assert dnf.installed({"foo"}) == {}


@EACH
def test_rpm_answers_in_the_forms_that_observers_and_roles_read(machine: Machine) -> None:
    assert machine.dnf("--assumeyes", "install", "qux").returncode == 0
    asked = machine.run(f"rpm -q --qf '{RPM_FORM}' -- qux none")
    assert list(rpm_rows(asked.stdout)) == [("qux", "1.0-1", "1.0-1")]  # without an epoch: (none)
    assert "package none is not installed" in asked.stdout
    # What needs a package that goes, and what somebody chose. dnf 4 ends each answer with an empty line more.
    assert gpuprov_packages.Dnf(Module(machine)).brought(["baz"]) == ({"qux"}, set(), ["qux"])


@pytest.mark.parametrize("machine", ["dnf"], indirect=True)
def test_dnf_4_heeds_the_lines_that_hold_a_version(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    dnf = gpuprov_packages.Dnf(Module(machine))
    monkeypatch.setattr(
        gpuprov_packages, "VERSIONLOCK_LIST", str(machine.root.own / "etc/dnf/plugins/versionlock.list")
    )
    monkeypatch.setattr(
        gpuprov_packages, "VERSIONLOCK_SETTINGS", str(machine.root.own / "etc/dnf/plugins/versionlock.conf")
    )
    dnf.look_up({"foo"})
    dnf.install([dnf.spec("foo", "1.0-1")])
    assert dnf.status()["foo"] == (False, "1.0-1")
    dnf.mark(True, ["foo"])
    assert dnf.status()["foo"] == (True, "1.0-1")
    assert machine.dnf("--assumeyes", "install", "foo-2.0-1.noarch").returncode != 0
    assert dnf.look_up({"foo"}) == {"foo": ["2.0-1", "1.0-1"]}, "a hold hides no version"
    dnf.mark(False, ["foo"])
    assert dnf.status()["foo"] == (False, "1.0-1")


@pytest.mark.parametrize("machine", ["dnf"], indirect=True)
def test_dnf_4_takes_a_lock_apart_as_the_fact_does(machine: Machine) -> None:
    for lock, out in {
        "fo*-1.0*": True,
        "fo*-0:1.0-1.*": True,
        "foo-0:1.0-1.*": True,
        "!foo-0:2.0-1.*": True,
        "!fo*-1.0*": False,
        "f*o-2*": False,
        "*foo*1.0*": False,
        "foo": False,
        "bar-1.*": False,
    }.items():
        (machine.root.own / "etc/dnf/plugins/versionlock.list").write_text(f"{lock}\n")
        done = machine.dnf("--assumeno", "install", "foo-2.0-1.noarch")
        assert ("Unable to find a match" in done.stderr) is out, f"{lock}: {done.stderr}"
        assert packages.locks_out(lock, ["foo"], "2.0") is out, lock


@pytest.mark.parametrize("machine", ["dnf5"], indirect=True)
def test_dnf_5_takes_conditions_as_the_fact_does(machine: Machine) -> None:
    for name, comparator, value, out in (
        ("foo", "=", "0:1.0-1", True),
        ("foo", "=", "0:2.0-1", False),
        ("foo", "!=", "2.0-1", True),
        ("f*", "<", "1.5", True),
        ("f*", "<", "3", False),
        ("bar", "=", "1.0", False),
    ):
        condition = f'key = "evr"\ncomparator = "{comparator}"\nvalue = "{value}"\n'
        text = f'version = "1.0"\n[[packages]]\nname = "{name}"\n[[packages.conditions]]\n{condition}'
        (machine.root.own / "etc/dnf/versionlock.toml").write_text(text)
        done = machine.dnf("--assumeno", "install", "foo-2.0-1.noarch")
        assert ("excluded by versionlock" in done.stderr) is out, f"{name} {value}: {done.stderr}"
        meets = packages.meets(("evr", comparator, value), "2.0")
        assert (packages.is_named("foo", [name]) and not meets) is out, f"{name} {value}"
