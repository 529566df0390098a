"""Evidence bundle: an archive of a stored run's data about one node, for the vendor's return process.

It is built from the run's folder alone, without touching a node, and reproducible byte for byte. Data that
must not leave the site is removed from every file first (bundle_secrets.py)."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import shlex
import stat
import tarfile
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from provision import atomic_file
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Verdict, worst
from provision.desired.vendors import RETURN_LOGS
from provision.errors import GpuprovError, RunFolderError
from provision.nearest import did_you_mean
from provision.node.description import DEFAULT_VENDOR
from provision.node_names import file_name
from provision.report import bundle_text
from provision.report.bundle_secrets import Remover
from provision.report.bundle_text import Moment
from provision.runs import fingerprint, node_history
from provision.runs.store import RunFolder
from provision.secrets_mask import secrets_of
from provision.text import clean, one_line

_LARGEST = 128 * 1024 * 1024  # bytes per stored file, unpacked; a bug report has some 20 MB


@dataclass(frozen=True)
class Bundle:
    """Contents of an evidence bundle. `name`: the archive's top folder; `files`: path below it → content.

    `removed`: kind → number of removals; `notes`: missing parts with reasons."""

    name: str
    files: Mapping[str, bytes]
    removed: Mapping[str, int]
    notes: tuple[str, ...]


def find_node(fleet: FleetHealth, name: str) -> NodeHealth:
    """Return the node of that name. Raises RunFolderError if the run does not have it."""
    for node in fleet.nodes:
        if node.node == name:
            return node
    if measured := node_history.node_runs().get(name):  # the newest run covered other nodes
        advice = f"its newest run has: gpuprov report bundle {shlex.quote(name)} {measured[-1].run}"
        raise RunFolderError(f"the run {fleet.run_id} has no node {one_line(name, 100)}", advice)
    names = [node.node for node in fleet.nodes]
    some = f"it has {', '.join(names[:3])}{', …' if len(names) > 3 else ''}" if names else "it has no nodes"
    raise RunFolderError(
        f"the run {fleet.run_id} has no node {one_line(name, 100)}", did_you_mean(name, names, some)
    )


def make(
    folder: RunFolder,
    fleet: FleetHealth,
    node: NodeHealth,
    secrets: Iterable[str] = (),
    others: Iterable[str] = (),
) -> Bundle:
    """Build the files of the bundle. Raises RunFolderError if the folder cannot be read.

    `secrets`, `others`: known secret values and machine names, in addition to those found in the runs."""
    seen = _seen(folder, node.node)
    raw, notes = _raw(folder, node.node)
    moments = timeline(folder, node)
    reports, more = _bug_reports(folder, node.node)
    remover = Remover(
        {*secrets, *secrets_of(seen)}, {*others, *_machines(folder, fleet)} - {node.node}, node.node
    )
    remover.learn([node.node, seen, raw, reports, [asdict(moment) for moment in moments], asdict(node)])
    rows = bundle_text.rows(fleet, node)
    node, seen, raw = _cleaned(remover, node), remover.clean(seen), remover.clean(raw)
    rows = [replace(row, metric=remover.clean(row.metric), device=remover.clean(row.device)) for row in rows]
    moments = [replace(moment, what=remover.clean(moment.what)) for moment in moments]
    shared = ("node", "facts", "gpuprov_node", "problems", "error", "unreachable")
    files = {
        "timeline.txt": bundle_text.timeline(moments),
        "findings.json": _json([asdict(finding) for check in node.checks for finding in check.findings]),
        "measurements.json": _json([asdict(row) for row in rows]),
        "measurements.txt": bundle_text.measurements(rows),
        "facts.json": _json({name: seen[name] for name in shared if name in seen}),
    }
    for check, document in raw.items():
        files[f"raw/{check}.json"] = _json(document)
        files[f"raw/{check}.txt"] = bundle_text.output(document)
    packed = {name: text.encode("utf-8", "replace") for name, text in files.items()}
    for name, text in reports.items():
        packed[f"raw/{name}"] = _gzip(remover.clean(text).encode("utf-8", "surrogateescape"))
    notes = (*notes, *more, *([] if reports else [_advice(seen)]))
    summary = bundle_text.readme(fleet, node, seen, list(raw.values()))
    summary += bundle_text.findings(node, rows) + bundle_text.contents(packed, notes)
    packed["README.txt"] = (summary + bundle_text.removals(remover.removed)).encode("utf-8", "replace")
    packed = dict(sorted(packed.items()))
    sums = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in packed.items())
    packed["MANIFEST.sha256"] = "".join(sums).encode()
    top = f"gpuprov-{file_name(node.node)}-{file_name(folder.path.absolute().name)}"
    return Bundle(top, packed, {kind: n for kind, n in sorted(remover.removed.items()) if n}, notes)


def write(bundle: Bundle, target: Path) -> Path:
    """Write the archive below `target`, atomically and readable by its owner only. Raises RunFolderError."""
    path = target / f"{bundle.name}.tar.gz"
    try:
        target.mkdir(parents=True, exist_ok=True)
        return atomic_file.write(path, _gzip(_tar(bundle)))
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}", "give a writable folder with --output"
        ) from error


def _tar(bundle: Bundle) -> bytes:
    """Pack the bundle without user, group or time, which would identify its author."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in bundle.files.items():
            member = tarfile.TarInfo(f"{bundle.name}/{name}")
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, default=str) + "\n"


