"""Runner for a page's commands, in order, in a fresh folder with a private home, as for a reader.

A page's node names stand for a site's (`Site.nodes`). The site's addresses and mirrors are in `group_vars`
and `host_vars` of the folder, so that the inventory is the page's own. `$EDITOR` writes the site's additions.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support import pages
from tests.support.pages import ROOT, Command, Needs

PROGRAMS = Path(sys.executable).parent
RUN_NAME = re.compile(r"\b\d{8}T\d{6}\.\d{3}Z-([a-z]+)\b")
# The reader's $EDITOR: writes the site's additions, and the setting in a comment behind the command.
EDIT = """\
import sys, yaml
from pathlib import Path
from tests.support.page_runs import merged
file = Path(sys.argv[1])
document = yaml.safe_load(file.read_text())
for added in yaml.safe_load_all(Path(__file__).with_name("edits.yml").read_text()):
    document = merged(document, added)
file.write_text(yaml.safe_dump(document, sort_keys=False))
"""


@dataclass(frozen=True)
class Site:
    """The nodes behind a page's names, and the settings that hold for the machines on any page."""

    nodes: Mapping[str, str] = field(default_factory=dict)  # a page's name → the name of a node
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # node → its variables
    variables: Mapping[str, Any] = field(default_factory=dict)  # for all nodes: keys, mirrors
    fleet: Mapping[str, Any] = field(default_factory=dict)  # the inventory for pages that show none
    edits: Mapping[str, Any] = field(default_factory=dict)  # additions of `$EDITOR` to an inventory


@dataclass(frozen=True)
class Ran:
    """A completed command."""

    command: Command
    code: int
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.command}\nended with {self.code} after {self.seconds:.0f} s:\n{self.out}{self.err}"


class Folder:
    """The folder of a page's reader. `runs`: the stored runs; `home`: everything else."""

    def __init__(self, folder: Path, site: Site, *, runs: Path | None = None) -> None:
        self._site = site
        self._home = folder / "home"
        self._home.mkdir(mode=0o700, parents=True)
        self._folder = folder
        self._begun = 0
        self._shown: dict[str, Any] = {}  # an inventory shown on the page that no command has read yet
        self.runs = runs or self._home / "state" / "gpuprov" / "runs"
        self.place = self._begin()

    def _begin(self) -> Path:
        """Create a fresh folder with the site's addresses. Each fleet of `gpuprov init` gets its own."""
        self._begun += 1
        place = self._folder / f"fleet{self._begun}"
        place.mkdir(mode=0o700)
        for name, group in (("group_vars/all.yml", self._site.variables), *self._host_files()):
            if group:
                (place / name).parent.mkdir(exist_ok=True)
                (place / name).write_text(yaml.safe_dump(dict(group)))
        (place / "ansible.cfg").write_text("[defaults]\ninventory = inventory.yml\n")
        return place

    def _host_files(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(f"host_vars/{name}.yml", values) for name, values in self._site.hosts.items()]

    def run(self, command: Command, *, timeout: float = 1800, look: float = 12) -> Ran:
        """Run a command; interrupt an endless one after `look` seconds."""
        self._prepare(command)
        text = command.text if command.needs is Needs.LAB else self.named(command.text)
        began = time.monotonic()
        process = subprocess.Popen(
            # A background job ignores Ctrl-C, and its children inherit that.
            ["env", "--default-signal=INT", "bash", "-c", text],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            cwd=self.place, env=self._environment(), start_new_session=True,
        )  # fmt: skip
        try:
            if command.is_endless:
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=look)
                os.killpg(process.pid, signal.SIGINT)
                timeout = 120
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return Ran(command, process.returncode, out, err, time.monotonic() - began)

    def named(self, text: str) -> str:
        """Return the command with the site's node names, and with stored runs for the runs it names."""
        for shown, name in self._site.nodes.items():
            text = re.sub(rf"\b{re.escape(shown)}\b", name, text)
        for number, match in enumerate(list(RUN_NAME.finditer(text))):
            stored = sorted(path.name for path in self.runs.glob(f"*-{match[1]}"))
            text = text.replace(match[0], stored[-2 + number], 1)
        return text

    def _prepare(self, command: Command) -> None:
        options = command.options
        if command.text.startswith("$EDITOR "):
            named = yaml.safe_load(command.comment)  # `gpuprov_stack: r580-cuda13.0`
            said = {"all": {"vars": named}} if isinstance(named, dict) else {}
            edits = yaml.safe_dump_all([dict(self._site.edits), said])
            (self._folder / "edits.yml").write_text(edits)
            (self._folder / "edit.py").write_text(EDIT)
        elif options is None:
            if re.search(r"\bscripts/|\bdist/", command.text) and not (self.place / "scripts").exists():
                self._check_out()
        elif options.verb == "init":
            if (self.place / options.file).exists():
                self.place = self._begin()
            return
        if command.needs is Needs.NODES or command.text.startswith("$EDITOR "):
            self._write_inventory(getattr(options, "inventory", None) or "inventory.yml")

    def add(self, inventory: Mapping[str, Any]) -> None:
        """Write an inventory shown by the page, reduced to existing hosts, for the next command."""
        self._shown = mapped(inventory, [*self._site.hosts])

    def _write_inventory(self, name: str) -> None:
        file = self.place / name
        if file.exists():
            written = yaml.safe_load(file.read_text())
        else:
            written = merged({}, self._site.edits) if self._shown else dict(self._site.fleet)
        if wanted := merged(written, self._shown):
            if wanted != written or not file.exists():
                file.write_text(yaml.safe_dump(wanted, sort_keys=False))
            self._shown = {}

    def _check_out(self) -> None:
        """Copy the tracked and new files in their current state, and the programs of this Python."""
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(
            listed, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for name in filter(None, names.split("\0")):
            if not name.startswith(("tests/", "benchmarks/")) and (ROOT / name).is_file():
                (self.place / name).parent.mkdir(parents=True, exist_ok=True)
                (self.place / name).write_bytes((ROOT / name).read_bytes())
        (self.place / ".venv").symlink_to(PROGRAMS.parent)

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("GPUPROV_", "ANSIBLE_"))
        }
        own = {f"XDG_{name}_HOME": str(self._home / name.lower()) for name in ("STATE", "CACHE", "CONFIG")}
        return {
            **{**kept, **own, "HOME": str(self._home), "COLUMNS": "200", "NO_COLOR": "1"},
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "EDITOR": f"{sys.executable} {self._folder / 'edit.py'}",
            "GPUPROV_RUNS": str(self.runs),
        }


