"""What containerd 1.7 and 2 make of settings, read as gpuprov reads it: in the long set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.node.machine import Tree
from tests.printers import root
from tests.printers.root import Root

pytestmark = pytest.mark.long
SUITES = {"trixie": 2, "forky": 3}  # containerd 1.7.24 and 2.1.9 → the newest format that each reads
TYPE = "container_runtime.containerd.runtime_type"
MAIN = 'version = {version}\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
DROP_IN = """\
version = {version}
[plugins."{plugin}"]
  enable_cdi = true
  [plugins."{plugin}".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
"""
PLUGINS = {
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}


@pytest.fixture
def containerd(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Root]:
    programs = root.make(tmp_path / "own", "containerd", request.param, "containerd", "dash", "coreutils")
    (programs.own / "etc/containerd/conf.d").mkdir(parents=True, exist_ok=True)
    return request.param, programs


def runtime_type(programs: Root, tree: Path, main: int, drop_in: int, text: str = "") -> tuple[str, str]:
    """The fact, and what containerd prints of the settings in these formats."""
    settings = programs.own / "etc/containerd"
    (settings / "config.toml").write_text(MAIN.format(version=main) + text)
    added = DROP_IN.format(version=drop_in, plugin=PLUGINS[drop_in])
    (settings / "conf.d/99-nvidia.toml").write_text(added)
    done = programs.run("containerd", "config", "dump")
    look = Tree(tree)
    look.file("/usr/bin/containerd", "")
    for name in ("out", "err"):
        (tree / name).write_text(done.stdout if name == "out" else done.stderr)
    look.tool("containerd", f"cat {tree}/out; cat {tree}/err >&2; exit {done.returncode}")
    return str(look.values(TYPE)[TYPE]), done.stdout + done.stderr


@pytest.mark.parametrize("containerd", SUITES, indirect=True)
def test_a_runtime_in_a_drop_in_of_each_format_is_known(containerd: tuple[str, Root], tmp_path: Path) -> None:
    suite, programs = containerd
    for version in range(2, SUITES[suite] + 1):
        kind, printed = runtime_type(programs, tmp_path / str(version), version, version)
        assert kind == "io.containerd.runc.v2"
        assert re.search("(?m)^ *enable_cdi = true", printed)  # of roles/amd_container_toolkit


@pytest.mark.parametrize("containerd", SUITES, indirect=True)
def test_settings_that_containerd_refuses_are_told_in_its_words(
    containerd: tuple[str, Root], tmp_path: Path
) -> None:
    suite, programs = containerd
    newer = SUITES[suite] + 1
    kind, printed = runtime_type(programs, tmp_path / "newer", 2, newer)
    assert kind.startswith("containerd: failed to load TOML from /etc/containerd/conf.d/99-nvidia.toml"), (
        printed
    )
    kind, printed = runtime_type(programs, tmp_path / "broken", 2, 2, "[plugins\n")
    assert kind.startswith("containerd: failed to "), printed
