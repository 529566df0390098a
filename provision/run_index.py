"""Index of every node's verdicts in all runs: latest verdict, number of changes, devices with repeated
faults.

The index is a cache of the runs' verdicts.json (verdict_history.py) and never more: it is brought up to date
by the name, time and size of these files before each question, may be removed at any time, and is made anew
when it is damaged or of another version. Where it can be neither read nor written, the runs alone answer.
Several processes may ask at once.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision import health, offenders, verdict_history
from provision.errors import GpuprovError
from provision.judge import Verdict
from provision.store import runs_home

FILE = "index.sqlite"
_VERSION = 1  # of the tables
_PATIENCE = 30.0  # seconds to wait for another process's update
_TABLES = """
create table runs (id integer primary key, name text unique, stamp text, started text, inventory text);
create table verdicts (node text, run integer, verdict text, primary key (node, run)) without rowid;
create table bad (node text, device text, run integer, primary key (node, device, run)) without rowid;
create index verdicts_of_run on verdicts (run);
create index bad_of_run on bad (run);
"""


@dataclass(frozen=True)
class Run:
    """What one run said. `verdicts`: node → verdict; `bad`: (node, device), each by `offenders.identity`;
    `started`: ISO 8601 UTC."""

    name: str
    started: str
    inventory: str
    verdicts: Mapping[str, str]
    bad: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Past:
    """A node's verdict in one run."""

    run: str
    started: str
    verdict: str


@dataclass(frozen=True)
class Repeat:
    """A device that was bad in `times` of the last `runs` runs of its node."""

    node: str
    device: str
    times: int
    runs: int


def read(path: Path) -> Run | None:
    """One run folder's verdicts; None when it has none that can be understood."""
    with contextlib.suppress(GpuprovError, OSError, *verdict_history.DAMAGED):
        document = json.loads((path / verdict_history.FILE).read_text(encoding="utf-8"))
        report = document["report"]
        if document["format"] != verdict_history.FORMAT:
            return None
        verdicts = {str(node["node"]): Verdict(node["verdict"]).value for node in report["nodes"]}
        wrong = health.from_json({**report, "nodes": [node for node in report["nodes"] if node["checks"]]})
        bad = frozenset((node.node, device) for node in wrong.nodes for device in offenders.bad(node))
        return Run(path.name, str(report["started"]), str(report["inventory"]), verdicts, bad)
    return None


class Index:
    """The index of the runs in `home`, as they are now. Close it, or use it in a `with`."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or runs_home()
        self._base = self._opened()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._base.close()

    def _opened(self) -> sqlite3.Connection:
        for _ in range(2):
            try:
                return self._updated(str(self.home / FILE))
            except sqlite3.OperationalError:
                break  # nobody may write here, or another process takes too long
            except sqlite3.DatabaseError:
                with contextlib.suppress(OSError):
                    (self.home / FILE).unlink()  # a cache; whoever has it open keeps what was removed
        return self._updated(":memory:")

    def _updated(self, where: str) -> sqlite3.Connection:
        base = sqlite3.connect(where, timeout=_PATIENCE, isolation_level=None)
        try:
            if where != ":memory:":
                (self.home / FILE).chmod(0o600)
            base.execute("begin immediate")
            _prepare(base)
            self._update(base)
            base.execute("commit")
        except BaseException:
            base.close()
            raise
        return base

    def _update(self, base: sqlite3.Connection) -> None:
        known = dict(base.execute("select name, stamp from runs"))
        now = dict(_stamps(self.home))
        for name in known:
            if known[name] != now.get(name):
                _forget(base, name)
        for name, stamp in now.items():
            if known.get(name) != stamp:
                _add(base, name, stamp, read(self.home / name))

    def last(self, inventory: str | None = None) -> dict[str, Past]:
        """Node → its newest verdict."""
        rows = self._base.execute(
            "select node, max(name), started, verdict from verdicts join runs on run = id"
            " where ?1 is null or inventory = ?1 group by node",
            (inventory,),
        )
        return {node: Past(run, started, verdict) for node, run, started, verdict in rows}

    def of(self, node: str) -> list[Past]:
        """What each run said of a node, oldest first."""
        rows = self._base.execute(
            "select name, started, verdict from verdicts join runs on run = id where node = ? order by name",
            (node,),
        )
        return [Past(*row) for row in rows]

    def flips(self, inventory: str | None = None) -> dict[str, int]:
        """Node → how often its verdict was another one than the run before; nodes that never changed it are
        left out."""
        rows = self._base.execute(
            "select node, count(*) from (select node, verdict, lag(verdict) over"
            " (partition by node order by name) as before from verdicts join runs on run = id"
            " where ?1 is null or inventory = ?1) where verdict != before group by node",
            (inventory,),
        )
        return dict(rows)

    def repeats(self, inventory: str | None = None, rules: offenders.Rules | None = None) -> list[Repeat]:
        """The devices that were bad in as many of their node's last runs as ask for more than a look, most
        often first."""
        rules = rules or offenders.rules()
        rows = self._base.execute(
            "with recent as (select node, run,"
            " row_number() over (partition by node order by name desc) as age"
            " from verdicts join runs on run = id where ?1 is null or inventory = ?1),"
            " counted as (select node, count(*) as runs from recent where age <= ?2 group by node)"
            " select node, device, count(*) as times, counted.runs from bad join recent using (node, run)"
            " join counted using (node) where age <= ?2 group by node, device having times >= ?3"
            " order by times desc, node, device",
            (inventory, rules.runs, rules.investigate),
        )
        return [Repeat(*row) for row in rows]


def _prepare(base: sqlite3.Connection) -> None:
    """The tables, new when they are of another version."""
    if base.execute("pragma user_version").fetchone()[0] == _VERSION:
        return
    for kind, name in list(base.execute("select type, name from sqlite_master where type = 'table'")):
        base.execute(f'drop {kind} "{name}"')
    for statement in _TABLES.strip().split(";\n"):
        base.execute(statement)
    base.execute(f"pragma user_version = {_VERSION}")


def _stamps(home: Path) -> Iterator[tuple[str, str]]:
    """The runs that have verdicts, each with what tells one version of the file from another."""
    for path in sorted(home.glob(f"*Z-*/{verdict_history.FILE}")):
        with contextlib.suppress(OSError):
            found = path.stat()
            yield path.parent.name, f"{found.st_mtime_ns} {found.st_size} {found.st_ino}"


def _forget(base: sqlite3.Connection, name: str) -> None:
    for table in ("verdicts", "bad"):
        base.execute(f"delete from {table} where run in (select id from runs where name = ?)", (name,))  # noqa: S608
    base.execute("delete from runs where name = ?", (name,))


def _add(base: sqlite3.Connection, name: str, stamp: str, run: Run | None) -> None:
    """One that cannot be read is noted, too: it is not tried again until it changes."""
    head = (name, stamp, run.started if run else "", run.inventory if run else "")
    number = base.execute(
        "insert into runs (name, stamp, started, inventory) values (?, ?, ?, ?)", head
    ).lastrowid
    if run is not None:
        told = ((node, number, verdict) for node, verdict in run.verdicts.items())
        base.executemany("insert into verdicts values (?, ?, ?)", told)
        base.executemany("insert into bad values (?, ?, ?)", ((*one, number) for one in run.bad))


def runs(home: Path) -> Iterator[Run]:
    """All runs of `home` that have verdicts, oldest first, read without the index."""
    for name, _ in _stamps(home):
        if (found := read(home / name)) is not None:
            yield found
