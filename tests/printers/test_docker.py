"""Docker 26 and 28: acceptance of daemon.json and failure messages, as gpuprov reads them (long set)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.checks.host import host_health
from provision.node.modules import gpuprov_json
from tests.node.machine import Tree
from tests.printers import root
from tests.printers.root import Root
from tests.support.checks import make_output

pytestmark = pytest.mark.long
PACKAGES = ("docker.io", "docker-cli", "iptables", "dash", "coreutils")
SUITES = {"trixie": "26.", "forky": "28."}  # docker.io 26.1.5 and 28.5.2
CDI, PATH = "container_runtime.docker.cdi", "container_runtime.docker.path"
FILE = "etc/docker/daemon.json"
NVIDIA = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
AMD = {"amd": {"args": [], "path": "amd-container-runtime"}}
# Settings that roles/container_toolkit and roles/amd_container_toolkit add to existing ones.
WRITTEN = [
    {"runtimes": NVIDIA, "features": {"cdi": True}},
    {"runtimes": AMD, "features": {"cdi": True}},
    {"runtimes": {**NVIDIA, **AMD, "runsc": {"path": "/usr/bin/runsc"}}, "live-restore": True},
]
# Text of the file → whether Docker accepts it.
TEXTS = {
    **{json.dumps(settings): True for settings in WRITTEN},
    **{"": True, " \n": True, "{}": True, "\ufeff{}": True, "null": True},
    '{"features": null, "runtimes": null}': True,
    '{"features": {"cdi": true}, "features": {"cdi": false}}': True,
    "[]": False,
    '{"runtimes":': False,
    '{"features": {"cdi": true},}': False,
    '{"features": {"cdi": true}} // why': False,
    "{'features': {}}": False,
    '{"shutdown-timeout": NaN}': False,
    '{"data-root": "/\udcff"}': False,  # not UTF-8
}
START = """\
ask() { docker -H unix:///run/docker.sock "$@" 2>&1; }
start() {
    dockerd --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs \\
        -H unix:///run/docker.sock --pidfile /run/d.pid >> /tmp/d.log 2>&1 &
    for i in $(seq 1 200); do ask version > /tmp/version && break; sleep 0.2; done
}
told() { ask info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}{{json .CDISpecDirs}}'; }
"""
RELOADED = """\
start; ask version --format '{{.Server.Version}}'; told
cp /tmp/new.json /etc/docker/daemon.json; kill -HUP $(cat /run/d.pid)
for i in $(seq 1 50); do case $(told) in *nvidia*) break;; esac; sleep 0.2; done; told
kill $(cat /run/d.pid); while test -e /run/d.pid; do sleep 0.2; done
start; told; kill $(cat /run/d.pid)
"""
RUNS = """\
ask run --rm x; echo; echo ---; start
ask run --rm --runtime other x; echo; echo ---; kill $(cat /run/d.pid)
"""


@pytest.fixture
def docker(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Root]:
    programs = root.make(tmp_path / "own", "docker", request.param, *PACKAGES)
    (programs.own / FILE).parent.mkdir(exist_ok=True)
    return SUITES[request.param], programs


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode(errors="surrogateescape"))


class _RefusedError(Exception):
    pass


def read(path: Path) -> dict[str, Any] | None:
    """Read the settings with the module that merges them; None if it refuses the file."""

    def refuse(msg: str) -> None:
        raise _RefusedError(msg)

    try:
        found: dict[str, Any] = gpuprov_json.read(SimpleNamespace(fail_json=refuse), str(path))
    except _RefusedError:
        return None
    return found


@pytest.mark.parametrize("docker", SUITES, indirect=True)
def test_what_docker_refuses_is_read_as_refused_and_the_rest_as_it_is(
    docker: tuple[str, Root], tmp_path: Path
) -> None:
    _, programs = docker
    found = {}
    for number, text in enumerate(TEXTS):
        write(programs.own / FILE, text)
        done = programs.run("dockerd", "--validate", "--config-file", f"/{FILE}")
        assert "configuration OK" in done.stdout + done.stderr or done.returncode == 1, done.stderr
        look = Tree(tmp_path / str(number))
        look.file("/usr/bin/dockerd", "")
        look.file(f"/{FILE}", text.encode(errors="surrogateescape"))
        facts, problems = look.ask(CDI, PATH)
        found[text] = done.returncode == 0
        assert (PATH not in problems) == found[text], f"{text}: {problems}"
        settings = read(programs.own / FILE)
        assert (settings is not None) == found[text], text
        if settings and settings.get("runtimes"):
            assert facts[PATH] == ("nvidia-container-runtime" if "nvidia" in settings["runtimes"] else None)
            assert facts[CDI] is (True if "features" in settings else None)
    assert found == TEXTS


@pytest.mark.parametrize("docker", SUITES, indirect=True)
def test_what_docker_says_before_the_file_is_in_place(docker: tuple[str, Root]) -> None:
    """Read Docker's answers to settings that gpuprov_json would write, and to an unsupported flag."""
    _, programs = docker
    for settings, refusal in (
        *((written, "") for written in WRITTEN),
        ({"lgo-driver": "x", **WRITTEN[0]}, "directives don't match any configuration option: lgo-driver"),
        ({"log-level": "loud"}, "loud"),
    ):
        write(programs.own / "tmp/new", json.dumps(settings))
        done = programs.run("dockerd", "--validate", "--config-file", "/tmp/new")
        assert (done.returncode != 0) == bool(refusal), f"{settings}: {done.stderr}"
        assert refusal in done.stderr
    assert gpuprov_json.UNKNOWN in programs.run("dockerd", "--gpuprov").stderr


@pytest.mark.parametrize("docker", SUITES, indirect=True)
def test_docker_takes_a_runtime_in_at_a_reload_and_cdi_at_its_start(docker: tuple[str, Root]) -> None:
    if os.geteuid() != 0:
        pytest.skip("dockerd wants the cgroups of root")
    release, programs = docker
    write(programs.own / FILE, json.dumps({"features": {"cdi": False}}))
    write(programs.own / "tmp/new.json", json.dumps(WRITTEN[0]))
    done = programs.run("sh", "-c", START + RELOADED, sys=Path("/sys"), timeout=120)
    version, before, reloaded, started = done.stdout.splitlines()
    assert version.startswith(release)
    assert ("nvidia" in before, "cdi" in before) == (False, False)
    assert ("nvidia" in reloaded, "cdi" in reloaded) == (True, False)
    assert ("nvidia" in started, "/etc/cdi" in started) == (True, True)


@pytest.mark.parametrize("docker", SUITES, indirect=True)
def test_the_reason_of_a_container_that_did_not_start_is_not_dockers_hint(docker: tuple[str, Root]) -> None:
    _, programs = docker
    done = programs.run("sh", "-c", START + RUNS, sys=Path("/sys"), timeout=120)
    reasons = []
    for text in done.stdout.split("---")[:2]:
        output = make_output("container", "", rc=125, stderr=text)
        told = host_health._container(output, host_health.listed_by_nvidia_smi)  # the check's findings
        reasons += [str(one.value) for one in told if one.metric == "container_said"]
    assert reasons[0].startswith("docker: Cannot connect to the Docker daemon at unix:///run/docker.sock.")
    if os.geteuid() == 0:
        assert reasons[1].startswith(
            "docker: Error response from daemon: unknown or invalid runtime name: other"
        )
