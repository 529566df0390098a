"""The controller's copy of the files that nodes write during a burn-in: `<run>/spool/<node>/…`.

Files keep the node's names and are not trusted: names are checked, sizes capped, and unreadable parts
reported and skipped. Secrets of the inventory are masked in the output of programs.
"""

from __future__ import annotations

import base64
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision import foreign_json
from provision.node_names import file_name
from provision.runs.store import RunFolder
from provision.secrets_mask import masked

MOST = 2 << 30  # bytes kept per node: many times the amount of three days
_MOST_PART = 64 << 20  # bytes of one piece, or of one step's output
_MOST_FILES = 20_000
_LINE = 65_536  # characters of a valid event
_BOOT = r"[0-9a-fA-F-]{8,64}"
_NAMES = re.compile(
    rf"events\.jsonl|state\.json|order\.json|raw/\d{{1,9}}-[a-z0-9_]{{1,64}}\.json\.gz|telemetry/{_BOOT}\.csv"
)
HAVE = "have.json"


@dataclass(frozen=True)
class Event:
    """One line of events.jsonl. `t`: seconds since the epoch by the node's clock; `up`: since its boot."""

    t: float
    up: float
    boot: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def text(self, key: str) -> str:
        """Return a field as text, cut to the room in a line."""
        value = self.fields.get(key)
        return "" if value is None else str(value)[:300]

    def number(self, key: str, otherwise: float = 0.0) -> float:
        """Return a field as a number; `otherwise` if it is not one."""
        value = self.fields.get(key)
        fine = type(value) in (int, float) and -1e12 < value < 1e12  # type: ignore[operator]
        return float(value) if fine else otherwise  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    """One sample of one device: its latest values by metric; None for anything but a number."""

    t: float
    up: float
    boot: str
    source: str
    device: str
    values: Mapping[str, float | None]

    def number(self, metric: str) -> float | None:
        """Return a metric as a number; None if it has no value."""
        return self.values.get(metric)


