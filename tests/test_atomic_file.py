"""Atomic files that root writes into other users' folders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from provision import atomic_file
from provision.checks.on_node import entry, settings, state
from provision.up.watch import heartbeat

NOBODY = 65534
ROW = {"at": 1.0, "pid": 1, "nodes": "all", "held": []}


@pytest.fixture
def exporters(tmp_path: Path) -> Path:
    """Return `prometheus/node-exporter`, owned by an unprivileged account, as in Debian's package."""
    if os.geteuid():
        pytest.skip("only root can make folders of another user")
    folder = tmp_path / "prometheus" / "node-exporter"
    folder.mkdir(parents=True)
    for each in (folder.parent, folder):
        os.chown(each, NOBODY, NOBODY)
    return folder


def replaced(folder: Path, target: Path) -> None:
    """Replace the folder with a link, as its owner could."""
    folder.rename(folder.with_name("old"))
    folder.symlink_to(target)
    os.lchown(folder, NOBODY, NOBODY)


def test_metrics_are_never_written_through_a_link_of_another_user(exporters: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    replaced(exporters, victim)
    assert "is a link in a folder of others" in heartbeat.export(str(exporters / "watch.prom"), ROW)
    with pytest.raises(OSError, match="is a link"), atomic_file.held(exporters):
        pass
    assert list(victim.iterdir()) == []


def test_the_program_on_the_node_writes_through_none_either(
    exporters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    replaced(exporters, victim)
    monkeypatch.setattr(entry, "RUN", tmp_path)
    for name in ("state.write", "state.note", "ports.keep", "styles.causes", "metrics.families"):
        monkeypatch.setattr(f"provision.checks.on_node.{name}", lambda *_: ())
    monkeypatch.setattr("provision.checks.on_node.document.text", lambda _told: "{}")
    told = {"boot_id": "", "uptime": 0.0, "verdict": "pass", "finished": ""}
    with pytest.raises(OSError, match="is a link"):
        entry._write(told, state.State(), settings.Settings(textfile=str(exporters)), {})
    assert list(victim.iterdir()) == []


def test_a_folder_that_becomes_a_link_meanwhile_is_still_the_one_written_to(
    exporters: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    with atomic_file.held(exporters) as folder:
        replaced(exporters, victim)
        atomic_file.write(folder / entry.TEXTFILE, "up 1\n", private=False)
    assert list(victim.iterdir()) == []
    assert (exporters.with_name("old") / entry.TEXTFILE).read_text() == "up 1\n"


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(exporters: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (exporters / "watch.prom").symlink_to(tmp_path / "secret")
    assert heartbeat.export(str(exporters / "watch.prom"), ROW) == ""
    assert (tmp_path / "secret").read_text() == "kept"
    assert "gpuprov_watch" in (exporters / "watch.prom").read_text()


def test_a_link_of_root_is_the_sites_own(exporters: Path, tmp_path: Path) -> None:
    """For example /var/lib on another disk."""
    (tmp_path / "lib").symlink_to(tmp_path / "prometheus")
    assert heartbeat.export(str(tmp_path / "lib" / "node-exporter" / "watch.prom"), ROW) == ""
    assert (exporters / "watch.prom").exists()


def test_a_folder_above_that_only_lets_through_is_enough() -> None:
    """Mode 0711 lets an account traverse the folder without reading it."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        Path(above).chmod(0o711)
        folder = Path(above) / "textfiles"
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            failed = heartbeat.export(str(folder / "watch.prom"), ROW)
        finally:
            os.seteuid(0)
        assert failed == ""
        assert (folder / "watch.prom").is_file()
