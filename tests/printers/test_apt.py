"""Messages of the real apt of several releases for each failure, and the cause that gpuprov reports.

CI runs only apt 3.0; the long set adds apt 2.6 and the newest.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov_lab import signing
from provision.node.modules import gpuprov_packages
from provision.remote.ansible.messages import cause_of
from tests.printers import root
from tests.printers.apt import PACKAGES, Apt, Repository, date, served

LONG = pytest.mark.long
SUITES = ("trixie", pytest.param("bookworm", marks=LONG), pytest.param("forky", marks=LONG))
UPDATE = "apt-get -q -o APT::Update::Error-Mode=any update"
UNSIGNED = "the package list is not signed by the key that is trusted for it"


@dataclass(frozen=True)
class Machine:
    """apt, its repository, and the packages in it."""

    apt: Apt
    repository: Repository
    foo: Path

    def source(self, key: str = "repository") -> str:
        return f"deb [signed-by=/etc/apt/keyrings/{key}.gpg] {self.repository.url} ./"

    def fails(self, script: str) -> str:
        """Return the cause that gpuprov finds in the output of a failing command."""
        done = self.apt.run(script)
        assert done.returncode != 0, done.stdout
        return cause_of(done.stdout + done.stderr) or f"no cause: {done.stdout}{done.stderr}"

    def republish(self, *, signed: bool = True, **release: str) -> None:
        self.repository.publish(signed=signed, **release)

    def install(self) -> str:
        """Return the cause of an installation that fails although the package lists are right."""
        self.republish()
        assert self.apt.run(UPDATE).returncode == 0
        return self.fails("apt-get -q -y install foo")


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    programs = root.make(tmp_path / "own", "apt", request.param, *PACKAGES)
    if shutil.which("gpg") is None:
        pytest.skip("this host has no gpg")
    www = tmp_path / "www"
    www.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="gpg") as home,  # a short path, for the socket of gpg's agent
        signing.keyring(Path(home)),
        served(www) as url,
    ):
        repository = Repository(www, url, Path(home))
        for name in ("repository", "other"):
            file = programs.own / f"etc/apt/keyrings/{name}.gpg"
            key = signing.fingerprint(repository.home, name)
            signing.gpg(repository.home, "--output", file, "--export", key)
        foo = repository.add("foo")
        repository.add("bar", Depends="baz (= 2.0)")
        repository.add("baz")
        repository.publish()
        found = Machine(Apt(programs), repository, foo)
        found.apt.sources(ours=found.source())
        assert found.apt.run(UPDATE).returncode == 0
        yield found


def _other_key(machine: Machine) -> str:
    machine.apt.sources(ours=machine.source("other"))
    return machine.fails(UPDATE)


def _no_keyring(machine: Machine) -> str:
    machine.apt.sources(ours=machine.source("missing"))
    return machine.fails(UPDATE)


def _no_signature(machine: Machine) -> str:
    machine.republish(signed=False)
    return machine.fails(UPDATE)


def _never_signed(machine: Machine) -> str:
    shutil.rmtree(machine.apt.root.own / "var/lib/apt/lists")
    return _no_signature(machine)


def _changed_list(machine: Machine) -> str:
    file = machine.repository.folder / "InRelease"
    file.write_text(file.read_text().replace("Origin: Debian", "Origin: Nobody"))
    return machine.fails(UPDATE)


def _expired(machine: Machine) -> str:
    machine.republish(Valid_Until=date(-400))
    return machine.fails(UPDATE)


def _of_tomorrow(machine: Machine) -> str:
    machine.republish(Date=date(400))
    return machine.fails(UPDATE)


def _changed_package(machine: Machine) -> str:
    machine.foo.write_bytes(machine.foo.read_bytes()[:-1] + b"x")
    return machine.install()


def _longer_package(machine: Machine) -> str:
    machine.foo.write_bytes(machine.foo.read_bytes() + b"x")
    return machine.install()


def _no_package(machine: Machine) -> str:
    machine.foo.unlink()
    return machine.install()


def _too_large(machine: Machine) -> str:
    machine.repository.packages[machine.foo.name]["Size"] = "99999999999999"
    return machine.install()


def _refused(machine: Machine) -> str:
    machine.apt.sources(ours="deb [trusted=yes] http://127.0.0.1:9/ ./")
    return machine.fails(UPDATE)


def _unresolved(machine: Machine) -> str:
    machine.apt.sources(ours="deb [trusted=yes] http://mirror.invalid/ ./")
    return machine.fails(UPDATE)


def _unmet(machine: Machine) -> str:
    return machine.fails("apt-get -q -y install bar")


FAILURES: dict[str, tuple[Callable[[Machine], str], str]] = {
    "another key": (_other_key, rf"{UNSIGNED}.* \(its key is [0-9A-F]{{16,40}}\)"),
    "no keyring": (_no_keyring, rf"{UNSIGNED}|apt cannot read the keyring /etc/apt/keyrings/missing.gpg"),
    "no signature any more": (_no_signature, UNSIGNED),
    "no signature": (_never_signed, UNSIGNED),
    "a changed list": (_changed_list, UNSIGNED),
    "an expired list": (_expired, r"the package list of http\S+ is expired \(since 400d"),
    "a list of tomorrow": (_of_tomorrow, r"the package list of http\S+ is not valid yet \(for another 399d"),
    "a changed package": (_changed_package, r"127.0.0.1:\d+ sent something else .* \(Hash Sum mismatch\)"),
    "a longer package": (_longer_package, r"127.0.0.1:\d+ sent something else .* \(File has unexpected size"),
    "no package": (_no_package, r"127.0.0.1:\d+ does not have foo_1.0_all.deb \(404 Not Found\)"),
    "a package too large": (_too_large, "no room on the node for the packages, in /var/cache/apt/archives/"),
    "nobody listens": (_refused, "the package repository 127.0.0.1:9 did not serve the request .Could not"),
    "no such name": (_unresolved, "the package repository mirror.invalid did not serve the request"),
    "unmet": (_unmet, "apt cannot install these versions together: bar : Depends: baz"),
}  # fmt: skip
IN_CI = ("another key", "no signature any more", "a changed list", "no package")


@pytest.mark.parametrize("machine", SUITES, indirect=True)
@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in IN_CI else LONG) for one in FAILURES])
def test_the_cause_of_a_failure_of_apt_is_named(name: str, machine: Machine) -> None:
    provoke, expected = FAILURES[name]
    found = provoke(machine)
    assert re.match(expected, found), found


@pytest.mark.parametrize("machine", SUITES, indirect=True)
def test_whoever_holds_dpkgs_lock_is_named_and_waited_for(machine: Machine) -> None:
    """apt-mark starts dpkg, and dpkg 1.22 changed the message."""
    holding = 'apt-get -q -y -o DPkg::Pre-Invoke::="touch /tmp/held; sleep 8" install foo >/tmp/first 2>&1 &'
    waiting = "while [ ! -e /tmp/held ]; do sleep 0.1; done;"
    waits = gpuprov_packages.Apt(SimpleNamespace(params={})).waits
    for program in ("apt-mark hold baz", "apt-get -q -y install baz"):
        (machine.apt.root.own / "tmp/held").unlink(missing_ok=True)
        again = holding.replace("install", "install --reinstall")
        done = machine.apt.run(f"{again} {waiting} {program}")
        assert done.returncode == 100, done.stdout + done.stderr
        assert waits(done.returncode, done.stderr), done.stderr
        cause = cause_of(done.stderr)
        assert re.match(r"another package manager is at work there \(process \d+", cause), done.stderr


@pytest.mark.parametrize("machine", SUITES, indirect=True)
def test_sources_that_disagree_are_named(machine: Machine) -> None:
    machine.apt.sources(ours=machine.source(), theirs=machine.source("other"))
    done = machine.apt.run(UPDATE)
    match = re.search(r" regarding source (\S+?)/? ", done.stderr)
    assert match, done.stderr
    assert match[1] == machine.repository.url
    head = "E: Sources that disagree are in: /etc/apt/sources.list.d/ours.list\n"  # from gpuprov_packages
    assert "two of them disagree about Signed-By" in cause_of(head + done.stderr)


class Module:
    """Stand-in for gpuprov_packages' module that runs its programs on the machine."""

    check_mode = False

    def __init__(self, machine: Machine, **packages: str) -> None:
        self.machine = machine
        self.params = {"packages": packages, "lock_timeout": 9, "recommended": False, "untouched": []}
        self.params |= {"purge": False}

    def run_command(self, command: list[str], **_more: object) -> tuple[int, str, str]:
        done = self.machine.apt.run(shlex.join(command))
        return done.returncode, done.stdout, done.stderr

    def fail_json(self, **answer: Any) -> None:
        raise AssertionError(answer["stdout"] + answer["stderr"])


