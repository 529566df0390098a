"""Settings of containerd 1.7 and 2, as containerd and gpuprov read them: in the long set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from tests.node.machine import Tree
from tests.printers import root
from tests.printers.root import Root
from tests.support.described import machine

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
    [plugins."{plugin}".containerd.runtimes.nvidia.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
"""
# A site's file, sorted after gpuprov's.
LATER = """\
version = {version}
[plugins."{plugin}"]
  enable_cdi = false
  [plugins."{plugin}".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/crun"
"""
EFFECTIVE = [f"container_runtime.containerd.{name}" for name in ("path", "cdi", "keeps_runc", "runtime_type")]
LISTS = ["container_runtime.all.unconfigured", "container_runtime.all.without_cdi"]
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


def told(programs: Root, tree: Path, *facts: str) -> tuple[dict[str, Any], str]:
    """Return the facts, and containerd's output about its settings."""
    settings = programs.own / "etc/containerd"
    look = Tree(tree)
    for path in (settings / "config.toml", *settings.glob("conf.d/*")):
        if path.exists():
            look.file(f"/etc/containerd/{path.relative_to(settings)}", path.read_text())
    printed, cases = "", ""
    for word in ("dump", "default"):
        done = programs.run("containerd", "config", word)
        printed += done.stdout + done.stderr if word == "dump" else ""
        for name, text in (("out", done.stdout), ("err", done.stderr)):
            look.file(f"/{word}.{name}", text)
        cases += f"{word}) cat {tree}/{word}.out; cat {tree}/{word}.err >&2; exit {done.returncode};; "
    look.tool("containerd", f'case "$2" in {cases}esac')
    look.file("/usr/bin/kubelet", "")
    return look.values(*facts), printed


def role(name: str, dump: str = "") -> str:
    """Return a variable of the role container_toolkit, rendered for this dump."""
    own = all_roles()["container_toolkit"]
    values = {"__container_toolkit_dump": {"stdout": dump}}
    return str(renderer_for(own, values, machine()).value(f"{{{{ __container_toolkit_{name} }}}}"))


def write(programs: Root, main: int, drop_in: int, text: str = "") -> None:
    """Write the settings in these formats."""
    settings = programs.own / "etc/containerd"
    (settings / "config.toml").write_text(MAIN.format(version=main) + text)
    added = DROP_IN.format(version=drop_in, plugin=PLUGINS[drop_in])
    (settings / "conf.d/99-nvidia.toml").write_text(added)


def runtime_type(programs: Root, tree: Path, main: int, drop_in: int, text: str = "") -> tuple[str, str]:
    write(programs, main, drop_in, text)
    found, printed = told(programs, tree, TYPE)
    return str(found[TYPE]), printed


@pytest.mark.parametrize("containerd", SUITES, indirect=True)
def test_a_runtime_in_a_drop_in_of_each_format_is_known(containerd: tuple[str, Root], tmp_path: Path) -> None:
    suite, programs = containerd
    for version in range(2, SUITES[suite] + 1):
        kind, printed = runtime_type(programs, tmp_path / str(version), version, version)
        assert kind == "io.containerd.runc.v2"
        assert re.search("(?m)^ *enable_cdi = true", printed)  # set by roles/amd_container_toolkit


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


@pytest.mark.parametrize("containerd", SUITES, indirect=True)
def test_what_a_later_drop_in_overrides_is_not_in_effect(
    containerd: tuple[str, Root], tmp_path: Path
) -> None:
    """With 1.7, the later file replaces a plugin's whole section; with 2.1, only the keys that it sets."""
    suite, programs = containerd
    version, merges = SUITES[suite], suite == "forky"
    write(programs, version, version)
    found, printed = told(programs, tmp_path / "ours", *EFFECTIVE, *LISTS)
    ours = "/usr/bin/nvidia-container-runtime", True, merges, "io.containerd.runc.v2"
    assert tuple(found[fact] for fact in EFFECTIVE) == ours
    assert [found[fact] for fact in LISTS] == [[] if merges else ["containerd"], []]
    assert role("in_effect", printed) == str(merges), "1.7 needs runc in the drop-in"
    later = programs.own / "etc/containerd/conf.d/zz-site.toml"
    later.write_text(LATER.format(version=version, plugin=PLUGINS[version]))
    found, printed = told(programs, tmp_path / "later", *EFFECTIVE, *LISTS)
    assert role("in_effect", printed) == "False"
    theirs = "/usr/bin/crun", False, merges, "io.containerd.runc.v2" if merges else None
    assert tuple(found[fact] for fact in EFFECTIVE) == theirs
    assert [found[fact] for fact in LISTS] == [["containerd"], ["containerd"]]


@pytest.mark.parametrize("containerd", SUITES, indirect=True)
def test_a_plugin_that_is_off_is_told_whatever_the_drop_in_says(
    containerd: tuple[str, Root], tmp_path: Path
) -> None:
    """Disable the plugin in the main file, as Docker's packages do."""
    suite, programs = containerd
    write(programs, SUITES[suite], SUITES[suite])
    main = programs.own / "etc/containerd/config.toml"
    _, printed = told(programs, tmp_path / "on", TYPE)
    assert not re.search(role("no_cri"), printed)
    main.write_text('disabled_plugins = ["cri"]\n' + MAIN.partition("\n")[2])
    found, printed = told(programs, tmp_path / "refused", TYPE)
    if suite == "trixie":  # nvidia-ctk can leave these two files side by side
        assert 'invalid disabled plugin URI "cri"' in found[TYPE]
        (programs.own / "etc/containerd/conf.d/99-nvidia.toml").unlink()
    found, printed = told(programs, tmp_path / "off", TYPE, LISTS[0])
    assert found == {TYPE: "the CRI plugin is in disabled_plugins", LISTS[0]: ["containerd"]}
    assert re.search(role("no_cri"), printed)


@pytest.mark.parametrize("containerd", SUITES, indirect=True)
def test_without_settings_of_its_own_it_runs_with_the_built_in_ones(
    containerd: tuple[str, Root], tmp_path: Path
) -> None:
    suite, programs = containerd
    (programs.own / "etc/containerd/config.toml").unlink()
    found, printed = told(programs, tmp_path / "none", *EFFECTIVE)
    assert ("config.toml: no such file" in printed) is (suite == "trixie")
    assert [found[fact] for fact in EFFECTIVE] == [None, suite == "forky", True, None]
