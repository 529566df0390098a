"""Makes the one text that runs on a node: out of provision/node/observe/ the program that observes, out of
provision/node/burnin/ the one that burns in. Their own descriptions are there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection

from provision import paths

_BEFORE = ("files", "probe", "system")
_AFTER = ("answer",)
_OURS = re.compile(r"^from provision\.node\.\w+\.(?P<file>\w+) import (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE)
_ANSIBLE = re.compile(r"^from ansible\.module_utils\.basic import AnsibleModule\n", re.MULTILINE)
_CALL = '\n\nif __name__ == "__main__":\n'
_BURNIN = (
    *(
        "clocks",
        "order",
        "spool",
        "processes",
        "kernel_lines",
        "rows",
        "tool_output",
        "sources",
        "steps",
        "sampler",
    ),
    *("runner", "unit", "campaign", "entry"),
)


def families() -> frozenset[str]:
    """The families of facts there are: the first words of their names."""
    files = (paths.NODE / "observe").glob("*.py")
    return frozenset(file.stem for file in files) - {"__init__", *_BEFORE, *_AFTER}


def text_for(facts: Collection[str]) -> str:
    """The program that knows these facts, without the call of its `main`.

    Only what is needed is sent: to compile a program costs a node more than to run it."""
    return _text(frozenset(fact.partition(".")[0] for fact in facts) & families())


@functools.lru_cache(maxsize=64)
def _text(wanted: frozenset[str]) -> str:
    needed = wanted.union(*map(_families_of, wanted))
    parts = [_OURS.sub("", _source(name)) for name in (*_BEFORE, *sorted(needed), *_AFTER)]
    return "\n\n".join(parts)


def _families_of(name: str) -> frozenset[str]:
    """The other families a family's file is built on."""
    named = frozenset(found["file"] for found in _OURS.finditer(_source(name))) & families()
    return named.union(*map(_families_of, named))


@functools.lru_cache(maxsize=1)
def burnin_program() -> str:
    """The program that burns a node in, as a whole file: it calls itself.

    The way to run programs is that of the module gpuprov_run, whose call as a module is left out."""
    module = (paths.MODULES / "gpuprov_run.py").read_text(encoding="utf-8")
    parts = [_ANSIBLE.sub("", module).partition(_CALL)[0]]
    for name in _BURNIN:
        text = _OURS.sub("", (paths.NODE / "burnin" / f"{name}.py").read_text(encoding="utf-8"))
        parts.append(text if name == _BURNIN[-1] else text.partition(_CALL)[0])
    return "\n\n".join(parts)


def _source(name: str) -> str:
    return (paths.NODE / "observe" / f"{name}.py").read_text(encoding="utf-8")
