"""Wrapper around `ansible-inventory`, which reads every inventory format; its warnings become errors.

It exits with 0 and an empty answer if it understood nothing, and with a partial one if it understood half.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from provision import yamlfile
from provision.desired.inventory.ansible import ansible_settings
from provision.errors import InventoryError, UsageError
from provision.fleet import sources

TIMEOUT = 600.0  # seconds; 10,000 hosts in YAML take about 45

_UNPARSED = re.compile(r"Unable to parse (?P<source>.+?) as an inventory source")
_PLAYS = re.compile(r"^(?:- |  )(?:hosts|(?:ansible\.builtin\.)?import_playbook)\s*:", re.MULTILINE)
_PLACE = re.compile(r"^Origin: (?P<place>/[^\n]+?:\d+(?::\d+)?)$", re.MULTILINE)
_TWICE = re.compile(
    r"duplicate (?:mapping|dict) key '?(?P<key>[^\n']+)'?[^\n]*(?:\nOrigin: (?P<place>/[^\n]+?:\d+):\d+)?"
)
_CAUSE = re.compile(r"Failed to parse inventory with '(?P<plugin>\w+)' plugin: (?P<cause>[^\n]+)")


def read(source: Path, vault_password_files: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the parsed JSON of `ansible-inventory --list` for `source`. Raises InventoryError."""
    command = [_program(), "--list"]
    for each in sources(source):
        _check_readable(each)
        _check_yaml(each)
        command += ["-i", str(each)]
    for file in vault_password_files:
        command += ["--vault-password-file", str(file)]
    try:
        done = subprocess.run(
            command,
            env=ansible_settings.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InventoryError(
            f"{source}: ansible-inventory did not answer within {TIMEOUT:.0f} s",
            "does an inventory script hang?",
        ) from None
    except OSError as trouble:
        raise InventoryError(
            f"ansible-inventory cannot be started: {trouble}", "install ansible-core"
        ) from None
    if twice := _TWICE.search(done.stderr):
        raise InventoryError(
            f"{twice['place'] or source}: {twice['key']} is there twice",
            "keep one: Ansible heeds the last alone",
        )
    if done.returncode != 0 or _UNPARSED.search(done.stderr):
        _check_yaml_of_folders(source)
        raise _refused(source, done.stderr)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise InventoryError(
            f"{source}: ansible-inventory did not print JSON", f"run it: {' '.join(command)}"
        ) from None
    if not isinstance(answer, dict):
        raise InventoryError(
            f"{source}: ansible-inventory printed no mapping", f"run it: {' '.join(command)}"
        )
    return answer


def _program() -> str:
    """Return ansible-inventory next to our interpreter (activated or not), else the one on the PATH."""
    beside = Path(sys.executable).parent / "ansible-inventory"
    if beside.is_file():
        return str(beside)
    program = shutil.which("ansible-inventory")
    if program is None:
        raise InventoryError("ansible-inventory was not found", "pip install ansible-core")
    return program


def _check_readable(source: Path) -> None:
    """Refuse files that Ansible would try as five formats, or would read with question marks."""
    for file in files(source) if source.is_file() else ():
        if not os.access(file, os.R_OK):
            raise InventoryError(f"{file}: cannot be read: Permission denied", "check its permissions")
    if not source.is_file() or os.access(source, os.X_OK):
        return
    content = source.read_bytes()
    if content.startswith(b"#!"):
        raise InventoryError(
            f"{source}: an inventory script that cannot be executed", f"chmod +x {shlex.quote(str(source))}"
        )
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            if line.lstrip()[:1] not in (b"#", b";"):  # Ansible accepts other encodings in comments, too
                raise InventoryError(f"{source}:{number}: not UTF-8 text", "save it as UTF-8") from None


def _check_yaml(source: Path) -> None:
    """Check the syntax of a YAML file, for which Ansible would report the failures of five formats."""
    if source.is_file() and source.suffix in (".yml", ".yaml") and not os.access(source, os.X_OK):
        text = yamlfile.read_text(source, InventoryError)
        if not text.startswith("$ANSIBLE_VAULT"):
            yamlfile.check_syntax(text, str(source), InventoryError)
            _refuse_playbook(text, source)


def refuse_playbook(file: Path) -> None:
    """Raise UsageError if this file is a playbook, which ansible-playbook takes after an inventory."""
    if file.is_file() and file.suffix in (".yml", ".yaml"):
        _refuse_playbook(yamlfile.read_text(file, InventoryError), file)


def _refuse_playbook(text: str, source: Path) -> None:
    written = (line for line in text.splitlines() if line.strip() and not line.startswith(("#", "---")))
    if next(written, "").startswith("- ") and _PLAYS.search(text):  # an inventory is never a list
        raise UsageError(
            f"{source} is a playbook, not an inventory: gpuprov runs its own roles",
            f"gpuprov up -i INVENTORY; or ansible-playbook -i INVENTORY {source}: docs/ansible.md",
        )


def _check_yaml_of_folders(source: Path) -> None:
    """Check files in group_vars and host_vars, because Ansible does not name the one it could not read."""
    for file in files(source):
        if file.suffix in (".yml", ".yaml"):
            _check_yaml(file)


def files(source: Path) -> Iterator[Path]:
    """Yield the files of an inventory (its own, group_vars and host_vars), as far as they are files."""
    for each in sources(source):
        if each.is_file():
            yield each
        folders = [each] if each.is_dir() else [each.parent / "group_vars", each.parent / "host_vars"]
        for folder in folders:
            if folder.is_dir():
                yield from sorted(path for path in folder.rglob("*") if path.is_file())


def place_of(pattern: str, source: Path) -> str:
    """Return `file:line` of the first line in the inventory's files that begins with the pattern, or ''."""
    begins = re.compile(pattern)
    for file in files(source):
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for number, line in enumerate(lines, start=1):
            if begins.match(line):
                return f"{file}:{number}"
    return ""


def _refused(source: Path, stderr: str) -> InventoryError:
    text = re.sub(r"[ \t]+", " ", stderr).strip()
    if "Decryption failed" in text or "no vault secrets" in text.lower() or "vault password" in text.lower():
        return InventoryError(
            f"{_vaulted(source)}: holds vaulted values that could not be decrypted",
            "give --vault-password-file FILE",
        )
    unparsed = _UNPARSED.search(text)
    failed = Path(unparsed["source"]) if unparsed else source
    for each in sources(source):
        if os.path.abspath(each) == str(failed):  # noqa: PTH100 - as Ansible does
            failed = each
    place = next((match["place"] for match in _PLACE.finditer(text)), str(failed))
    causes = {match["plugin"]: match["cause"] for match in _CAUSE.finditer(text)}
    errors = re.findall(r"^(?:\[?ERROR\]?|ERROR!)[: ]+(.+)$", text, re.MULTILINE)
    cause = next(iter(errors), "") or _likeliest(failed, causes) or _last_line(text)
    cause = cause.removeprefix("Failed to parse inventory: ")
    for pattern, line, what, fix in _EXPLAINED:
        if match := re.search(pattern, cause):
            said = re.search(r"Standard error from inventory script:\n(.*)", text)
            names = {name: (value or "").strip() for name, value in match.groupdict().items()}
            names |= {"file": str(failed), "said": f": {said[1].strip()}" if said and said[1].strip() else ""}
            number = _line_of(failed, line.format(**{key: re.escape(value) for key, value in names.items()}))
            return InventoryError(f"{failed}{number}: {what.format(**names)}", fix.format(**names))
    cause = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", cause)
    return InventoryError(
        f"{place}: not an inventory Ansible understands: {cause}", "gpuprov init writes one to compare with"
    )


_A_RANGE = "a range"  # stands for the first line with an invalid range
_RANGES = "as gpu-[01:40]: the lower end first, both ends numbers of the same length, or both a letter"
# Ansible's message, the beginning of the line concerned (empty: none), our message and the remedy.
_EXPLAINED = (
    (
        r"Section \[(?P<section>.+?)\] includes undefined group '(?P<group>.+?)'",
        r"\s*{group}\s*(?:#.*)?$",
        "[{section}] names the group {group}, which is nowhere declared",
        "write a section [{group}], or take the name out",
    ),
    (
        r"Expected key=value host variable assignment, got: (?P<word>.+)",
        r"(?!\s*[#;\[]).*\s{word}(?:\s|$)",
        "{word!r} behind a host is no key=value",
        "one host on each line; a value with a space in it in quotes",
    ),
    (
        r"Error parsing host definition (?:'(?P<a>.*)'|\"(?P<b>.*)\"): No closing quotation",
        r"\s*{a}{b}",
        "a quote is not closed",
        "close it",
    ),
    (r"host range|invalid literal for int|host pattern.*range", _A_RANGE, "not a range of hosts", _RANGES),
    (
        r"Invalid \"(?P<key>\w+)\" entry for \"(?P<group>.+?)\" group, requires a dictionary",
        r"\s*{key}\s*:",
        "`{key}` of the group {group} must be a mapping",
        "a colon behind each name, and no dash before it: `gpu-01:`",
    ),
    (
        r"[Ii]nventory script .*?(?:exit code|status) (?P<code>-?\d+)",
        "",
        "the inventory script ended with status {code}{said}",
        "run it to see why: {file} --list",
    ),
    (
        r"Unable to get JSON decoder for inventory script result: (?P<why>.+)",
        "",
        "the inventory script did not print JSON: {why}",
        "run it to see what it prints: {file} --list",
    ),
    (
        r"specifies unknown plugin '(?P<plugin>.+?)'",
        r"\s*plugin\s*:",
        "the inventory plugin {plugin} is not installed",
        "install its collection with ansible-galaxy, or correct the name",
    ),
)


def _line_of(file: Path, pattern: str) -> str:
    """Return `:7` for the first line that begins with the pattern; empty without a match."""
    if not pattern or not file.is_file():
        return ""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    fits = _has_bad_range if pattern == _A_RANGE else re.compile(pattern).match
    return next((f":{n}" for n, line in enumerate(lines, start=1) if fits(line)), "")


def _has_bad_range(line: str) -> bool:
    for bounds in re.findall(r"\[([^\]\s]*:[^\]\s]*)\]", line.partition("#")[0]):
        first, last, *_step = bounds.split(":")
        numbers = first.isdecimal() and last.isdecimal() and int(first) <= int(last)
        numbers = numbers and (first[0] != "0" or first == "0" or len(first) == len(last))
        letters = len(first) == len(last) == 1 and (first + last).isalpha() and first <= last
        if last not in ("children", "vars", "hosts") and not numbers and not letters:
            return True
    return False


def _vaulted(source: Path) -> Path:
    """Return the file that is vaulted as a whole or contains a vaulted value, or else `source`."""
    for file in files(source):
        with contextlib.suppress(OSError):
            if b"$ANSIBLE_VAULT" in file.read_bytes():
                return file
    return source


def _likeliest(source: Path, causes: dict[str, str]) -> str:
    """Return the error of the format that was meant, out of the errors of all formats."""
    if "unknown plugin" in causes.get("auto", ""):
        return causes["auto"]
    order = (
        ("yaml", "auto", "ini")
        if source.suffix in (".yml", ".yaml", ".json")
        else ("script", "ini", "yaml", "toml")
    )
    return next((causes[plugin] for plugin in order if plugin in causes), next(iter(causes.values()), ""))


def _last_line(text: str) -> str:
    lines = text.splitlines()
    return lines[-1] if lines else "it printed nothing"
