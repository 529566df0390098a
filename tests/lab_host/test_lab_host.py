"""Host side of the lab without root: mirrors, networks, processes, leftovers, layers, inventory."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab import (
    cgroups,
    command,
    folders,
    host,
    inventory_file,
    layer,
    leftovers,
    mirror,
    network,
    process,
)
from gpuprov_lab.record import LabRecord, NodeRecord
from gpuprov_lab.repository import Repository
from provision.errors import LabError
from tests.support.commands import ran

LAB = LabRecord(
    "mine", 80, nodes=(NodeRecord("one", "l40s", "debian13", 1), NodeRecord("two", "b200", "debian12", 2))
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deb http://a.example/debian bookworm main contrib\n", ["http://a.example/debian"]),
        (
            "deb [arch=amd64 signed-by=/k] https://a.example/debian/ bookworm main\n",
            ["https://a.example/debian"],
        ),
        ("# deb http://a.example/debian bookworm main\ndeb-src http://a.example/debian bookworm main\n", []),
        ("deb http://a.example/debian bookworm-security main\n", []),
        ("deb http://a.example/docker/linux stable main\n", []),
        ("deb http://a.example/ubuntu noble main\n", []),
        ("deb cdrom:[x]/debian bookworm main\ndeb file:/mnt/debian bookworm main\n", []),
        (
            "Types: deb\n# http://old.example/debian\nURIs: http://a.example/debian\n"
            "Suites: x x-updates\nComponents: main\n",
            ["http://a.example/debian", "http://a.example/debian"],
        ),
        ("Types: deb-src\nURIs: http://a.example/debian\nSuites: x\nComponents: main\n", []),
        ("Enabled: no\nTypes: deb\nURIs: http://a.example/debian\nSuites: x\nComponents: main\n", []),
        (
            "Types: deb\nURIs: http://a.example/debian\nSuites: x-security\nComponents: main\n\n"
            "Types: deb\nURIs: http://b.example/debian\nSuites: x\nComponents: main\n",
            ["http://b.example/debian"],
        ),
    ],
)
def test_the_mirror_is_found_in_the_hosts_own_sources(text: str, expected: list[str]) -> None:
    assert list(mirror.mirrors_in(iter([text]))) == expected


def test_sources_are_read_as_apt_reads_them(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    read = ["sources.list", "sources.list.d/a.list", "sources.list.d/b.sources"]
    for name in (*read, "sources.list.d/c.disabled"):
        (tmp_path / name).write_text(name)
    assert list(mirror.sources_texts(tmp_path)) == read


def test_the_environment_names_another_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mirror.VARIABLE, "http://other.example/debian/")
    assert mirror.debian_mirror() == "http://other.example/debian"
    monkeypatch.setenv(mirror.VARIABLE, "other.example")
    with pytest.raises(LabError, match=mirror.VARIABLE):
        mirror.debian_mirror()


def routes(monkeypatch: pytest.MonkeyPatch, *destinations: str) -> None:
    answer = json.dumps([{"dst": destination} for destination in destinations])
    monkeypatch.setattr(network, "call", lambda *_: answer)


def test_a_network_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    routes(monkeypatch, "default", "10.0.0.0/8", "192.168.0.0/16", "10.79.3.0/24", "10.80.0.1")
    assert network.free_octet([78]) == 81


def test_no_free_network_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    routes(monkeypatch)
    with pytest.raises(LabError, match="no free network"):
        network.free_octet(range(network.FIRST_OCTET, network.LAST_OCTET + 1))


FOLDER = Path("/var/lib/gpuprov-lab/mine")
BESIDE = Path(layer.__file__).parent


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["python3", "-I", "/x/lab/gpuprov_lab/supervisor.py", f"{FOLDER}/nodes/one"], "supervisor"),
        (["python3", "-I", "/x/provision/lab/supervisor.py", f"{FOLDER}/nodes/one"], "supervisor"),
        (
            ["unshare", "--mount", "python3", "/x/lab/gpuprov_lab/supervisor.py", f"{FOLDER}/nodes/one"],
            "supervisor",
        ),
        (["python3", "/x/lab/gpuprov_lab/server.py", "--folder", f"{FOLDER}/www"], "server"),
        (["systemd-nspawn", "--boot", f"--directory={FOLDER}/nodes/one/root"], "nspawn"),
        (["systemd-nspawn", "--boot", f"--directory={FOLDER}-2/nodes/one/root"], None),
        (["python3", "/x/lab/gpuprov_lab/supervisor.py", f"{FOLDER}-2/nodes/one"], None),
        (["less", f"{FOLDER}/nodes/one/boot.log"], None),
        (["ssh", "-i", f"{FOLDER}/id_ed25519", "ops@10.78.1.1"], None),
        (["vim", "/x/lab/gpuprov_lab/supervisor.py"], None),
    ],
)
def test_only_the_labs_own_processes_are_its_leftovers(arguments: list[str], kind: str | None) -> None:
    assert leftovers.lab_process_kind(arguments, FOLDER) == kind


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        (["1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"], "/sys/fs/cgroup"),
        (
            [
                "1 2 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
                "1 2 0:4 / /c/unified rw - cgroup2 none rw",
            ],
            "/c/unified",
        ),
    ],
)
def test_nodes_live_in_the_version_2_hierarchy(mounts: list[str], expected: str) -> None:
    assert cgroups.mount_point("\n".join(mounts)) == Path(expected)


def test_a_host_without_cgroup2_is_told_so() -> None:
    with pytest.raises(LabError, match="cgroup2"):
        cgroups.mount_point("1 2 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu")


def test_mounts_below_a_folder_come_innermost_first() -> None:
    line = "36 35 98:0 / {} rw - ext4 /dev/root rw\n"
    points = ["/", "/a", "/a/b", "/a/b/c\\040d", "/ab"]
    assert folders.mounts(Path("/a"), "".join(line.format(p) for p in points)) == ["/a/b/c d", "/a/b", "/a"]


def test_a_folder_with_something_mounted_in_it_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "lab" / "mounted" / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("x")
    monkeypatch.setattr(folders, "mounts", lambda _: [str(precious.parent)])
    monkeypatch.setattr(folders, "attempt", lambda *_: None)
    with pytest.raises(LabError, match="busy"):
        folders.remove_tree(tmp_path / "lab")
    assert precious.exists()
    monkeypatch.setattr(folders, "mounts", lambda _: [])
    folders.remove_tree(tmp_path / "lab")
    assert not (tmp_path / "lab").exists()


def test_a_process_is_known_by_pid_and_start_and_ends_on_term(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    pid = process.start([sys.executable, "-c", "import time; time.sleep(600)"], pidfile, tmp_path / "log")
    assert process.running(pidfile) == pid
    kept = json.loads(pidfile.read_text())
    pidfile.write_text(json.dumps({**kept, "started": kept["started"] - 1}))
    assert process.running(pidfile) is None, "another process got the number"
    pidfile.write_text(json.dumps(kept))
    assert process.stop(pidfile)
    assert process.running(pidfile) is None
    assert not pidfile.exists()
    assert process.started_at(pid) is None


def test_a_process_that_ignores_term_is_killed(tmp_path: Path) -> None:
    program = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    pidfile, log = tmp_path / "pid", tmp_path / "log"
    pid = process.start([sys.executable, "-c", program], pidfile, log)
    assert process.wait_until(lambda: "ready" in log.read_text(), 30)
    assert not process.stop(pidfile, grace=0.1)
    assert process.started_at(pid) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "started": 1}', '{"pid": 1}'])
def test_a_damaged_pidfile_means_not_running(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    assert process.running(tmp_path / "pid") is None
    assert process.running(tmp_path / "missing") is None


def test_a_failing_program_is_quoted() -> None:
    with pytest.raises(LabError) as failed:
        command.call("sh", "-c", "echo no such bridge >&2; exit 3", fix="do this")
    assert "status 3" in failed.value.what
    assert "no such bridge" in failed.value.what
    assert failed.value.fix == "do this"
    with pytest.raises(LabError, match="did not end within"):
        command.call("sleep", "60", timeout=0.05)
    with pytest.raises(LabError, match="has no gpuprov-no-such-program"):
        command.call("gpuprov-no-such-program")


def test_two_builders_of_one_thing_are_refused(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        command.locked(lock, "the lab"),
        pytest.raises(LabError, match="working on the lab"),
        command.locked(lock, "the lab"),
    ):
        pytest.fail("both hold it")
    with command.locked(lock, "the lab"):
        pass


def test_missing_programs_are_named_as_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda program, **_: None if "nspawn" in program else "/x")
    monkeypatch.setattr(host, "KEYRING", tmp_path / "none.gpg")
    assert host.missing_packages() == ["debian-archive-keyring", "systemd-container"]
    monkeypatch.setattr("shutil.which", lambda program, **_: None if "rpm" in program else "/x")
    assert "rpm" not in host.missing_packages()
    assert "rpm" in host.missing_packages(rpms=True)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(LabError, match="mmdebstrap"):
        host.install_missing(lambda _: None)
    with pytest.raises(LabError, match=r"createrepo-c .*rpm"):
        host.install_missing(lambda _: None, rpms=True)


def test_a_raised_limit_is_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "limit"
    limit.write_text("128\n")
    monkeypatch.setattr(host, "STATE", tmp_path / "state")
    monkeypatch.setattr(host, "_LIMITS_BEFORE", tmp_path / "state" / "before.json")
    monkeypatch.setattr(host, "_limit", lambda _: limit)
    host.raise_limits()
    host.raise_limits()
    assert int(limit.read_text()) >= 8192
    host.restore_limits()
    assert limit.read_text() == "128"
    limit.write_text("99999\n")
    host.raise_limits()
    host.restore_limits()
    assert limit.read_text() == "99999\n", "a limit that is high enough is left alone"


def test_a_layer_has_safe_modes_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "chown", lambda *_: None)

    class Place:
        folder = tmp_path

    old = os.umask(0o077)
    try:
        made = layer.ensure_layer(Place(), "debian13", "10.80.0.1", "ssh-ed25519 KEY\n")  # type: ignore[arg-type]
    finally:
        os.umask(old)
    modes = {
        str(p.relative_to(made)): p.lstat().st_mode & 0o7777 for p in made.rglob("*") if not p.is_symlink()
    }
    assert made.stat().st_mode & 0o7777 == 0o755
    assert modes.pop("home/ops/.ssh") == 0o700
    assert modes["home/ops/.ssh/authorized_keys"] == 0o600
    assert modes["etc/sudoers.d/ops"] == 0o440
    assert modes["usr/sbin/modprobe"] == modes["usr/bin/dmesg"] == 0o755
    assert {mode for name, mode in modes.items() if (made / name).is_dir()} == {0o755}
    assert "http://10.80.0.1:3142/debian trixie main" in (made / "etc/apt/sources.list").read_text()
    again = layer.ensure_layer(Place(), "debian13", "10.80.0.1", "ssh-ed25519 KEY\n")  # type: ignore[arg-type]
    other = layer.ensure_layer(Place(), "debian13", "10.80.0.1", "ssh-ed25519 NEW\n")  # type: ignore[arg-type]
    assert again == made
    assert other != made, "a layer in use is never changed"


REPOSITORY = Repository(
    Path("/www"),
    {"cuda": "A" * 40, "toolkit": "B" * 40, "tools": "C" * 40, "doca": "D" * 40, "amd": "E" * 40},
)


def test_the_inventory_is_one_that_ansible_reads(tmp_path: Path) -> None:
    ansible = Path(sys.executable).with_name("ansible-inventory")
    path = tmp_path / "lab.yml"
    inventory_file.write(path, inventory_file.render(LAB, REPOSITORY))
    environment = {**os.environ, "ANSIBLE_LOCALHOST_WARNING": "False"}
    said = ran([ansible, "-i", path, "--list"], check=True, env=environment)
    answer: dict[str, Any] = json.loads(said.stdout)
    assert answer["gpu_nodes"]["hosts"] == ["one", "two"]
    one, two = (answer["_meta"]["hostvars"][name] for name in ("one", "two"))
    assert (one["ansible_host"], one["ansible_user"], one["ansible_become"]) == ("10.80.1.1", "ops", True)
    known_hosts = "UserKnownHostsFile=/var/lib/gpuprov-lab/mine/"
    for option in ("StrictHostKeyChecking=yes", "IdentitiesOnly=yes", known_hosts):
        assert option in one["ansible_ssh_common_args"]
    assert one["nvidia_repository_cuda_url"] == "http://10.80.0.1:8080/cuda/repos/debian13/x86_64/"
    assert two["nvidia_repository_cuda_key_url"].endswith("debian12/x86_64/3bf863cc.pub")
    assert two["nvidia_repository_tools_key_fingerprint"] == "C" * 40
    assert two["rdma_doca_key_fingerprint"] == "D" * 40
    assert two["amd_repository_key_fingerprint"] == "E" * 40
    assert two["rdma_doca_url"].endswith("/doca/3.2.1/debian12/x86_64/")
    for name in ("cuda", "toolkit", "tools"):
        assert {f"nvidia_repository_{name}_{what}" for what in ("url", "key_url", "key_fingerprint")} <= set(
            one
        )


def test_an_inventory_of_ours_is_written_again_and_another_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lab.yml"
    inventory_file.write(path, inventory_file.render(LAB, REPOSITORY))
    inventory_file.write(path, inventory_file.render(LAB, REPOSITORY))
    path.write_text("gpu_nodes: {}\n")
    with pytest.raises(LabError, match="was not written by"):
        inventory_file.write(path, "x")
    assert path.read_text() == "gpu_nodes: {}\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot be written"):
        inventory_file.write(tmp_path / "file" / "lab.yml", "x")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, int, int]]:
    """Run the lab's server on the loopback address, serving tmp_path/www; yields its ports."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "Release").write_text("Origin: x\n")
    http, cache = (mirror._free_port() + offset for offset in (0, 1))
    options = f"--folder {tmp_path}/www --address 127.0.0.1 --http-port {http} --cache-port {cache}"
    program = [sys.executable, "-I", str(BESIDE / "server.py")]
    pidfile = tmp_path / "pid"
    words = [*program, *options.split(), "--cache-port-file", str(tmp_path / "port")]
    process.start(words, pidfile, tmp_path / "log")
    try:
        answers = process.wait_until(lambda: mirror.answers("127.0.0.1", cache), 30)
        assert answers, (tmp_path / "log").read_text()
        yield "127.0.0.1", http, cache
    finally:
        assert process.stop(pidfile), "the server ends on TERM"


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_the_server_serves_files_and_hands_on_to_the_cache(
    server: tuple[str, int, int], tmp_path: Path
) -> None:
    address, http, cache = server
    assert get(f"http://{address}:{http}/Release") == (200, b"Origin: x\n")
    assert get(f"http://{address}:{http}/")[0] == 404, "no listing"
    assert get(f"http://{address}:{http}/../pid")[0] == 404
    assert get(f"http://{address}:{cache}/Release")[0] == 503, "no cache runs"
    (tmp_path / "port").write_text(f"{http}\n")
    assert get(f"http://{address}:{cache}/Release") == (200, b"Origin: x\n")