@pytest.mark.parametrize("machine", SUITES, indirect=True)
def test_a_package_that_somebody_holds_and_that_is_in_the_way_is_named(machine: Machine) -> None:
    machine.repository.add("sitewatch", Depends="foo (= 1.0)")
    machine.repository.add("builder", "1.0")
    machine.republish()
    script = f"{UPDATE}; apt-get -q -y install sitewatch builder && apt-mark hold sitewatch builder foo"
    assert machine.apt.run(script).returncode == 0
    machine.repository.add("foo", "2.0")
    machine.repository.add("builder", "2.0")
    machine.repository.add("needy", Depends="builder (>= 2.0)")
    machine.republish()
    assert machine.apt.run(UPDATE).returncode == 0
    for name, version, holding in (("foo", "2.0", "sitewatch"), ("needy", "1.0", "builder")):
        apt = gpuprov_packages.Apt(Module(machine, **{name: version}))
        with pytest.raises(AssertionError) as refused:
            apt.install([f"{name}={version}"])
        assert cause_of(str(refused.value)) == (
            f"somebody keeps back {holding}, which is in the way of the declared packages: release it on the "
            f"node (apt-mark unhold {holding}), then run again"
        )
    assert machine.apt.run("apt-mark unhold builder").returncode == 0
    assert gpuprov_packages.Apt(Module(machine, needy="1.0")).install(["needy=1.0"])


@pytest.mark.parametrize("machine", SUITES, indirect=True)
def test_what_is_offered_is_read(machine: Machine) -> None:
    """Parse apt-cache madison, apt-cache policy, and a simulated installation."""
    fields = [one.strip() for one in machine.apt.run("apt-cache madison foo").stdout.split("|")]
    assert fields == ["foo", "1.0", f"{machine.repository.url} ./ Packages"]
    policy = machine.apt.run("apt-cache policy").stdout
    assert gpuprov_packages.DISTRIBUTION.findall(policy) == [f"{machine.repository.url} ./"]
    trial = machine.apt.run("apt-get -s -q -y install foo").stdout
    moves = [line.split()[:2] for line in trial.splitlines() if re.match("(Inst|Remv) ", line)]
    assert moves == [["Inst", "foo"]]
