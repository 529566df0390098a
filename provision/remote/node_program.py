"""Builder of the program texts that are sent to a node for one answer: from provision/node/observe/ the
observer, the reader of the health result, and the runner of a scheduler's commands. Those describe
themselves. What stays on a node is built by provision/checks/on_node/packed_program.py."""

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
# An f-string, so that a Python older than 3.6 says at once that it does not know the syntax. Two braces in a
# row would be a template for Ansible, which brings the program to nodes that we cannot log in to ourselves.
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
    """The families of facts there are: the first words of their names."""
    files = (paths.NODE / "observe").glob("*.py")
    return frozenset(file.stem for file in files) - {"__init__", *_BEFORE, *_AFTER}


def packed_for(facts: Collection[str]) -> str:
    """The program that knows these facts, as it is sent to a node, without the call of its `main`.

    To compile it costs a node more than to run it. So a Python of this one's version gets it compiled, any
    other as text: both are in what is sent, for nobody knows before which one a node has. Together they are
    half as long again as the bare text."""
    return _packed(_families_in(facts))


def health_result_program(request: Mapping[str, Any]) -> str:
    """The program that reads a node's newest health result, packed as one that observes, with its call.

    `request`: as `main` of node/health_result.py takes it, plain values."""
    return f"{_pack(about_scheduler('health_result'))}\n\nmain({dict(request)!a})\n"


def scheduler_command_program(request: Mapping[str, Any]) -> str:
    """The program that runs commands of a scheduler, packed as one that observes, with its call.

    `request`: as `main` of node/scheduler_command.py takes it, plain values. Reasons in it are free text, so
    no brace of theirs may reach Ansible."""
    values = ", ".join(f"{name}={value!a}" for name, value in request.items())
    called = values.replace("{", "\\x7b")
    return f"{_pack(about_scheduler('scheduler_command'))}\n\nmain(dict({called}))\n"


def about_scheduler(name: str) -> str:
    """The text of one of these programs, with the way to run a scheduler's."""
    files = [paths.NODE / "scheduler_programs.py", paths.NODE / f"{name}.py"]
    return "\n\n".join(_OURS.sub("", file.read_text(encoding="utf-8")) for file in files)


def text_for(facts: Collection[str]) -> str:
    """The program that knows these facts, without the call of its `main`. Only what is needed is in it."""
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
    """The other families a family's file is built on."""
    named = frozenset(found["file"] for found in _OURS.finditer(_source(name))) & families()
    return named.union(*map(_families_of, named))


def _source(name: str) -> str:
    return (paths.NODE / "observe" / f"{name}.py").read_text(encoding="utf-8")