class Spool:
    """One node's part of a run folder. `damaged`: unreadable parts, a line each."""

    def __init__(self, folder: RunFolder, node: str) -> None:
        self.folder, self.node = folder, node
        self.damaged: list[str] = []
        self._below = f"spool/{file_name(node)}"

    @property
    def path(self) -> Path:
        return self.folder.path / self._below

    def have(self) -> dict[str, int]:
        """Return how many bytes of each of the node's files are here."""
        try:
            sizes = foreign_json.read((self.path / HAVE).read_text("utf-8"))
            return {str(name): int(size) for name, size in sizes.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def take(self, parts: Any, secrets: Collection[str] = ()) -> str:
        """Store the pieces of an answer; return its fault in one line, or nothing."""
        if not isinstance(parts, list):
            return "its answer was not understood: no list of files"
        have = self.have()
        for part in parts:
            try:
                name, offset, data = str(part["file"]), int(part["offset"]), _unpacked(part)
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                return f"its answer was not understood: {type(error).__name__}: {error}"[:200]
            if not _NAMES.fullmatch(name):
                return f"it offers a file that a burn-in does not write: {name[:60]!r}"
            if sum(have.values()) + len(data) > MOST or len(have) > _MOST_FILES:
                return f"it offers more than {MOST >> 30} GiB"
            whole = name.endswith("state.json") or name == "order.json"
            if offset != (0 if whole else have.get(name, 0)):
                continue  # already received in an answer that was lost, or sent again later
            have[name] = self._keep(name, offset, data, bool(part.get("size") == offset + len(data)), secrets)
        self.folder.write_json(f"{self._below}/{HAVE}", have)
        return ""

    def _keep(self, name: str, offset: int, data: bytes, last: bool, secrets: Collection[str]) -> int:
        """Store one piece; return how much of the file is known then."""
        target = self.path / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if name == "events.jsonl":  # whole lines, so that no secret is cut in two
            data = data[: data.rfind(b"\n") + 1]
            text = str(masked(data.decode("utf-8", "replace"), secrets))
            _append(target, text.encode())
        elif name.startswith("telemetry/"):
            _append(target, data)
        elif name.startswith("raw/"):
            if offset == 0:
                target.unlink(missing_ok=True)
            _append(target, data)
            if last:
                self._mask_raw(target, secrets)
        else:
            self.folder.write(f"{self._below}/{name}", str(masked(data.decode("utf-8", "replace"), secrets)))
        return offset + len(data)

    def _mask_raw(self, target: Path, secrets: Collection[str]) -> None:
        text = _gunzipped(target.read_bytes())
        if text is not None and secrets and masked(text, secrets) != text:
            target.write_bytes(gzip.compress(str(masked(text, secrets)).encode()))

    def order(self) -> dict[str, Any]:
        """Return the node's order; empty if it is missing or unreadable."""
        return self._json("order.json")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            document = foreign_json.read((self.path / name).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            self.damaged.append(f"{name} cannot be read")
            return {}
        return document if isinstance(document, dict) else {}

    def events(self) -> list[Event]:
        """Return the events in the order they were written."""
        try:
            lines = (self.path / "events.jsonl").read_text("utf-8", "replace").split("\n")
        except OSError:
            return []
        result = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                event = _event(line)
                if event is None:
                    self.damaged.append(f"events.jsonl:{number} is not an event")
                else:
                    result.append(event)
        return result

    def raw(self, name: str) -> dict[str, Any] | None:
        """Return the answer of one step (`raw/000012-gpu_burn.json.gz`); None if missing or damaged."""
        if not _NAMES.fullmatch(name) or not name.startswith("raw/"):
            self.damaged.append(f"no step's output: {name[:60]!r}")
            return None
        try:
            text = _gunzipped((self.path / name).read_bytes())
            document = None if text is None else foreign_json.read(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            document = None
        if not isinstance(document, dict):
            self.damaged.append(f"{name} cannot be read")
            return None
        return document

    def boots(self) -> list[str]:
        """Return the boots that have telemetry."""
        return sorted(path.stem for path in (self.path / "telemetry").glob("*.csv"))

    def rows(self, boot: str) -> Iterator[Row]:
        """Yield the samples of one boot in order; a metric missing from a row keeps its previous value.

        A last line that was cut is ignored."""
        latest: dict[tuple[str, str], dict[str, float | None]] = {}
        bad = 0
        try:
            with (self.path / "telemetry" / f"{boot}.csv").open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    row = _row(line, boot, latest) if line.endswith("\n") else None
                    if row is not None:
                        yield row
                    elif line.endswith("\n"):
                        bad += 1
        except OSError:
            return
        if bad:
            self.damaged.append(f"telemetry/{boot}.csv: {bad} lines are no samples")


def _event(line: str) -> Event | None:
    if len(line) > _LINE:
        return None
    try:
        given = foreign_json.read(line)
        t, up = float(given.pop("t")), float(given.pop("up"))
        boot, name = str(given.pop("boot"))[:64], str(given.pop("event"))[:40]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return Event(t, up, boot, name, given) if 0 <= t < 1e11 and 0 <= up < 1e11 else None


def _row(line: str, boot: str, known: dict[tuple[str, str], dict[str, float | None]]) -> Row | None:
    """Parse `1732264512.4,512.3,gpu,gpu0,temperature_c=61;power_w=412.5`, with earlier values filled in."""
    cells = line.rstrip("\n").split(",", 4)
    if len(cells) != 5 or len(line) > _LINE:
        return None
    try:
        t, up = float(cells[0]), float(cells[1])
    except ValueError:
        return None
    if not (0 <= t < 1e11 and 0 <= up < 1e11):
        return None
    values = known.setdefault((cells[2], cells[3]), {})
    if cells[4]:
        values = dict(values)
        for pair in cells[4].split(";"):
            metric, sign, value = pair.partition("=")
            if not sign:
                return None
            values[metric] = _number(value)
        known[cells[2], cells[3]] = values
    return Row(t, up, boot, cells[2], cells[3], values)


def _number(text: str) -> float | None:
    """Parse `0x44` (bits) and `61.5`; None for anything else."""
    try:
        value = float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None
    return value if -1e15 < value < 1e15 else None


def _unpacked(part: Mapping[str, Any]) -> bytes:
    """Return the bytes of a piece. Raises ValueError, TypeError, KeyError or zlib.error."""
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(str(part["data"])), _MOST_PART)
    if stream.unconsumed_tail:
        raise ValueError("a piece is larger than any may be")
    return data


def _gunzipped(data: bytes) -> str | None:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            text = stream.read(_MOST_PART + 1)
    except (OSError, EOFError, zlib.error):
        return None
    return None if len(text) > _MOST_PART else text.decode("utf-8", "replace")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        path.chmod(0o600)
        file.write(data)
        file.flush()
