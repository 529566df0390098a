"""Hardware shown on a lab node that its kernel lacks, tried in a private mount namespace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuprov_lab
from tests.support.commands import ran

SILICON = Path(gpuprov_lab.__file__).with_name("silicon")
# On a node, too, systemd has made every mount shared. The kernel's folder takes no new entries.
APART = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "shared"]
PROGRAM = """
import json, pathlib, subprocess, sys
sys.path.insert(0, sys.argv[1])
import mounts
tmp = pathlib.Path(sys.argv[2])
subprocess.run(["mount", "--bind", str(tmp / "kernel"), str(tmp / "sys")], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", str(tmp / "sys")], check=True)
for ours, place in json.loads(sys.argv[3]):
    mounts.show(tmp / ours, tmp / "sys" / place, str(tmp / "aside"))
(tmp / "ours/card").mkdir()
found = {}
for path in sorted((tmp / "sys").rglob("*")):
    kind = path.readlink() if path.is_symlink() else path.read_text() if path.is_file() else ""
    found[str(path.relative_to(tmp / "sys"))] = str(kind)
table = pathlib.Path("/proc/self/mountinfo").read_text()
print(json.dumps({"found": found, "aside": (tmp / "aside").exists() or str(tmp / "aside") in table}))
"""


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that shows folders in a kernel's tree: path → content, or target of a link."""
    if subprocess.run([*APART, "true"], capture_output=True, timeout=30).returncode != 0:
        pytest.skip("this machine lets nobody make a mount namespace of his own")
    kernel = tmp_path / "kernel"
    (kernel / "class/net").mkdir(parents=True)
    (kernel / "class/net/host0").symlink_to("../../devices/virtual/net/host0")
    (kernel / "class/tty").mkdir()
    (kernel / "class/tty/uevent").write_text("x\n")
    (kernel / "class/version").write_text("1\n")
    (kernel / "devices").mkdir()
    (tmp_path / "sys").mkdir()
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/state").write_text("live\n")

    def run(*pairs: tuple[str, str]) -> dict[str, Any]:
        words = [sys.executable, "-c", PROGRAM, str(SILICON), str(tmp_path), json.dumps(pairs)]
        done = ran([*APART, *words])
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        assert said["aside"] is False
        found: dict[str, Any] = said["found"]
        return found

    return run


KERNELS = {
    "class": "",
    "class/net": "",
    "class/net/host0": "../../devices/virtual/net/host0",
    "class/tty": "",
    "class/tty/uevent": "x\n",
    "class/version": "1\n",
    "devices": "",
}


def test_ours_is_shown_beside_what_the_kernel_has(shown: Any) -> None:
    ours = {"class/infiniband": "", "class/infiniband/state": "live\n", "class/infiniband/card": ""}
    assert shown(("ours", "class/infiniband")) == {**KERNELS, **ours}


def test_folders_below_and_beside_each_other_are_all_shown(shown: Any) -> None:
    pairs = [("ours", f"class/{name}") for name in ("infiniband", "nvme", "net/ens28np0")]
    found = shown(*pairs)
    assert {name: found[name] for name in KERNELS} == KERNELS
    assert {name for name in found if name.endswith("/state")} == {f"{place}/state" for _, place in pairs}


def test_a_folder_that_the_kernel_has_is_replaced(shown: Any) -> None:
    replaced = {"class/tty/state": "live\n", "class/tty/card": ""}
    without = {name: content for name, content in KERNELS.items() if name != "class/tty/uevent"}
    assert shown(("ours", "class/tty")) == {**without, **replaced}


def test_a_node_without_cards_keeps_what_its_kernel_has(bare: Any) -> None:
    done = bare(network="none").run("mounts", PATH="/nonexistent")
    assert (done.returncode, done.stderr) == (0, "")
