"""The figures of each part, kept as JSON next to the document; measuring one part keeps the others.

So an interrupted run loses none of the finished parts, and parts can be measured when the machine is idle.
Each part records when, on which machine and with which revision of the code it was measured.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.results import Result

_VERSIONS = ("ansible-core", "ansible-runner", "paramiko")
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """One part's figures. `failed`: the error that ended it; findings until then are kept."""

    name: str
    command: str
    day: str
    revision: str
    machine: str
    load: float
    seconds: float
    findings: tuple[Result, ...]
    failed: str = ""


def part(name: str, command: str, seconds: float, findings: Sequence[Result], failed: str) -> Part:
    """Return the figures just measured, with date, machine and revision."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    load = round(os.getloadavg()[1], 1)
    return Part(name, command, day, _revision(), machine(), load, round(seconds, 1), tuple(findings), failed)


def machine() -> str:
    """Describe the measuring machine, so that figures can be compared."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, timeout=10).stderr
    versions = [f"Python {platform.python_version()}", ssh.split(",")[0].strip()]
    for name in _VERSIONS:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    kernel = platform.release().split("-")[0]
    return f"{cores} cores ({platform.machine()}), {memory:.0f} GiB, Linux {kernel}; {', '.join(versions)}"


def _revision() -> str:
    """Return the measured commit, with a `+` if files differed from it."""
    git = ["git", "-C", str(_ROOT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True, timeout=20
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "provision", "playbooks", "roles", "benchmarks"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def beside(document: Path) -> Path:
    """Return the file that keeps a document's figures."""
    return document.with_suffix(".json")


def read(path: Path, known: Collection[str]) -> dict[str, Part]:
    """Read the measured parts that still exist, in the order of `known`.
    Raises SystemExit for a file in another format."""
    if not path.exists():
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        found = {name: _part(name, said) for name, said in kept.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SystemExit(f"{path} does not hold figures of ours ({error!r}): mend or remove it") from None
    return {name: found[name] for name in known if name in found}


def write(path: Path, parts: Collection[Part]) -> None:
    """Replace the file atomically."""
    kept = {each.name: _plain(each) for each in parts}
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def _plain(each: Part) -> dict[str, Any]:
    fields = asdict(each)
    del fields["name"]
    return fields


def _part(name: str, said: dict[str, Any]) -> Part:
    findings = tuple(Result(**{**one, "values": tuple(one["values"])}) for one in said.pop("findings"))
    return Part(name=name, findings=findings, **said)
