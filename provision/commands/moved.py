"""What earlier command lines are called now: each is answered with one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Verb -> what it took -> the command that does it now.
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


def answer(words: Sequence[str]) -> str:
    """What to tell somebody whose command line is refused, where it has an earlier form; otherwise \"\"."""
    verb, *rest = words or ("",)
    for word in rest:
        if new := _MOVED.get(verb, {}).get(word.partition("=")[0]):
            return f"`gpuprov {verb} {word}` is now `gpuprov {new}`"
    if any(word == "--become" or (word[:2] == "-b" and word[2:3] in ("", *"kKulei")) for word in rest):
        return "there is no -b, --become: gpuprov becomes root on the nodes without it"
    first = rest[0] if rest else "-"  # without a word it began one as well
    if verb == "burnin" and (first.startswith("-") or "." in first or (first and Path(first).exists())):
        return "`gpuprov burnin` is now `gpuprov burnin start`"
    return ""