def _seen(folder: RunFolder, node: str) -> dict[str, Any]:
    """Return the run's last observation of the node: its entry of facts.jsonl."""
    latest: dict[str, Any] = {}
    for record in folder.read("facts"):
        if record.get("node") == node:
            latest = record
    return latest


def _advice(seen: Mapping[str, Any]) -> str:
    """Explain how to create the log of the node's GPU vendor, or of the default vendor if unknown."""
    described = seen.get("gpuprov_node")
    gpu = described.get("gpu") if isinstance(described, dict) else None
    vendor = gpu.get("vendor") if isinstance(gpu, dict) else None
    name, how = RETURN_LOGS[vendor if vendor in tuple(RETURN_LOGS) else DEFAULT_VENDOR]
    where = "into the run's folder beside the node's raw output, and pack again."
    return f"There is no {name} log. To create one, {how} {where}"


def _kept(folder: RunFolder, node: str) -> Iterator[Path]:
    """Yield the regular files of the node's raw folder, by name."""
    home = folder.path / "raw" / file_name(node)
    with contextlib.suppress(OSError):
        for path in sorted(home.iterdir()):
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def _raw(folder: RunFolder, node: str) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Return the raw output by check, and a note for each unreadable file."""
    documents, notes = {}, []
    for path in _kept(folder, node):
        if path.suffix == ".json":
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
                if not isinstance(document, dict):
                    raise ValueError("not an object")
                documents[file_name(path.stem)] = document
            except (OSError, ValueError, RecursionError) as error:
                notes.append(f"The raw output {clean(path.name)} could not be read: {one_line(str(error))}")
    return documents, tuple(notes)


def _bug_reports(folder: RunFolder, node: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the vendors' logs placed next to the raw output, by their name in the bundle, and notes."""
    texts, notes = {}, []
    for path in _kept(folder, node):
        if ".log" not in path.name or not any(part in path.name for part, _ in RETURN_LOGS.values()):
            continue
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                content = file.read(_LARGEST + 1)
        except (OSError, EOFError, zlib.error) as error:
            notes.append(
                f"{clean(path.name)} is not in this archive: it cannot be read ({one_line(str(error))})."
            )
            continue
        if len(content) > _LARGEST:
            notes.append(f"{clean(path.name)} is not in this archive: it is above {_LARGEST >> 20} MiB.")
            continue
        name = file_name(path.name.removesuffix(".gz")) + ".gz"
        texts[name] = content.decode("utf-8", "surrogateescape")
    return texts, tuple(notes)


def _machines(folder: RunFolder, fleet: FleetHealth) -> set[str]:
    """Return the names of all machines in this and neighbouring runs, including the controller."""
    meta = folder.meta()
    arguments = meta.get("arguments")
    nodes = arguments.get("nodes") if isinstance(arguments, dict) else ()
    names = {node.node for node in fleet.nodes} | {str(meta.get("controller") or "")}
    names |= {str(name) for name in nodes or ()} | {str(row.get("node")) for row in folder.read("facts")}
    for place in ("validated", "offenders"):
        for path in (folder.path.absolute().parent / place).glob("[!.]*.json*"):
            names.add(urllib.parse.unquote(path.name.rpartition(".")[0]))
    return {name for name in names if name}


def _cleaned(remover: Remover, node: NodeHealth) -> NodeHealth:
    """Remove secrets from text of the node and its checks, but not from gpuprov's own words."""

    def cleaned(row: Any, *words: str) -> Any:
        """Clean all fields of the row except these."""
        texts = {one.name: getattr(row, one.name) for one in fields(row) if one.name not in words}
        return replace(
            row,
            **{
                name: tuple(map(remover.clean, text)) if isinstance(text, tuple) else remover.clean(text)
                for name, text in texts.items()
            },
        )

    checks = [
        replace(
            check,
            findings=tuple(cleaned(one, "check", "verdict", "action") for one in check.findings),
            measurements=tuple(map(cleaned, check.measurements)),
        )
        for check in node.checks
    ]
    return replace(
        node,
        node=remover.clean(node.node),
        checks=tuple(checks),
        gpus=tuple(map(cleaned, node.gpus)),
        facts=remover.clean(dict(node.facts)),
        error=remover.clean(node.error),
    )


# --- the timeline of the node: this run and the stored history of earlier validate and up runs. Only folders
# next to the run's own are read, and in them only lines that name the node. Damaged or foreign data is
# skipped: it costs a line of history, never the bundle.


RUNS = 20  # earlier runs listed for each verb
_FINDINGS = 6  # listed for each earlier run


