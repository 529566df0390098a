"""Mitogen when the inventory enables it: used if installed, reported as missing if not.

A stand-in replaces the real package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from provision import paths
from provision.errors import GpuprovError
from provision.remote.ansible import accelerator
from provision.remote.ansible.runner import run_playbook
from tests.support.plays import local

# Like the real plugin: a subclass of Ansible's strategy of the same name.
STRATEGY = """\
from pathlib import Path

from ansible.plugins.loader import strategy_loader


class StrategyModule(strategy_loader.get("free", class_only=True)):
    def run(self, iterator, play_context):
        Path(__file__).with_name("used").touch()
        return super().run(iterator, play_context)
"""


@pytest.fixture
def mitogen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a stand-in package named ansible_mitogen for this process and its children."""
    package = tmp_path / "ansible_mitogen"
    (package / "plugins" / "strategy").mkdir(parents=True)
    for name in ("__init__", "loaders", "strategy"):
        (package / f"{name}.py").touch()
    (package / "plugins" / "strategy" / "mitogen_free.py").write_text(STRATEGY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{paths.PACKAGE.parent}")
    return package


@pytest.mark.usefixtures("mitogen")
@pytest.mark.parametrize("asked", [[], [None, None], ["mitogen", "mitogen"]])
def test_it_may_be_there_asked_for_or_not(asked: list[object]) -> None:
    accelerator.check(asked)


def test_one_that_refuses_the_installed_ansible_is_named_with_its_reason(mitogen: Path) -> None:
    (mitogen / "loaders.py").write_text("raise ImportError('Your version of Ansible (2.30) is too recent')")
    with pytest.raises(GpuprovError) as refused:
        accelerator.check(["mitogen"])
    assert refused.value.what.startswith(
        "mitogen does not load with the installed ansible-core: ImportError: "
    )
    assert "2.30" in refused.value.what
    assert refused.value.fix.startswith(f"{sys.executable} -m pip install --upgrade mitogen")
    accelerator.check([None])  # no node uses mitogen


def test_one_that_is_not_installed_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accelerator, "_PACKAGE", "ansible_mitogen_that_is_not_there")
    with pytest.raises(GpuprovError) as refused:
        accelerator.check(["mitogen"])
    assert "is not installed" in refused.value.what
    assert f"{sys.executable} -m pip install" in refused.value.fix


def test_some_nodes_with_and_some_without_are_refused() -> None:
    with pytest.raises(GpuprovError, match="not the same for all nodes"):
        accelerator.check(["mitogen", None])


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("asked", [True, False])
def test_the_roles_run_with_its_strategy_only_where_it_is_asked_for(
    mitogen: Path, tmp_path: Path, asked: bool
) -> None:
    """Uses a play that names its strategy as playbooks/up.yml does."""
    strategy = next(
        line for line in (paths.PLAYBOOKS / "up.yml").read_text().splitlines() if "strategy:" in line
    )
    book = tmp_path / "play.yml"
    task = "    - ansible.builtin.debug: {msg: hello}\n"
    book.write_text(f"- hosts: all\n  gather_facts: false\n{strategy}\n  tasks:\n{task}")
    extra_vars = {accelerator.ASKED: accelerator.FREE} if asked else {}
    assert run_playbook(book, {"a": local()}, extra_vars=extra_vars)["a"].status == "ok"
    assert (mitogen / "plugins" / "strategy" / "used").exists() is asked
