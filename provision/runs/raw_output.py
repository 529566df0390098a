"""The raw output of checks in the run folder: stored before anything judges it, and read again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from provision.checks.check import Output
from provision.errors import RunFolderError
from provision.runs.store import RunFolder, file_name


@dataclass(frozen=True)
class Raw:
    """What came back for one check on one node: raw/<node>/<check>.json. `error`: nothing did, and why."""

    node: str
    check: str
    outputs: tuple[Output, ...] = ()
    seconds: float = 0.0
    boot_id: str = ""
    boot_id_before: str = ""
    error: str = ""
    unreachable: bool = False

    @property
    def path(self) -> str:
        return raw_path(self.node, self.check)


def raw_path(node: str, check: str) -> str:
    """Where the raw output of a check lies in the run folder."""
    return f"raw/{file_name(node)}/{check}.json"


def keep_raw(folder: RunFolder, raw: Raw) -> None:
    """Store what came back, before anybody judges it."""
    folder.write_json(raw.path, {"format": 1, **asdict(raw)})


def read_raw(folder: RunFolder, node: str, check: str) -> Raw | None:
    """What an earlier run stored; None when it did not come that far; of a damaged file, an `error` that
    names it. Raises RunFolderError for a file of a newer gpuprov."""
    path = folder.path / raw_path(node, check)
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
        if document.pop("format") > 1:
            raise RunFolderError(f"{path} was written by a newer gpuprov", "upgrade gpuprov")
        outputs = tuple(Output(**{**row, "argv": tuple(row["argv"])}) for row in document.pop("outputs"))
        if not all(isinstance(text, str) for one in outputs for text in (one.name, one.stdout, one.stderr)):
            raise TypeError("an output is not text")
        return Raw(**{**document, "node": node, "check": check, "outputs": outputs})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Raw(node, check, error=f"{path} is damaged: {error!r}; validate --resume measures it again")