def timeline(folder: RunFolder, node: NodeHealth) -> list[Moment]:
    """Return the node's events up to the end of this run, oldest first. Never raises for stored data."""
    moments_so_far: list[Moment] = []
    for path in _earlier(folder, "up"):
        moments_so_far += _up(path, node.node)
    listed, before = set(), None
    for path in [*_earlier(folder, "validate"), folder.path]:
        for row in _rows(path, "fingerprints", node.node):
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                now = fingerprint.from_record(row)
                if before is not None:
                    moments_so_far += [
                        Moment(_started(path), path.name, f"changed since the run before: {change}")
                        for change in fingerprint.changes("", before, now)
                        if not change.unknown
                    ]
                before = now
        if path != folder.path and (moments := _validated(path, node.node)):
            listed.add(path.name)
            moments_so_far += moments
    moments_so_far += _remembered(folder, node, listed)
    moments_so_far += _this_run(folder, node)
    return sorted(moments_so_far, key=lambda moment: moment.at)


def _earlier(folder: RunFolder, verb: str) -> list[Path]:
    """Return the newest runs of a verb that began before this one; a folder's name begins with its time."""
    with contextlib.suppress(OSError):
        stamp = folder.path.name.partition("Z-")[0]
        paths = sorted(folder.path.absolute().parent.glob(f"*Z-{verb}"))
        return [path for path in paths if path.name.partition("Z-")[0] < stamp][-RUNS:]
    return []


def _rows(path: Path, name: str, node: str) -> Iterator[dict[str, Any]]:
    """Yield the records of `<name>.jsonl` about this node."""
    named = json.dumps(node)
    file = path / f"{name}.jsonl"
    with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if named in line:
                with contextlib.suppress(ValueError, RecursionError):
                    row = json.loads(line)
                    if isinstance(row, dict) and row.get("node") == node:
                        yield row


def _started(path: Path) -> str:
    with contextlib.suppress(GpuprovError):
        return str(RunFolder(path).meta().get("started") or "")
    return ""


def _validated(path: Path, node: str) -> list[Moment]:
    """Return the results of an earlier validate run."""
    rows = list(_rows(path, "findings", node))
    words = [str(row.get("verdict")) for row in rows]
    verdicts = [Verdict(word) for word in words if word in set(Verdict)]
    if not verdicts:
        return []
    at = _started(path)
    moments = [Moment(at, path.name, f"validate: {worst(verdicts).value}")]
    bad = [row for row in rows if row.get("verdict") in ("fail", "error", "warn")]
    for row in sorted(bad, key=lambda row: row["verdict"] == "warn")[:_FINDINGS]:
        words = [str(row.get(key) or "") for key in ("verdict", "check", "device", "message", "action")]
        moments.append(Moment(at, path.name, "  {} {} {}: {} (action: {})".format(*words)))
    if len(bad) > _FINDINGS:
        moments.append(Moment(at, path.name, f"  … and {len(bad) - _FINDINGS} more findings"))
    return moments


def _remembered(folder: RunFolder, node: NodeHealth, told: set[str]) -> Iterator[Moment]:
    """Yield runs known only from the record of repeat offenders."""
    for past in node_history.recalled(folder).get(node.node, ()):
        if past.run not in told:
            bad = ", ".join(sorted(past.bad)) or "nothing bad"
            yield Moment(_moment_of(past.run), past.run, f"validate: {bad} (its folder no longer exists)")


def _moment_of(run: str) -> str:
    """Convert 20260504T100000.000Z-validate to 2026-05-04T10:00:00.000Z; "" for any other form of name."""
    stamp = run.partition("Z-")[0]
    if len(stamp) < 15 or stamp[8] != "T":
        return ""
    day, time = stamp[:8], stamp[9:]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}Z"


def _up(path: Path, node: str) -> Iterator[Moment]:
    """Yield the reboots and outcomes of an earlier `up` run."""
    for row in itertools.islice(_rows(path, "reboots", node), 10):
        yield Moment(str(row.get("time") or ""), path.name, "up: rebooted")
    for row in itertools.islice(_rows(path, "outcomes", node), 10):
        yield Moment(str(row.get("time") or ""), path.name, f"up: {row.get('status')}")


def _this_run(folder: RunFolder, node: NodeHealth) -> Iterator[Moment]:
    meta: dict[str, Any] = {}
    with contextlib.suppress(GpuprovError):
        meta = folder.meta()
    name = folder.path.name
    yield Moment(str(meta.get("started") or ""), name, "validate began (this run)")
    verdicts = {check.check: check for check in node.checks}
    for row in _rows(folder.path, "fingerprints", node.node):
        check = verdicts.get(str(row.get("check") or ""))
        if check is not None:
            result = f"{check.check}: {check.verdict.value} after {check.seconds:.0f} s"
            yield Moment(str(row.get("at") or ""), name, result)
    ended = str(meta.get("measured_until") or meta.get("finished") or meta.get("started") or "")
    yield Moment(ended, name, f"judged: {node.verdict.value}")
