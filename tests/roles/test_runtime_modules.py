"""Our modules for container runtimes: settings merged into JSON, restarts only when due and harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a node with `tmp_path` in place of the folders that our modules read under /run."""
    node = Host(tmp_path)
    node.environment["GPUPROV_RESTART_NOTES"] = str(tmp_path / "notes")
    node.environment["GPUPROV_SYSTEMD_UNITS"] = str(tmp_path / "units")
    return node


# --- gpuprov_json

WANTED = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}, "features": {"cdi": True}}
FOREIGN = {
    "log-driver": "journald",
    "features": {"containerd-snapshotter": True},
    "runtimes": {"kata": {"path": "k"}},
}


def test_what_others_wrote_is_kept_at_every_depth(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_text(json.dumps(FOREIGN))
    file.chmod(0o600)
    done = host.module("gpuprov_json", path=str(file), settings=WANTED)
    assert (done["changed"], done["keys_to_set"]) == (True, ["features", "runtimes"])
    written = json.loads(file.read_text())
    assert list(written) == list(FOREIGN)
    assert written["features"] == {"containerd-snapshotter": True, "cdi": True}
    assert set(written["runtimes"]) == {"kata", "nvidia"}
    assert file.stat().st_mode & 0o777 == 0o600
    again = host.module("gpuprov_json", path=str(file), settings=WANTED)
    assert (again["changed"], again["keys_to_set"]) == (False, [])


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_a_file_that_is_not_there_is_made_for_all_to_read(
    host: Host, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "etc/daemon.json"
    if text is not None:
        file.parent.mkdir()
        file.write_text(text)
        file.chmod(0o644)
    assert host.module("gpuprov_json", path=str(file), settings=WANTED)["changed"]
    assert json.loads(file.read_text()) == WANTED
    assert file.stat().st_mode & 0o777 == 0o644


def test_check_mode_tells_and_leaves_the_file(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    done = host.module("gpuprov_json", check=True, path=str(file), settings=WANTED)
    assert (done["changed"], done["settings"]) == (True, WANTED)
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1,\n  "b" 2\n}\n', ["line 3 column 7", "'\"b\" 2'"]),
        ("{'a': 1}", ["line 1 column 2"]),
        ("[1]", ["not an object"]),
        ('{"a": 1', ["line 1"]),
    ],
)
def test_what_is_not_json_is_refused_with_the_line_and_left(
    host: Host, tmp_path: Path, text: str, said: list[str]
) -> None:
    file = tmp_path / "daemon.json"
    file.write_text(text)
    done = host.module("gpuprov_json", path=str(file), settings=WANTED)
    assert done["failed"]
    for words in [*said, str(file), "it was not changed"]:
        assert words in done["msg"]
    assert file.read_text() == text


ASKED = ["dockerd", "--validate", "--config-file", "%s"]
DIRECTIVE = "unable to configure the Docker daemon with file {}: the following directives don't match any"


@pytest.mark.parametrize("check", [False, True])
def test_what_the_daemon_refuses_is_left_in_its_words(host: Host, tmp_path: Path, check: bool) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{"lgo-driver": "journald"}')
    wanted: dict[str, Any] = {"path": str(file), "settings": WANTED, "validate": ASKED}
    refusing = "grep -q lgo $3 && grep -q nvidia $3 || exit 9"
    host.program("dockerd", f'{refusing}; echo "{DIRECTIVE.format("$3")}" >&2; exit 1')
    done = host.module("gpuprov_json", check=check, **wanted)
    assert done["failed"]
    assert done["msg"].startswith(f"dockerd refuses what {file} would be: {DIRECTIVE.format(file)}")
    assert done["msg"].endswith("Correct the file; it was not changed.")
    assert file.read_text() == '{"lgo-driver": "journald"}'
    host.program("dockerd", "echo 'unknown flag: --validate' >&2; exit 125")
    assert host.module("gpuprov_json", check=True, **wanted)["changed"]
    (host.bin / "dockerd").unlink()
    assert host.module("gpuprov_json", **{**wanted, "validate": ["dockerd-of-nobody", "%s"]})["changed"]
    assert json.loads(file.read_text())["lgo-driver"] == "journald"


