"""Messages of dnf 4 and dnf 5 for each failure, and the cause that gpuprov reports: in the long set."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from gpuprov_lab import signing
from provision.node.modules import gpuprov_packages
from provision.node.observe import packages
from provision.node.observe.package import RPM_FORM, rpm_rows
from provision.remote.ansible.messages import cause_of
from tests.node.machine import Tree
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


def problems_of(machine: Machine, tree: Path) -> list[str]:
    """Return the fact that results from the real dnf's output for the machine's files."""
    look = Tree(tree)
    look.file("/etc/os-release", "ID=rocky\n")
    for folder in ("yum.repos.d", "dnf"):
        shutil.copytree(machine.root.own / "etc" / folder, tree / "etc" / folder, symlinks=True)
    words = "--cacheonly --setopt=plugins=0 repolist --all"
    done = machine.run(f"env -i LC_ALL=C PATH=/usr/bin {machine.program} {words}")
    (tree / "said").write_text(done.stdout + done.stderr)
    asked = f'[ "$*" = "{words}" ] || exit 9'
    for name in {"dnf", machine.program}:
        look.tool(name, f"{asked}\ncat {tree}/said\nexit {done.returncode}")
    (tree / "tmp").symlink_to(machine.root.own / "tmp")
    found: list[str] = look.value("packages.source_problems")
    return found


@dataclass(frozen=True)
class Machine:
    """One release of dnf, and a repository that it can use."""

    root: Root
    program: str
    url: str

    def run(self, script: str) -> CompletedProcess[str]:
        return self.root.run("sh", "-c", script, network=True, environment={"LC_ALL": "C"}, timeout=120)

    def dnf(self, *words: str) -> CompletedProcess[str]:
        """Run dnf with the options of gpuprov_packages."""
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
    # Disable the plugin that adds a repository of previously downloaded packages.
    for plugin in programs.own.glob("etc/dnf/**/local.conf"):
        plugin.write_text("[main]\nenabled = false\n")
    # RHEL's default; Debian's skips a repository that does not answer.
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


@contextmanager
def _signed(machine: Machine) -> Iterator[None]:
    """Sign the packages and their list; /etc/other.asc is a different key."""
    if any(shutil.which(name) is None for name in ("gpg", "rpmsign")):
        pytest.skip("this host has no gpg, or no rpmsign")
    own = machine.root.own
    with tempfile.TemporaryDirectory(prefix="gpg") as home, signing.keyring(Path(home)) as keys:
        right, other = [signing.fingerprint(keys, name) for name in ("repository", "other")]
        (own / "etc/other.asc").write_text(signing.public_key(keys, other))
        signing.sign_packages(keys, right, own / "tmp/www/noarch")
        assert machine.run("createrepo_c -q /tmp/www").returncode == 0
        signing.sign(keys, right, own / "tmp/www/repodata/repomd.xml", {"--detach-sign": "repomd.xml.asc"})
        yield


def _other_key(machine: Machine) -> str:
    with _signed(machine):
        machine.repository(machine.url, gpgcheck="1", gpgkey="file:///etc/other.asc")
        return machine.fails("--refresh", "install", "baz")


def _no_keys_file(machine: Machine) -> str:
    with _signed(machine):
        machine.repository(machine.url, gpgcheck="1", gpgkey="file:///etc/gone.asc")
        return machine.fails("--refresh", "install", "baz")


def _lists_other_key(machine: Machine) -> str:
    with _signed(machine):
        machine.repository(machine.url, repo_gpgcheck="1", gpgkey="file:///etc/other.asc")
        return machine.fails("--refresh", "makecache")


def _login_page(machine: Machine) -> str:
    (machine.root.own / "tmp/www/repodata/repomd.xml").write_text("<html>log in</html>")
    return machine.fails("--refresh", "makecache")


def _half_a_list(machine: Machine) -> str:
    for file in (machine.root.own / "tmp/www/repodata").glob("*primary*"):
        file.unlink()
    return machine.fails("--refresh", "makecache")


FAILURES: dict[str, tuple[Callable[[Machine], str], str]] = {
    "no package": (_no_package, r"no mirror served the package \S*foo-2.0-1.noarch"),
    "a package without signature": (_unsigned, "the package baz-1.0-1.noarch.* is not signed by a key"),
    "a list without signature": (_unsigned_list, "the package list is not signed"),
    "nobody listens": (_refused, "the package repository t did not serve the request"),
    "another key": (_other_key, r"the package (baz-1.0-1.noarch\S*) is not signed by a key that is trusted"),
    "a key that is gone": (_no_keys_file, "dnf cannot read /etc/gone.asc, a key of one of its repositories"),
    "a list with another key": (
        _lists_other_key,
        "the package list is not signed by the key that is trusted",
    ),
    "a login page": (_login_page, "the package repository t did not serve the request"),
    "half a list": (_half_a_list, "the package repository t did not serve the request"),
}
EACH = pytest.mark.parametrize("machine", PACKAGES, indirect=True)
S = "/etc/yum.repos.d/s.repo"
LOCAL = "[s]\nname=s\nbaseurl=file:///{}\n"
# A site's repository file → the fact with dnf 4 and, if different, with dnf 5.
SOURCES: dict[str, tuple[str, ...]] = {
    LOCAL.format("tmp/www"): ("",),
    "baseurl=http://x/\n": (
        f"failed loading '{S}', skipping.",
        f'Error in configuration file "{S}": Missing section header on line 1',
    ),
    "[s]\nname=s\nbaseurl=file:///tmp/www\nno line\n": (
        f"failed loading '{S}', skipping.",
        f"Error in configuration file \"{S}\": Missing '=' on line 4",
    ),
    "[s $]\nname=s\nbaseurl=file:///tmp/www\n": (
        f"Bad id for repo: s $, byte =   1 ({S})",
        f"Invalid repository id \"s $\": unexpected character ' ' ({S})",
    ),
    "[s]\nname=s\n": (f"the repository s has no address: no baseurl, no mirrorlist and no metalink ({S})",),
    "[s]\nname=s\nskip_if_unavailable=1\n": (
        "",
        f"the repository s has no address: no baseurl, no mirrorlist and no metalink ({S})",
    ),
    "[s]\nname=s\nenabled=0\n": ("",),
    LOCAL.format("gone"): (
        f"the repository s is at file:///gone, where there is no repodata/repomd.xml ({S})",
    ),
    f"{LOCAL.format('gone')}enabled = False\n": ("",),
    f"{LOCAL.format('gone')}skip_if_unavailable=1\n": ("",),
    # rpm may already have the key: dnf reads the file only when it needs a package of this repository.
    f"{LOCAL.format('tmp/www')}gpgcheck=1\ngpgkey=file:///etc/gone\n": ("",),
    f"{LOCAL.format('tmp/www')}gpgcheck=perhaps\nnothing=1\n": ("",),
    "# nothing\n": ("",),
}


@EACH
@pytest.mark.parametrize("name", FAILURES)
def test_the_cause_of_a_failure_of_dnf_is_named(name: str, machine: Machine) -> None:
    provoke, expected = FAILURES[name]
    found = provoke(machine)
    assert re.match(expected, found), found


@EACH
@pytest.mark.parametrize("check", [False, True])
def test_a_repository_that_dnf_passes_over_is_named_where_a_package_is_missing(
    machine: Machine, check: bool
) -> None:
    assert machine.dnf("makecache").returncode == 0
    module = Module(machine, packages=["nobodys"])
    module.check_mode = check
    assert gpuprov_packages.Dnf(module).hidden("nobodys") == ""
    (machine.root.own / S[1:]).write_text(
        "[s]\nname=s\nbaseurl=http://bob:hunter2@127.0.0.1:9/\nskip_if_unavailable=1\nretries=1\n"
    )
    dnf = gpuprov_packages.Dnf(module)
    assert dnf.look_up({"foo"}) == {"foo": ["2.0-1", "1.0-1"]}, "without a word of it"
    assert dnf.hidden("nobodys") == (
        " dnf has no list of the repository s, and passes over it (skip_if_unavailable)."
    )


@EACH
def test_repositories_that_dnf_does_not_read_are_named(machine: Machine, tmp_path: Path) -> None:
    (machine.root.own / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    machine.repository("file:///tmp/www")
    for number, (text, words) in enumerate(SOURCES.items()):
        (machine.root.own / S[1:]).write_text(text)
        told = words[-1 if machine.program == "dnf5" else 0]
        assert problems_of(machine, tmp_path / str(number)) == ([told] if told else []), text
        done = machine.run(f"{machine.program} --refresh makecache")
        fails = done.returncode != 0 or re.search(
            "^Warning: failed loading|^Bad id", done.stderr, re.MULTILINE
        )
        assert bool(fails) == bool(told), f"{text}: {done.stderr}"


@EACH
def test_a_repository_of_ours_that_another_file_names_too_is_told(machine: Machine, tmp_path: Path) -> None:
    (machine.root.own / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    ours = machine.root.own / "etc/yum.repos.d/t.repo"
    ours.write_text(f"# Written by gpuprov\n{ours.read_text()}")
    assert problems_of(machine, tmp_path / "alone") == []
    (machine.root.own / S[1:]).write_text("[t]\nname=other\nbaseurl=http://127.0.0.1:9/\nenabled=0\n")
    listed = machine.run(f"{machine.program} repolist").stdout
    assert not re.search("^t ", listed, re.MULTILINE), f"ours does not count: {listed}"
    assert problems_of(machine, tmp_path / "twice") == [
        f"the repository t is written twice, and one of them counts (/etc/yum.repos.d/t.repo and {S})"
    ]


class Module:
    """The part of Ansible's module that gpuprov_packages needs, backed by the real dnf."""

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
    # Packages that need a removed one, and packages that a user chose. dnf 4 adds an empty line per answer.
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
