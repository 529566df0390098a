"""The program sent to nodes: compiled for the controller's Python version, as text for all others."""

from __future__ import annotations

import binascii
import json
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from provision.remote import node_program, protocol

FACTS = ("os.id", "sysctl.kernel.pid_max.value", "package.bash.status")
PACKED = re.compile(r"a2b_base64\('([^']+)'\)")


def pythons() -> list[str]:
    """Return this Python and all other working installed ones."""
    others = filter(None, (shutil.which(f"python3.{minor}") for minor in range(6, 16)))
    ran = (
        path for path in others if subprocess.run([path, "-c", "pass"], capture_output=True).returncode == 0
    )
    return [sys.executable, *ran]


def run(program: str, root: Path, python: str = sys.executable) -> subprocess.CompletedProcess[bytes]:
    request = {"facts": list(FACTS), "root": str(root)}
    text = f"{program}\nmain({request!a})\n"
    return subprocess.run(
        [python, "-I", "-S", "-"], input=text.encode("ascii"), capture_output=True, timeout=60
    )


def facts(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert done.stderr == b""
    document = json.loads(protocol.unframed(done.stdout))
    assert document["problems"] == {}
    return {name: document["facts"][name] for name in FACTS}


def broken(program: str, form: int) -> str:
    """Replace the compiled program (form 0) or its text (form 1)."""
    other = binascii.b2a_base64(zlib.compress(b"raise SystemExit('the wrong one')"), newline=False).decode()
    return program.replace(PACKED.findall(program)[form], other)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in (
        ("etc/os-release", "ID=debian\n"),
        ("proc/sys/kernel/pid_max", "4194304\n"),
        ("var/lib/dpkg/status", "Package: bash\nStatus: install ok installed\nVersion: 5-1\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    return tmp_path


SEEN = {"os.id": "debian", "sysctl.kernel.pid_max.value": "4194304", "package.bash.status": "installed"}


@pytest.mark.parametrize("python", pythons())
def test_every_python_answers_the_same(root: Path, python: str) -> None:
    assert facts(run(node_program.packed_for(FACTS), root, python)) == SEEN


def test_a_python_of_our_version_compiles_nothing(root: Path) -> None:
    program = node_program.packed_for(FACTS)
    assert facts(run(broken(program, 1), root)) == SEEN
    assert run(broken(program, 0), root).returncode != 0


def test_another_python_does_not_touch_what_was_compiled_for_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_program._packed.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.MAGIC_NUMBER", b"\x00\x00\r\n")
        program = node_program.packed_for(FACTS)
    node_program._packed.cache_clear()
    assert facts(run(broken(program, 0), root)) == SEEN
    assert b"the wrong one" in run(broken(program, 1), root).stderr


def test_it_is_as_ansible_can_carry_it_and_hardly_longer_than_the_text() -> None:
    everything = [f"{family}.x" for family in node_program.families()]
    program = node_program.packed_for(everything)
    assert program.isascii()
    assert not re.search(r"\{[{%#]", program)
    assert len(program) < 1.6 * len(node_program.text_for(everything))