# --- gpuprov_service_restart


class Service:
    """A simulated docker.service: its current invocation, and the arguments of systemctl."""

    def __init__(self, host: Host) -> None:
        self.host, self.folder = host, host.folder
        (self.folder / "units").mkdir()
        self.systemctl()
        self.starts("one")

    def systemctl(self, kill_mode: str = "process", restart: str = "exit 0") -> None:
        self.host.program("systemctl", f'case "$1" in show) echo {kill_mode};; restart) {restart};; esac')

    def starts(self, invocation: str) -> None:
        link = self.folder / "units/invocation:docker.service"
        link.unlink(missing_ok=True)
        link.symlink_to(invocation)

    def stops(self) -> None:
        (self.folder / "units/invocation:docker.service").unlink()

    def runs(self, count: int) -> None:
        for number in range(count):
            (self.folder / f"task/c{number}").mkdir(parents=True)

    def due(self, check: bool = False) -> bool:
        answer = self.host.module("gpuprov_service_restart", check, unit="docker.service", state="due")
        return bool(answer["changed"])

    def restarted(self, check: bool = False, **options: Any) -> dict[str, Any]:
        told = {"containers": [f"{self.folder}/task/*"], "stops_containers": True, **options}
        told |= {"unit": "docker.service", "state": "restarted"}
        return self.host.module("gpuprov_service_restart", check, **told)

    def restarts(self) -> int:
        return self.host.ran().count("systemctl restart docker.service")


@pytest.fixture
def service(host: Host) -> Service:
    return Service(host)


def test_nothing_is_restarted_that_is_not_due(service: Service) -> None:
    assert service.restarted(policy="always") == service.restarted(policy="always")
    assert service.restarts() == 0


def test_what_is_due_is_restarted_once_also_by_a_later_run(service: Service) -> None:
    assert service.due()
    assert not service.due(), "it is noted already"
    assert service.restarted()["changed"]
    assert service.restarts() == 1
    assert not service.restarted()["changed"]


@pytest.mark.parametrize("how", ["starts", "stops"])
def test_a_restart_by_anybody_settles_it(service: Service, how: str) -> None:
    assert service.due()
    service.starts("two") if how == "starts" else service.stops()
    done = service.restarted()
    assert (done["changed"], done["waiting"], service.restarts()) == (False, "", 0)


def test_a_service_that_does_not_run_reads_its_settings_when_it_starts(service: Service) -> None:
    service.stops()
    assert not service.due()


@pytest.mark.parametrize(
    ("options", "kill_mode", "restarts"),
    [
        ({}, "process", 0),
        ({"policy": "always"}, "process", 1),
        ({"stops_containers": False}, "process", 1),
        ({"stops_containers": False}, "control-group", 0),
        ({"policy": "never", "containers": []}, "process", 0),
    ],
    ids=["docker", "docker, allowed", "live-restore", "systemd would end them", "forbidden"],
)
def test_containers_are_not_ended_without_being_allowed_to(
    service: Service, options: dict[str, Any], kill_mode: str, restarts: int
) -> None:
    service.systemctl(kill_mode)
    service.runs(2)
    assert service.due()
    done = service.restarted(**options)
    assert service.restarts() == restarts
    assert done["changed"] is (restarts == 1)
    if not restarts:
        assert "systemctl restart docker.service" in done["waiting"]
        why = "forbidden" if options.get("policy") == "never" else "2 running containers would end"
        assert why in done["waiting"]
        assert not service.due(), "it stays due"


def test_check_mode_notes_and_restarts_nothing(service: Service, tmp_path: Path) -> None:
    assert service.due(check=True)
    assert not (tmp_path / "notes").exists()
    assert service.due()
    assert service.restarted(check=True)["changed"]
    assert service.restarts() == 0


def test_a_service_that_does_not_come_back_fails_the_task_and_stays_due(service: Service) -> None:
    service.systemctl(restart="echo 'Job for docker.service failed.' >&2; exit 1")
    assert service.due()
    done = service.restarted()
    assert done["failed"]
    assert "did not start with its new settings: Job for docker.service failed." in done["msg"]
    assert not service.due()
