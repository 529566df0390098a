"""NCCL's promises, and the lint of its settings: the role's own tasks, run by Ansible on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision import paths
from tests.roles.promises import promised_by, values
from tests.support.commands import ran
from tests.support.described import machine


def promised(system: str = "debian 13", **settings: Any) -> dict[str, Any]:
    return values(promised_by("nccl", machine(system), **settings))


def lint(folder: Path, settings: dict[str, Any], **more: Any) -> str:
    """What the role's own checks of nccl_settings say; empty when they pass."""
    preflight = yaml.safe_load((paths.ROLES / "nccl/tasks/preflight.yml").read_text())
    tasks = [task for task in preflight if "ansible.builtin.assert" in task]
    assert len(tasks) == 1
    variables = yaml.safe_load((paths.ROLES / "nccl/vars/debian.yml").read_text())
    variables["nccl_allow_debugging"] = False
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    play["vars"] = {**variables, "gpuprov_node": machine("debian 13"), "nccl_settings": settings, **more}
    (folder / "play.yml").write_text(json.dumps([play]))
    program = str(Path(sys.executable).parent / "ansible-playbook")
    done = ran(
        [program, *["-i", "localhost,", "-c", "local", "play.yml"]],
        cwd=folder,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "False"},
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(
    ("system", "packages"),
    [
        ("debian 13", ("libnccl2", "libnccl-dev")),
        ("ubuntu 22.04", ("libnccl2", "libnccl-dev")),
        ("rocky 9.4", ("libnccl", "libnccl-devel")),
    ],
)
def test_runtime_and_headers_have_one_version(system: str, packages: tuple[str, str]) -> None:
    facts = promised(system)
    assert {facts[f"package.{name}.version"] for name in packages} == {"2.29.7-1+cuda12.9"}
    assert ("file./etc/apt/preferences.d/nccl.content" in facts) == (not system.startswith("rocky"))


def test_settings_are_one_line_each_in_order() -> None:
    facts = promised(settings={"NCCL_IB_TC": 106, "NCCL_IB_HCA": "=mlx5_0,mlx5_1"})
    assert facts["file./etc/nccl.conf.content"].splitlines()[1:] == [
        "NCCL_IB_HCA==mlx5_0,mlx5_1",
        "NCCL_IB_TC=106",
    ]


def test_settings_of_a_site_are_accepted(tmp_path: Path) -> None:
    assert lint(tmp_path, {"NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_TC": 106, "NCCL_DEBUG": "WARN"}) == ""
    assert lint(tmp_path, {"NCCL_ALGO": "Ring"}, nccl_allow_debugging=True) == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"LD_PRELOAD": "x.so"}, "names LD_PRELOAD, which NCCL does not read"),
        ({"NCCL_IB_HCA": "mlx5_0\nLD_PRELOAD=x"}, "the value of NCCL_IB_HCA goes over several lines"),
        ({"NCCL_DEBUG": "INFO"}, "would leave NCCL_DEBUG set for every job"),
        ({"NCCL_P2P_DISABLE": 1, "NCCL_ALGO": "Ring"}, "would leave NCCL_P2P_DISABLE, NCCL_ALGO set"),
    ],
)
def test_what_does_not_belong_there_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    said = " ".join(lint(tmp_path, settings).replace("\\n", " ").split())
    assert words in said
