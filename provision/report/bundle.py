"""Evidence bundle: an archive with a stored run's data about one node, for the vendor's return process.

It is made of the run's folder alone; no node is touched. The same run gives the same bytes. What must not
leave the house is removed first (bundle_secrets.py), from every file.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import stat
import tarfile
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provision import atomic_file
from provision.checks.health import FleetHealth, NodeHealth
from provision.errors import RunFolderError
from provision.nearest import did_you_mean
from provision.report import bundle_peers, bundle_text, bundle_timeline
from provision.report.bundle_secrets import Remover
from provision.runs.store import RunFolder, file_name
from provision.secrets_mask import secrets_of
from provision.text import clean, one_line

BUG_REPORT = "nvidia-bug-report"
_LARGEST = 128 * 1024 * 1024  # bytes of one kept file, unpacked; a bug report has some 20 MB
_ADVICE = (
    "There is no nvidia-bug-report log. To create one, run `sudo nvidia-bug-report.sh` on the node, put the\n"
    "nvidia-bug-report.log.gz it writes into the run's folder beside the node's raw output, and pack again."
)


@dataclass(frozen=True)
class Bundle:
    """`name`: of the archive's one top folder; `files`: path below it → content; `removed`: kind → in how
    many places something was removed; `notes`: what is missing, and why."""

    name: str
    files: Mapping[str, bytes]
    removed: Mapping[str, int]
    notes: tuple[str, ...]


def find_node(fleet: FleetHealth, name: str) -> NodeHealth:
    """The node of that name. Raises RunFolderError when the run has none."""
    for node in fleet.nodes:
        if node.node == name:
            return node
    known = [node.node for node in fleet.nodes]
    some = f"it has {', '.join(known[:3])}{', …' if len(known) > 3 else ''}" if known else "it has no nodes"
    raise RunFolderError(
        f"the run {fleet.run_id} has no node {one_line(name, 100)}", did_you_mean(name, known, some)
    )


def make(
    folder: RunFolder,
    fleet: FleetHealth,
    node: NodeHealth,
    secrets: Iterable[str] = (),
    others: Iterable[str] = (),
) -> Bundle:
    """The files of the bundle. `secrets`: values known to be secret, besides those that are found; `others`:
    names of machines, besides those the runs know. Raises RunFolderError when the folder cannot be read."""
    seen = _seen(folder, node.node)
    raw, notes = _raw(folder, node.node)
    moments = bundle_timeline.timeline(folder, node)
    reports, more = _bug_reports(folder, node.node)
    remover = Remover(
        {*secrets, *secrets_of(seen)}, {*others, *_machines(folder, fleet)} - {node.node}, node.node
    )
    remover.learn([node.node, seen, raw, reports, [asdict(moment) for moment in moments], asdict(node)])
    rows = bundle_peers.rows(fleet, node)
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
    notes = (*notes, *more, *([] if reports else [_ADVICE]))
    summary = bundle_text.readme(fleet, node, seen, list(raw.values()))
    summary += bundle_text.findings(node, rows) + bundle_text.contents(packed, notes)
    packed["README.txt"] = (summary + bundle_text.removals(remover.removed)).encode("utf-8", "replace")
    packed = dict(sorted(packed.items()))
    sums = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in packed.items())
    packed["MANIFEST.sha256"] = "".join(sums).encode()
    top = f"gpuprov-{file_name(node.node)}-{file_name(folder.path.absolute().name)}"
    return Bundle(top, packed, {kind: n for kind, n in sorted(remover.removed.items()) if n}, notes)


def write(bundle: Bundle, target: Path) -> Path:
    """The archive below `target`, whole or not at all, readable by its owner only.

    Raises RunFolderError when it cannot be written."""
    path = target / f"{bundle.name}.tar.gz"
    try:
        target.mkdir(parents=True, exist_ok=True)
        return atomic_file.write(path, _gzip(_tar(bundle)))
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}", "give a writable folder with --output"
        ) from error


def _tar(bundle: Bundle) -> bytes:
    """Nothing in it tells who made it, or when."""
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
    """The run's last look at the node: its entry of facts.jsonl."""
    found: dict[str, Any] = {}
    for record in folder.read("facts"):
        if record.get("node") == node:
            found = record
    return found


def _kept(folder: RunFolder, node: str) -> Iterator[Path]:
    """The plain files of the node's raw folder, by name."""
    home = folder.path / "raw" / file_name(node)
    with contextlib.suppress(OSError):
        for path in sorted(home.iterdir()):
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def _raw(folder: RunFolder, node: str) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Check → what came back, and a note for each file that cannot be read."""
    found, notes = {}, []
    for path in _kept(folder, node):
        if path.suffix == ".json":
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
                if not isinstance(document, dict):
                    raise ValueError("not an object")
                found[file_name(path.stem)] = document
            except (OSError, ValueError, RecursionError) as error:
                notes.append(f"The raw output {clean(path.name)} could not be read: {one_line(str(error))}")
    return found, tuple(notes)


def _bug_reports(folder: RunFolder, node: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Name in the bundle → the text of each nvidia-bug-report log that somebody put beside the raw output."""
    found, notes = {}, []
    for path in _kept(folder, node):
        if not path.name.startswith(BUG_REPORT) or ".log" not in path.name:
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
        found[name] = content.decode("utf-8", "surrogateescape")
    return found, tuple(notes)


def _machines(folder: RunFolder, fleet: FleetHealth) -> set[str]:
    """The names of all machines the runs beside this one know, and of the one that made them."""
    meta = folder.meta()
    arguments = meta.get("arguments")
    asked = arguments.get("nodes") if isinstance(arguments, dict) else ()
    names = {node.node for node in fleet.nodes} | {str(meta.get("controller") or "")}
    names |= {str(name) for name in asked or ()} | {str(row.get("node")) for row in folder.read("facts")}
    for place in ("validated", "offenders"):
        for path in (folder.path.absolute().parent / place).glob("[!.]*.json*"):
            names.add(urllib.parse.unquote(path.name.rpartition(".")[0]))
    return {name for name in names if name}


def _cleaned(remover: Remover, node: NodeHealth) -> NodeHealth:
    """The node without secrets in what it, or the checks, said. Words of ours (verdicts, actions) stay."""

    def text(value: Any) -> Any:
        return remover.clean(value)

    checks = []
    for check in node.checks:
        findings = tuple(
            replace(
                one, device=text(one.device), message=text(one.message), metric=text(one.metric),
                value=text(one.value), unit=text(one.unit), limit=text(one.limit), source=text(one.source),
                evidence=tuple(map(text, one.evidence)),
            )
            for one in check.findings
        )  # fmt: skip
        measured = tuple(
            replace(m, metric=text(m.metric), value=text(m.value), unit=text(m.unit), device=text(m.device))
            for m in check.measurements
        )
        checks.append(replace(check, findings=findings, measurements=measured))
    gpus = tuple(
        replace(
            gpu, name=text(gpu.name), serial=text(gpu.serial), uuid=text(gpu.uuid),
            pci_address=text(gpu.pci_address),
        )
        for gpu in node.gpus
    )  # fmt: skip
    facts = text(dict(node.facts))
    return replace(
        node, node=text(node.node), checks=tuple(checks), gpus=gpus, facts=facts, error=text(node.error)
    )
