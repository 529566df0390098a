"""Builder of the program texts that are sent to a node and run once.

These are the observer (provision/node/observe/), the reader of the health result, and the runner of scheduler
commands. Programs that stay on a node are built by provision/checks/on_node/packed_program.py."""

from __future__ import annotations

import binascii
import functools
import importlib.util
import marshal
import re
import sys
import zlib
from collections.abc import Collection, Mapping
from typing import Any

from provision import paths

_BEFORE = ("files", "probe", "vendors", "system")
_AFTER = ("answer",)
_OURS = re.compile(
    r"^from provision\.node\.(?:\w+\.)?(?P<file>\w+) import (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE
)
# An f-string, so that a Python older than 3.6 fails at once with a syntax error. Two braces in a row would
# be a template for Ansible, which carries the program to nodes without a direct SSH connection.
_UNPACK = """\
import binascii
import marshal
import sys
import zlib
from _frozen_importlib_external import MAGIC_NUMBER

if f"{sys.implementation.cache_tag} {MAGIC_NUMBER}" == %a:
    exec(marshal.loads(zlib.decompress(binascii.a2b_base64(%a))))
else:
    exec(zlib.decompress(binascii.a2b_base64(%a)))
"""


def families() -> frozenset[str]:
    """Return the existing families of facts, which are the first words of their names."""
    files = (paths.NODE / "observe").glob("*.py")
    return frozenset(file.stem for file in files) - {"__init__", *_BEFORE, *_AFTER}


def packed_for(facts: Collection[str]) -> str:
    """Return the program that reads these facts, packed for sending, without the call of its `main`.

    Compiling costs a node more than running, so the program contains both compiled code, for this Python's
    version, and its text, for any other version. Together they are half as large again as the text alone."""
    return _packed(_families_in(facts))


def health_result_program(request: Mapping[str, Any]) -> str:
    """Return the packed program that reads a node's newest health result, with its call.

    `request`: plain values, as `main` of node/health_result.py takes them."""
    return f"{_pack(about_scheduler('health_result'))}\n\nmain({dict(request)!a})\n"


def scheduler_command_program(request: Mapping[str, Any]) -> str:
    """Return the packed program that runs a scheduler's commands, with its call.

    `request`: plain values, as `main` of node/scheduler_command.py takes them. Its reasons are free text, so
    their braces are escaped for Ansible."""
    values = ", ".join(f"{name}={value!a}" for name, value in request.items())
    called = values.replace("{", "\\x7b")
    return f"{_pack(about_scheduler('scheduler_command'))}\n\nmain(dict({called}))\n"


def about_scheduler(name: str) -> str:
    """Return the text of one of these programs, including the functions that run a scheduler's commands."""
    files = [paths.NODE / "scheduler_programs.py", paths.NODE / f"{name}.py"]
    return "\n\n".join(_OURS.sub("", file.read_text(encoding="utf-8")) for file in files)


def text_for(facts: Collection[str]) -> str:
    """Return the program that reads these facts, with only the code it needs, without a call of `main`."""
    return _text(_families_in(facts))


def _families_in(facts: Collection[str]) -> frozenset[str]:
    return frozenset(fact.partition(".")[0] for fact in facts) & families()


@functools.lru_cache(maxsize=64)
def _packed(wanted: frozenset[str]) -> str:
    return _pack(_text(wanted))


def _pack(text: str) -> str:
    code = compile(text, "<gpuprov>", "exec", dont_inherit=True, optimize=2)
    version = f"{sys.implementation.cache_tag} {importlib.util.MAGIC_NUMBER!r}"
    forms = (marshal.dumps(code), text.encode("ascii"))
    packed = [binascii.b2a_base64(zlib.compress(form), newline=False).decode("ascii") for form in forms]
    return _UNPACK % (version, *packed)


@functools.lru_cache(maxsize=64)
def _text(wanted: frozenset[str]) -> str:
    needed = wanted.union(*map(_families_of, wanted))
    parts = [_OURS.sub("", _source(name)) for name in (*_BEFORE, *sorted(needed), *_AFTER)]
    return "\n\n".join(parts)


def _families_of(name: str) -> frozenset[str]:
    """Return the other families that a family's file imports, directly or indirectly."""
    named = frozenset(match["file"] for match in _OURS.finditer(_source(name))) & families()
    return named.union(*map(_families_of, named))


def _source(name: str) -> str:
    return (paths.NODE / "observe" / f"{name}.py").read_text(encoding="utf-8")
