"""Formatter of a task's changes from the `diff` of its result, as Ansible's --diff prints them (pure).

`{"before": "a\\n", "after": "b\\n", "before_header": "/etc/x", "after_header": "/etc/x"}`, or a list of such;
`before` and `after` may be mappings (modes and owners changed by `file`). `{"prepared": "…"}` is printed as
is (apt). Instead of contents: `dst_binary`, `src_binary`, `dst_larger`, `src_larger`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from provision.secrets_mask import HIDDEN, masked

_LEFT_OUT = {
    "dst_binary": "the file that is there is binary",
    "src_binary": "the new file is binary",
    "dst_larger": "the file that is there is too large",
    "src_larger": "the new file is too large",
}
_SHORTEST = 8  # minimum length of a line of a multi-line secret (a key in a file) to be masked alone


def text(result: Mapping[str, Any], secrets: Collection[str] = ()) -> str:
    """Return the diff, or "". Secrets are masked before lines get their signs, then again line by line."""
    diff = result.get("diff")
    parts = [part for part in (diff if isinstance(diff, list) else [diff]) if isinstance(part, Mapping)]
    file = str(result.get("dest") or result.get("path") or "")
    lines = [line for part in parts for line in _lines(masked(part, secrets), file)]
    of_secrets = {line for secret in secrets for line in secret.splitlines() if len(line) >= _SHORTEST}
    return str(masked("".join(lines), sorted(of_secrets, key=len, reverse=True)))


def _lines(part: Mapping[str, Any], file: str) -> Iterator[str]:
    yield from (f"{why}: no difference shown\n" for name, why in _LEFT_OUT.items() if name in part)
    if "before" in part and "after" in part:
        after = _whole(part["after"])
        before = _as_hidden(_whole(part["before"]), after)
        # Ansible names the rendered file, which is temporary and different on each node.
        rendered = PurePath(str(part.get("after_header") or "")).name.removesuffix(".j2")
        name = part.get("before_header") or file or rendered
        named = f": {name}" if name else ""
        if before == after and part["before"] != part["after"]:
            yield f"after{named}: only masked values differ\n"
        yield from difflib.unified_diff(before, after, f"before{named}", f"after{named}")
    if "prepared" in part:
        yield f"{part['prepared']}\n"


def _whole(side: Any) -> list[str]:
    if side is None:
        return []
    written = side if isinstance(side, str) else json.dumps(side, indent=4, sort_keys=True) + "\n"
    lines = written.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n\\ No newline at end of file\n"
    return lines


def _as_hidden(before: list[str], after: list[str]) -> list[str]:
    """Mask old secrets, which no inventory contains any longer.
    A line that differs from a line with a masked value only by that value is masked like it."""
    hidden = {line.partition("\n")[0] for line in after if HIDDEN in line}
    forms = [(re.compile(".+".join(map(re.escape, line.split(HIDDEN)))), line) for line in hidden]

    def shown(line: str) -> str:
        text, *end = line.partition("\n")
        return "".join([next((like for form, like in forms if form.fullmatch(text)), text), *end])

    return [shown(line) for line in before]