def supervisor(folder: Path, program: str, *words: str) -> list[str]:
    """Return the command of a supervisor that runs this program as its systemd-nspawn."""
    nspawn = [sys.executable, "-c", program, *words]
    plan = {"mounts": [], "cgroup": str(folder / "group"), "nspawn": nspawn}
    (folder / "boot.json").write_text(json.dumps(plan))
    return [sys.executable, "-I", str(BESIDE / "supervisor.py"), str(folder)]


def test_a_supervisor_boots_again_on_133_and_powers_off_on_term(tmp_path: Path) -> None:
    """The stand-in for systemd-nspawn requests a reboot once and then runs until TERM."""
    stand_in = (
        "import pathlib, signal, sys, time\n"
        "boots = pathlib.Path(sys.argv[1]); boots.write_text(boots.read_text() + 'boot ')\n"
        "if boots.read_text().count('boot') < 3: sys.exit(133)\n"
        "signal.signal(15, lambda *_: (boots.write_text(boots.read_text() + 'off'), sys.exit(0)))\n"
        "boots.write_text(boots.read_text() + 'up ')\n"
        "time.sleep(600)\n"
    )
    boots = tmp_path / "boots"
    boots.write_text("")
    pidfile = tmp_path / "pid"
    pid = process.start(supervisor(tmp_path, stand_in, str(boots)), pidfile, tmp_path / "log")
    assert process.wait_until(lambda: "up" in boots.read_text(), 30), (tmp_path / "log").read_text()
    os.kill(pid, signal.SIGTERM)
    assert process.wait_until(lambda: process.running(pidfile) is None, 30)
    assert boots.read_text() == "boot boot boot up off"
    member = (tmp_path / "group" / "cgroup.procs").read_text()
    assert member.strip().isdigit(), "booted in its own control group"


def test_a_supervisor_gives_up_on_a_node_that_only_ever_reboots(tmp_path: Path) -> None:
    done = ran(supervisor(tmp_path, "import sys; sys.exit(133)"))
    assert done.stdout.count("booting") == 5
