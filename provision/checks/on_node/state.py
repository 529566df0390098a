"""State kept between runs in /var/lib/gpuprov/node-health, and a short history of verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provision import atomic_file, foreign_json
from provision.checks.health import GpuIdentity, finding_from
from provision.checks.on_node import kernel_since
from provision.checks.on_node.debounce import Rule, Tracked
from provision.checks.on_node.kernel_since import Remembered
from provision.checks.on_node.processes import Hung

FORMAT = 1
FILE, HISTORY = "state.json", "history.jsonl"
_LARGEST = 4 * 1024 * 1024  # bytes
_HISTORY_LINES = 1000  # one line per change of the verdict
_ANY = Rule("stored", 1, 1, 1)  # placeholder: each run applies the current rules


@dataclass(frozen=True)
class State:
    """Findings, kernel log position, hung programs and GPUs after the last run."""

    tracked: tuple[Tracked, ...] | None = None  # None: no earlier run is known
    kernel: Remembered | None = None
    hung: tuple[Hung, ...] = ()
    rebooted: bool = False  # since the last run
    gpus: tuple[GpuIdentity, ...] = ()  # seen since boot: a lost GPU no longer reports its serial number
    trouble: str = ""  # why the stored state is unusable


def read(folder: Path, boot_id: str) -> State:
    """Read the state after the last run; a damaged file counts as missing and sets `trouble`.

    After a reboot, findings are kept; kernel log position, hung programs and GPUs are not."""
    path = folder / FILE
    try:
        with path.open("rb") as source:
            text = source.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"larger than {_LARGEST} bytes")
        document = foreign_json.read(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r:.40}")
        same_boot = document["boot_id"] == boot_id
        return State(
            tuple(_tracked(row) for row in document["tracked"]),
            kernel_since.read(document["kernel"], boot_id),
            tuple(Hung(**row) for row in document["hung"]) if same_boot else (),
            not same_boot,
            tuple(GpuIdentity(**row) for row in document["gpus"]) if same_boot else (),
        )
    except FileNotFoundError:
        return State()
    except OSError as error:
        return State(trouble=f"{path} could not be read: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return State(trouble=f"{path} is damaged, and begun anew: {type(error).__name__}: {error!s:.80}")


def _tracked(row: Mapping[str, Any]) -> Tracked:
    seen = tuple(bool(one) for one in row["seen"])
    return Tracked(
        finding_from(row["finding"]), _ANY, str(row["since"]), seen, bool(row["active"]), int(row["clean"])
    )


def write(folder: Path, state: State, boot_id: str) -> None:
    """Save the state atomically. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rows = [
        {
            "finding": asdict(replace(one.finding, verdict=one.finding.verdict)),
            "since": one.since,
            "seen": [int(each) for each in one.seen],
            "active": one.active,
            "clean": one.clean,
        }
        for one in state.tracked or ()
    ]
    document = {
        "format": FORMAT,
        "boot_id": boot_id,
        "tracked": rows,
        "kernel": kernel_since.plain(state.kernel),
        "hung": [asdict(one) for one in state.hung],
        "gpus": [asdict(one) for one in state.gpus],
    }
    # No fsync: after a power cut an older or damaged state does no harm.
    atomic_file.write(folder / FILE, json.dumps(document, default=str), sync=False)


def note(folder: Path, verdict: str, finished: str, causes: Sequence[str]) -> None:
    """Append to the history if the verdict changed. Raises OSError."""
    path = folder / HISTORY
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        lines = []
    if lines:
        try:
            if foreign_json.read(lines[-1])["verdict"] == verdict:
                return
        except (ValueError, KeyError, TypeError):
            pass
    lines.append(json.dumps({"finished": finished, "verdict": verdict, "causes": list(causes)[:8]}))
    atomic_file.write(path, "".join(f"{line}\n" for line in lines[-_HISTORY_LINES:]), sync=False)