def merged(document: Any, more: Any) -> Any:
    """Merge a mapping with additions at any depth."""
    if not (isinstance(document, dict) and isinstance(more, Mapping)):
        return document if more is None else more
    return {**document, **{key: merged(document.get(key), value) for key, value in more.items()}}


def mapped(document: Any, nodes: Sequence[str]) -> Any:
    """Return a page's inventory, reduced to hosts that exist."""
    if not isinstance(document, dict):
        return document
    kept = {}
    for key, value in document.items():
        if key == "hosts" and isinstance(value, dict):
            kept[key] = {
                name: values
                for pattern, values in value.items()
                for name in expanded(pattern)
                if name in nodes
            }
        else:
            kept[key] = mapped(value, nodes)
    return kept


def expanded(pattern: str) -> list[str]:
    """Expand a pattern like `gpu-[01:64]` into names."""
    match = re.fullmatch(r"(.*)\[(\d+):(\d+)\](.*)", pattern)
    if match is None:
        return [pattern]
    head, first, last, tail = match.groups()
    return [f"{head}{number:0{len(first)}d}{tail}" for number in range(int(first), int(last) + 1)]


def expected(command: Command, times: int) -> int:
    """Return the exit code expected after `times` runs: 0, unless the data file lists another."""
    listed = pages.data()["ends"].get(command.page, {}).get(command.text)
    if listed is None:
        return 130 if command.is_endless else 0
    codes = listed["codes"]
    return int(codes[min(times, len(codes) - 1)])


def not_printed(ran: Ran, printed: str) -> list[str]:
    """Return the lines shown below a command that match no printed line in form."""
    forms = {pages.form(line) for line in printed.splitlines()}
    return [line for line in ran.command.output if pages.form(line) not in forms]
