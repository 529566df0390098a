"""Layout of the Ansible collection: pages, playbooks and changelog generated from the repository."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from provision import __version__, paths

ROOT = paths.PACKAGE.parent


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("collection", ROOT / "scripts" / "collection.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    laid_out = _script().lay_out(tmp_path_factory.mktemp("tree"))
    assert isinstance(laid_out, Path)
    return laid_out


def test_a_python_without_the_dependencies_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "scripts/collection.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "scripts/collection.py: this Python has no module yaml"
    for page in ("docs/ansible.md", "docs/examples/execution-environment.yml"):
        text = (ROOT / page).read_text()
        assert 0 < text.index(". scripts/setup && setup") < text.index("scripts/collection.py"), page


def test_each_role_has_a_page_with_every_option_its_type_and_default(top: Path) -> None:
    roles = sorted(folder.name for folder in paths.ROLES.iterdir() if folder.is_dir())
    assert sorted(page.stem for page in (top / "docs").iterdir()) == roles
    for role in roles:
        specs = yaml.safe_load((paths.ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]
        page = (top / "docs" / f"{role}.md").read_text()
        for name, option in specs["main"].get("options", {}).items():
            (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` | ")]
            assert row.split(" | ")[1].startswith(option["type"])
            assert "default" not in option or "| `" in row.partition(f"`{name}`")[2]
            for choice in option.get("choices", ()):
                assert f"`{json.dumps(choice)}`" in row


def test_the_playbooks_name_the_modules_of_the_collection_in_full(top: Path) -> None:
    ours = {file.stem for file in (top / "plugins" / "modules").iterdir()}
    for playbook in (top / "playbooks").iterdir():
        named = set(
            re.findall(r"^ +(?:gpuprov[.]gpu[.])?(gpuprov_\w+|node_facts):$", playbook.read_text(), re.M)
        )
        assert named <= ours
        assert not re.search(r"^ +gpuprov_\w+:$", playbook.read_text(), re.M), playbook.name
    assert "gpuprov.gpu.gpuprov_packages:" in (top / "playbooks" / "up.yml").read_text()


def test_the_changes_are_those_of_the_changelog(top: Path) -> None:
    releases = yaml.safe_load((top / "changelogs" / "changelog.yaml").read_text())["releases"]
    told = [text for release in releases.values() for texts in release["changes"].values() for text in texts]
    written = re.sub(r"\s+", " ", (ROOT / "CHANGELOG.md").read_text())
    assert __version__ in releases
    assert len(told) == len(re.findall(r"(?m)^- ", (ROOT / "CHANGELOG.md").read_text()))
    assert [text for text in told if "- " + re.sub(r"\s+", " ", text) not in written] == []
