"""Advice for command lines of earlier versions, in one line each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

# verb → earlier option → current command
_MOVED = {
    "report": {
        "--compare": "report compare A B",
        "--bundle": "report bundle NODE [RUN]",
        "--history": "report history [NODE]",
        "--publish": "report publish [RUN]",
        "--list": "runs list",
    },
    "watch": {
        "--state": "watch state [INVENTORY]",
        "--dry-run": "watch replay [INVENTORY] [--history FILE]",
        "--install-unit": "watch install [INVENTORY]",
    },
    "burnin": {
        "--plan": "burnin plan",
        "--list": "burnin profiles",
        "--resume": "burnin resume [RUN]",
    },
    "runs": {"--cancel": "runs cancel WHICH"},
    "validate": {"--list": "docs checks"},
    "lab": {"--list": "lab faults"},
    "plan": {"--markdown": "plan --format markdown"},
    "drift": {"--output": "drift --format NAME=FILE", "--junit": "drift --format junit=FILE"},
    "lock": {"-o": "lock --file FILE", "--output": "lock --file FILE"},
    "baseline": {"--output": "baseline learn --file FILE"},
}

# Options followed by a value, which may equal a verb.
_WITH_VALUE = ("-i", "--inventory", "-l", "--limit", "--nodes", "--runs", "--profile")


def answer(words: Sequence[str], verbs: Collection[str] = ()) -> str:
    """Return advice for a rejected command line in an earlier form, or "".
    `verbs`: the nested verbs of the command."""
    verb, *rest = words or ("",)
    for word in rest:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]  # -oFILE is -o FILE
        if new := _MOVED.get(verb, {}).get(option):
            typed = " ".join([verb, *(rest[:1] if rest[0] in verbs else ()), word])
            return f"`gpuprov {typed}` is now `gpuprov {new}`"
    for before, word in pairwise(rest):
        if word in verbs and rest[0].startswith("-") and before not in _WITH_VALUE:
            return f"the verb comes first: `gpuprov {verb} {word} {rest[0].partition('=')[0]} …`"
    if any(word == "--become" or (word[:2] == "-b" and word[2:3] in ("", *"kKulei")) for word in rest):
        return "there is no -b, --become: gpuprov becomes root on the nodes without it"
    first = rest[0] if rest else "-"  # `gpuprov burnin` alone started one as well
    if verb == "burnin" and (first.startswith("-") or "." in first or (first and Path(first).exists())):
        return "`gpuprov burnin` is now `gpuprov burnin start`"
    return ""
