"""The role receptor in a plain playbook, in check mode and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.role_playbook import Playbook

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("rcp", (NodeSpec("worker", "l40s"),), place) as running:
        yield running


def test_check_mode_is_clean_and_says_what_a_run_does(lab: Lab, tmp_path: Path) -> None:
    """Play on a bare node and on a matching one; no run prints a private key, with --diff or without."""
    address = lab.node("worker").address
    state = tmp_path / "state"
    mesh: dict[str, Any] = {
        "gpuprov_roles": ["receptor"],
        "receptor_enabled": True,
        "receptor_authority_folder": str(state),
        "receptor_nodes": [
            {"name": "ctl", "address": "ctl", "port": 27199, "controller": True, "peers": ["worker"]},
            {"name": "worker", "address": address, "port": 27199, "controller": False, "peers": []},
        ],
    }
    playbook = Playbook(lab, tmp_path)
    code, output, counts = playbook.run("--check", "--diff", **mesh)
    assert (code, counts["worker"]["failed"]) == (0, 0), output
    assert counts["worker"]["changed"] >= 5, output
    assert not state.exists()
    assert lab.node("worker").run("ls -d /etc/receptor", check=False).stdout == ""
    code, output, counts = playbook.run("--diff", **mesh)
    assert (code, counts["worker"]["failed"]) == (0, 0), output
    assert counts["worker"]["changed"] >= 5, output
    assert "PRIVATE KEY" not in output
    both: tuple[tuple[str, ...], ...] = ((), ("--check", "--diff"))
    for options in both:
        code, output, counts = playbook.run(*options, **mesh)
        assert (code, counts["worker"]["failed"], counts["worker"]["changed"]) == (0, 0, 0), output
    # A controller's additional settings.
    mesh["receptor_nodes"][0]["peers"], mesh["receptor_nodes"][1]["controller"] = [], True
    for options in (("--check", "--diff", "-vvv"), ("--diff", "-vvv")):
        code, output, counts = playbook.run(*options, **mesh)
        assert (code, counts["worker"]["failed"]) == (0, 0), output
        assert "PRIVATE KEY" not in output
    assert (state / "work-private-key.pem").read_text() == lab.node("worker").as_root(
        "cat /etc/receptor/work-private-key.pem"
    ).stdout
