"""Parser of OpenSSH client options in ssh_config files and arguments (ansible_ssh_common_args).

connection.py interprets the options. The first value of an option wins, as in ssh_config(5).
"""

from __future__ import annotations

import fnmatch
import functools
import os
import pwd
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision import paths

SSH_PORT = 22
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
USER_CONFIG = "~/.ssh/config"
ACCUMULATE = ("identityfile", "certificatefile")
_FLAGS = {"4": ("addressfamily", "inet"), "6": ("addressfamily", "inet6")}
_FLAGS_WITHOUT_EFFECT_HERE = set("aACfgKkNnqsTtvXxYy")
_FLAGS_WITH_VALUE = {"p": "port", "l": "user", "i": "identityfile", "J": "proxyjump", "F": "configfile"}
_MAX_INCLUDES = 16
OFF = ("no", "off", "false")  # values of StrictHostKeyChecking


class NotUnderstoodError(Exception):
    """Options that only ssh itself can handle, as named in the text."""


@dataclass(frozen=True)
class _Line:
    """One option and the Host and Match lines above it, all of which must match."""

    keyword: str
    value: str
    conditions: tuple[tuple[str, tuple[str, ...]], ...]


Options = dict[str, list[str]]


@functools.lru_cache(maxsize=1)
def login() -> tuple[str, str]:
    """Return this user's name and home from the user database, as ssh does.
    In a container HOME and USER often differ from it."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # ssh itself would not start
        home = str(paths.home())  # first, since a missing HOME is easier to correct than a missing name
        return paths.user(), home
    return entry.pw_name, entry.pw_dir


def expanded(path: str) -> Path:
    """Expand ~ in a path as ssh does, from the user database instead of HOME."""
    if path == "~" or path.startswith("~/"):
        return Path(login()[1] + path[1:])
    return Path(path).expanduser()  # ~user


def take(options: Options, keyword: str, value: str) -> None:
    """Store an option unless it is already set; identity files accumulate."""
    if keyword in ACCUMULATE:
        if value not in options.setdefault(keyword, []):
            options[keyword].append(value)
    else:
        options.setdefault(keyword, [value])


def from_arguments(text: str, options: Options) -> None:
    """Store the options of an ssh argument string (`-o A=b -J jump`) in `options`."""
    for keyword, value in _arguments(text):
        take(options, keyword, value)


@functools.lru_cache(maxsize=256)  # usually the same for every node
def _arguments(text: str) -> tuple[tuple[str, str], ...]:
    options: list[tuple[str, str]] = []
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise NotUnderstoodError(f"ssh arguments {text!r}: {error}") from None
    while words:
        word = words.pop(0)
        if not word.startswith("-") or len(word) < 2:
            raise NotUnderstoodError(f"ssh argument {word!r}")
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in _FLAGS:
                options.append(_FLAGS[letter])
            elif letter == "o" or letter in _FLAGS_WITH_VALUE:
                if not letters and not words:
                    raise NotUnderstoodError(f"ssh argument -{letter} without a value")
                value, letters = letters or words.pop(0), ""
                options.append(_pair(value) if letter == "o" else (_FLAGS_WITH_VALUE[letter], value))
            elif letter not in _FLAGS_WITHOUT_EFFECT_HERE:
                raise NotUnderstoodError(f"ssh argument -{letter}")
    return tuple(options)


def _pair(line: str) -> tuple[str, str]:
    """Parse `Keyword value`, `Keyword=value` or `Keyword = "value"` into (lower-case keyword, value)."""
    stripped = line.strip()
    end = next((i for i, c in enumerate(stripped) if c in " \t="), len(stripped))
    value = stripped[end:].strip()
    if value.startswith("="):
        value = value[1:].strip()
    if not value:
        raise NotUnderstoodError(f"ssh option {line.strip()!r}")
    if len(value) > 1 and value[0] == value[-1] == '"' and value.count('"') == 2:
        value = value[1:-1]
    return stripped[:end].lower(), value


def _lines(path: Path, conditions: tuple[tuple[str, tuple[str, ...]], ...], depth: int) -> Iterator[_Line]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise NotUnderstoodError(f"{path}: {error}") from None
    if depth > _MAX_INCLUDES:
        raise NotUnderstoodError(f"{path}: included too deeply")
    here = conditions
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        try:
            keyword, value = _pair(line)
            words = tuple(shlex.split(value)) if keyword in ("host", "match", "include") else ()
        except (NotUnderstoodError, ValueError) as error:
            raise NotUnderstoodError(f"{path} line {number}: {error}") from None
        if keyword in ("host", "match"):
            here = (*conditions, (keyword, words))
        elif keyword == "include":
            for included in _included(path, words):
                yield from _lines(included, here, depth + 1)
        else:
            yield _Line(keyword, value, here)


def _included(path: Path, patterns: Sequence[str]) -> Iterator[Path]:
    base = Path("/etc/ssh") if str(path).startswith("/etc/ssh") else expanded("~/.ssh")
    for pattern in patterns:
        full = expanded(pattern)
        full = full if full.is_absolute() else base / full
        yield from sorted(Path(full.anchor).glob(str(full.relative_to(full.anchor))))


class ConfigFiles:
    """The ssh_config files of one invocation, each read once: user's and system's, or the one of `-F`."""

    def __init__(self) -> None:
        self._read: dict[str, list[_Line] | NotUnderstoodError] = {}

    def add(self, options: Options, name: str) -> None:
        """Add the files' options for `name` to `options`. Raises NotUnderstoodError."""
        chosen = options.pop("configfile", None)
        files = chosen if chosen else [USER_CONFIG, SYSTEM_CONFIG]
        if files == ["none"]:
            return
        for final in (False, True):  # ssh reads its files twice; `Match final` holds the second time
            for line in [line for file in files for line in self._of(file)]:
                if all(_holds(kind, words, name, options, final) for kind, words in line.conditions):
                    take(options, line.keyword, line.value)

    def switches_off(self, file: str) -> bool:
        """Return whether this file, or one that it includes, switches host key checking off."""
        try:
            lines = self._of(file)
        except NotUnderstoodError:
            return False
        return any(line.keyword == "stricthostkeychecking" and line.value.lower() in OFF for line in lines)

    def _of(self, file: str) -> list[_Line]:
        if file not in self._read:
            try:
                self._read[file] = list(_lines(expanded(file), (), 0))
            except NotUnderstoodError as error:
                self._read[file] = error
        lines = self._read[file]
        if isinstance(lines, NotUnderstoodError):
            raise lines
        return lines


def _holds(kind: str, words: tuple[str, ...], name: str, options: Options, final: bool) -> bool:
    if kind == "host":
        return matches(words, name)
    left = list(words)
    while left:
        criterion = left.pop(0).lower()
        if criterion == "all":
            continue
        if criterion == "final":
            if not final:
                return False
            continue
        subjects = {
            "host": options.get("hostname", [name])[0].replace("%h", name),
            "originalhost": name,
            "user": options.get("user", [login()[0]])[0],
            "localuser": login()[0],
        }
        if criterion.lstrip("!") not in subjects or not left:
            raise NotUnderstoodError(f"`Match {' '.join(words)}` in an ssh_config file")
        hit = matches(left.pop(0).split(","), subjects[criterion.lstrip("!")])
        if hit == criterion.startswith("!"):
            return False
    return True


def matches(patterns: Iterable[str], name: str) -> bool:
    """Return whether `name` matches a pattern (* and ?) and no negated one (!), as in ssh_config(5)."""
    hit = False
    for pattern in patterns:
        # fnmatch would give [ ] a meaning that OpenSSH does not: [host]:port is literal.
        if fnmatch.fnmatchcase(name.lower(), pattern.lstrip("!").lower().replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            hit = True
    return hit
