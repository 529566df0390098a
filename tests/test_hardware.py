"""scripts/hardware: its checks, refusals, masking and truncation, and the end of a hanging step."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import signal
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from provision.burnin import profile
from tests.support.hardware import FILE, script

SERIAL, UUID = "1652823055571", "GPU-4b1c2f0e-5a7d-4c3b-9e21-0d8f6a7b5c4d"
LISTED = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUID})\n"
QUERIED = ["nvidia-smi", "--query-gpu=serial,uuid", "--format=csv,noheader"]


def recorder(out: Path, seconds: float = 60) -> Any:
    return script.Recorder(out, time.monotonic() + seconds + script.GRACE)


def archive(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_the_roles_sources_are_those_that_are_packed() -> None:
    sources = {source["name"]: source for source in script.role_sources("/opt/cuda")}
    assert set(sources) == set(script.TOOLS)
    for source in sources.values():
        assert len(source["sha256"]) == 64
        assert source["url"].startswith("https://github.com/")
    assert sources["nccl-tests"]["make"][:2] == ["CUDA_HOME=/opt/cuda", "MPI=0"]


def test_a_source_with_another_checksum_is_neither_packed_nor_built(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/gpu-burn.tar.gz").write_bytes(b"something else")
    with pytest.raises(script.HardwareError, match="has no file with SHA-256 c46ac225"):
        script.make_pack(tmp_path / "pack.tar.gz", tmp_path / "sources", script.PYTHON)
    assert not (tmp_path / "pack.tar.gz").exists()
    running = recorder(tmp_path / "out")
    with pytest.raises(script.HardwareError, match=r"SHA-256 is .*, not c46ac225"):
        script.build(running, {"sources/gpu-burn.tar.gz": b"something else"}, tmp_path, "/usr/local/cuda")
    assert running.steps == []


def test_a_verified_source_is_built_as_the_role_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makefile = b"all:\n\tprintf '%s' '$(CUDAPATH)' > gpu_burn\n\ttouch compare.ptx\n"
    packed = archive(
        tmp_path / "source.tar.gz", (tarfile.TarInfo("gpu-burn-1/Makefile"), makefile)
    ).read_bytes()
    source = next(one for one in script.role_sources("/opt/cuda") if one["name"] == "gpu-burn")
    source["sha256"] = hashlib.sha256(packed).hexdigest()
    monkeypatch.setattr(script, "role_sources", lambda _: [source])
    running = recorder(tmp_path / "out", 100)
    declared = script.build(running, {"sources/gpu-burn.tar.gz": packed}, tmp_path, "/opt/cuda")
    assert [step.rc for step in running.steps] == [0, 0], running.steps
    built = tmp_path / "gpu-burn"
    assert declared == {
        "validation_tools_gpu_burn_path": str(built / "gpu_burn"),
        "validation_tools_gpu_burn_dir": str(built),
    }
    assert (built / "gpu_burn").read_text() == "/opt/cuda"


def test_a_build_that_hangs_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makefile = b"all:\n\ttouch gpu_burn\n\tsleep 300\n"
    packed = archive(tmp_path / "source.tar.gz", (tarfile.TarInfo("a/Makefile"), makefile)).read_bytes()
    source = {**script.role_sources()[0], "sha256": hashlib.sha256(packed).hexdigest()}
    monkeypatch.setattr(script, "role_sources", lambda _: [source])
    monkeypatch.setattr(script, "GRACE", 0.4)
    running = recorder(tmp_path / "out", 3)
    assert script.build(running, {"sources/gpu-burn.tar.gz": packed}, tmp_path, "/opt/cuda") == {}
    assert running.steps[-1].why.startswith("ended at its limit")


def test_a_pack_for_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(script.HardwareError, match=r"the pack is for Python 3\.6, this is"):
        script.install({"python": b"3.6"}, tmp_path)


def test_a_step_that_hangs_is_ended_with_its_children_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "GRACE", 0.4)
    running = recorder(tmp_path)
    child = tmp_path / "child"
    stubborn = f"trap '' INT TERM; echo begun; sleep 300 & echo $! > {child}; wait; sleep 300"
    hung = running.run("hung", ["sh", "-c", stubborn], 3)
    fine = running.run("fine", ["sh", "-c", "echo done; exit 3"], 5)
    missing = running.run("missing", ["/no/such/program"], 5)
    assert (hung.rc, hung.why) == (None, "ended at its limit of 3 s")
    assert (tmp_path / "hung.txt").read_text() == "begun\n"
    assert (fine.rc, fine.why) == (3, "")
    assert (missing.rc, missing.why) == (None, "not started: No such file or directory")
    stat = Path(f"/proc/{child.read_text().strip()}/stat")
    time.sleep(0.1)
    assert not stat.exists() or " Z " in stat.read_text()
    late = script.Recorder(tmp_path, time.monotonic()).run("late", ["true"], 5)
    assert late.why == "not started: the time is over"


def test_ctrl_c_ends_the_step_and_keeps_what_it_printed(tmp_path: Path) -> None:
    running = recorder(tmp_path)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 3)
    with pytest.raises(KeyboardInterrupt):
        running.run("long", ["sh", "-c", "echo begun; exec sleep 300"], 60)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert [(step.name, step.why) for step in running.steps] == [("long", "interrupted")]
    assert (tmp_path / "long.txt").read_text() == "begun\n"


@pytest.mark.parametrize("how", ["interrupted", "hung", "done"])
def test_a_burn_in_that_is_not_done_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    running = recorder(tmp_path, 300)
    called = []

    def gpuprov(name: str, *words: str, limit: float) -> None:
        assert limit <= 230
        called.append(words[:2])
        running.steps.append(script.Step(name, words, None if name == "burnin" and how != "done" else 0))
        if name == "burnin" and how == "interrupted":
            raise KeyboardInterrupt

    monkeypatch.setattr(running, "gpuprov", gpuprov)
    with pytest.raises(KeyboardInterrupt) if how == "interrupted" else contextlib.nullcontext():
        script.burn_in(running, "inventory.yml", "profile.yml")
    assert (("burnin", "stop") in called) == (how != "done")
    assert (("burnin", "collect") in called) == (how != "interrupted")
    late = recorder(tmp_path, 100)
    script.burn_in(late, "inventory.yml", "profile.yml")
    assert [step.why for step in late.steps] == ["not started: too little time is left"]


def test_the_burn_in_takes_three_minutes(tmp_path: Path) -> None:
    (tmp_path / "three.yml").write_text(script.PROFILE)
    loaded = profile.load(str(tmp_path / "three.yml"))
    (soak,) = (segment for segment in loaded.segments if segment.kind == "soak")
    assert loaded.minutes == 3
    assert profile.steps_of_soak(soak) == (1, 120)


def test_nothing_runs_with_a_pack_whose_source_was_changed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("recording needs root")
    with pytest.raises(script.HardwareError, match="SHA-256 is"):
        script.record(tmp_path / "out", {"sources/nvbandwidth.tar.gz": b"changed"}, 10, time.monotonic())
    assert not (tmp_path / "out").exists()


def test_what_identifies_the_machine_is_not_in_the_archive(tmp_path: Path) -> None:
    secrets = {
        "serial": SERIAL,
        "uuid": UUID,
        "address": "10.20.30.40",
        "mac": "0c:42:a1:ab:cd:ef",
        "key": "SHA256:" + "k" * 43,
        "public key": "AAAAC3NzaC1lZDI1NTE5AAAAI" + "b" * 40,
        "password": "hunter2-hunter2",
    }
    (tmp_path / "query.txt").write_text(f"{SERIAL}, {UUID}\n")
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested/run.json").write_text(json.dumps({"text": f"GPU {SERIAL} is slow", "n": 127}))
    (tmp_path / "log.txt").write_text(
        f"{LISTED}Accepted from 10.20.30.40 port 5 ssh2: ED25519 {secrets['key']}\nlink 0c:42:a1:ab:cd:ef\n"
        f"ssh-ed25519 {secrets['public key']} x\npassword={secrets['password']}\nListening on 127.0.0.1\n"
        "driver 580.159.04, VBIOS 96.00.da.00.0c, NCCL 2.18.3\n"
    )
    steps = [script.Step("query", QUERIED, 0, 0.5, "query.txt")]
    files = script.members(script.write_archive(tmp_path, steps, False), script.ARCHIVE_MAX)
    whole = b"\n".join(files.values()).decode()
    assert {name for name, secret in secrets.items() if secret in whole} == set()
    for kept in ("127.0.0.1", "580.159.04", "96.00.da.00.0c", "2.18.3"):
        assert kept in whole
    assert json.loads(files["nested/run.json"])["n"] == 127


@pytest.mark.parametrize("host", ["4f1c2b3a9d8e", "trainer-07", "node17.cluster.internal", "mymachine"])
def test_the_name_of_the_machine_is_hidden_wherever_it_stands(host: str) -> None:
    text = f"started on {host}: root@{host.partition('.')[0]} (h100)\n"
    (shown,) = script.masked({"log.txt": text}, {}, host).values()
    assert shown == "started on this-host: root@this-host (h100)\n"
    assert script.masked({"log.txt": "an h100 of nvidia\n"}, {}, "h100") == {"log.txt": "an h100 of nvidia\n"}


def test_the_summary_lists_every_step(tmp_path: Path) -> None:
    steps = [script.Step("one", ["true"], 0, 1.5, "one.txt"), script.Step("two", why="not built")]
    files = script.members(script.write_archive(tmp_path, steps, True), script.ARCHIVE_MAX)
    summary = json.loads(files["summary.json"])
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert (summary["interrupted"], summary["truncated"]) == (True, [])
    assert [(one["name"], one["rc"], one["seconds"], one["file"]) for one in summary["steps"]] == [
        ("one", 0, 1.5, "one.txt"),
        ("two", None, 0.0, ""),
    ]


def test_the_largest_outputs_are_cut_until_the_archive_fits(tmp_path: Path) -> None:
    words = random.Random(1)  # noqa: S311 - text that gzip cannot shrink much
    (tmp_path / "large.txt").write_text("".join(f"{words.random()}\n" for _ in range(30_000)) + "the end\n")
    (tmp_path / "small.txt").write_text("all of it\n")
    path = script.write_archive(tmp_path, [], False, most=100_000)
    assert path.stat().st_size <= 100_000
    files = script.members(path, 100_000)
    assert files["small.txt"] == b"all of it\n"
    assert b"[scripts/hardware left out" in files["large.txt"]
    assert files["large.txt"].endswith(b"the end\n")
    assert json.loads(files["summary.json"])["truncated"] == ["large.txt"]


def _entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize(
    "entry",
    [
        _entry("../outside"),
        _entry("/etc/outside"),
        _entry("a/../../outside"),
        _entry("link", tarfile.SYMTYPE, "/etc/passwd"),
        _entry("link", tarfile.LNKTYPE, "a"),
        _entry("device", tarfile.CHRTYPE),
    ],
    ids=lambda entry: f"{entry.name}-{entry.type.decode()}",
)
def test_a_hostile_archive_is_refused(tmp_path: Path, entry: tarfile.TarInfo) -> None:
    path = archive(tmp_path / "hostile.tar.gz", (entry, b""))
    with pytest.raises(script.HardwareError, match="is refused"):
        script.unpack(path, tmp_path / "recorded")
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize("sku", ["../../etc", "h100/../..", "", "H100\n", 5, None])
def test_an_archive_cannot_choose_another_folder(tmp_path: Path, sku: object) -> None:
    proof = json.dumps({"sku": sku, "driver": "580.1"}).encode()
    path = archive(tmp_path / "hostile.tar.gz", (_entry("selftest/selftest.json"), proof))
    with pytest.raises(script.HardwareError, match="is no SKU"):
        script.unpack(path, tmp_path / "recorded/fixtures")
    assert not (tmp_path / "recorded").exists()


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "UNPACKED_MAX", script.MIB)
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(b"\0" * 2 * script.MIB))
    with pytest.raises(script.HardwareError, match="is too large"):
        script.members(path, script.ARCHIVE_MAX)
    path.write_bytes(b"no archive")
    with pytest.raises(script.HardwareError, match="cannot be read"):
        script.members(path, script.ARCHIVE_MAX)


def test_a_recording_is_unpacked_and_compared_with_the_simulator(tmp_path: Path) -> None:
    recorded = FILE.parents[1] / "tests/fixtures/recorded/h100-sxm.virtual.580.159.04"
    inventory = (recorded / "gpu_inventory.json").read_bytes()
    files = {
        "selftest/selftest.json": b'{"sku": "h100-sxm", "driver": "580.159.04"}',
        "selftest/archive/checks/gpu_inventory.json": inventory,
        "selftest/archive/provocations/short_deadline/gpu_burn.json": b'{"outputs": []}',
        "nvidia-smi/L.txt": LISTED.encode(),
        "runs/20261128T101500.000Z-validate/run.json": b"{}",
        "summary.json": b"{}",
    }
    script.pack(tmp_path / "hardware.tar.gz", files)
    folder = script.unpack(tmp_path / "hardware.tar.gz", tmp_path)
    assert folder == tmp_path / "h100-sxm-580.159.04"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "gpu_inventory.json",
        "short_deadline.gpu_burn.json",
        "nvidia-smi/L.txt",
        "summary.json",
        "comparison.json",
    }
    comparison = json.loads((folder / "comparison.json").read_text())
    shapes = {shape["output"]: shape["same"] for shape in comparison["shapes"]}
    assert shapes["nvidia-smi/L"] is True, comparison
    assert "gpu_inventory/nvidia_smi" in shapes
    with pytest.raises(script.HardwareError, match="exists; move it away"):
        script.unpack(tmp_path / "hardware.tar.gz", tmp_path)
