"""The lease of a node: which watch may act on it, as its scheduler keeps it beside the node (pure).

It is one text, `[gpuprov watch: fleet=… holder=…]`, so that people can read it and it can stand behind other
words: a site's own comment on a node stays.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

from provision.text import one_line

_TEXT = re.compile(r" ?\[gpuprov watch: ([^\[\]]{0,4000})\]")
_ID = re.compile("[0-9A-Za-z-]{1,64}")  # part of the names of files
_PLAIN = "/:.,_-+@"  # characters of values that stand as they are


@dataclass(frozen=True)
class Lease:
    """`fleet`: a random id that is handed on with the lease; `holder`: the id of a watch's folder, "" where
    the text cannot be read; `count`: how often the lease was taken; `at`: machine and folder of the watch,
    for people; `placed`: the last replacement that the node had a part in, as `INCIDENT NODE SPARE`, or
    `spare` for a node that was repaired since."""

    fleet: str
    holder: str
    count: int = 1
    at: str = ""
    placed: str = ""


def read(text: str) -> Lease | None:
    """The lease in a text; None where there is none. One that cannot be read belongs to somebody unknown.

    >>> read("rack moved [gpuprov watch: fleet=f1 holder=h1 count=2 at=ctl-1:/var]").at
    'ctl-1:/var'
    """
    match = _TEXT.search(text)
    if match is None:
        return None
    words = (one.partition("=") for one in match[1].split(" "))
    values = {name: one_line(unquote(value)) for name, _, value in words}
    fleet, holder, count, at, placed = (
        values.get(one, "") for one in ("fleet", "holder", "count", "at", "placed")
    )
    if not (_ID.fullmatch(fleet) and _ID.fullmatch(holder) and re.fullmatch("[0-9]{1,9}", count)):
        return Lease("", "", 0, "a watch whose lease cannot be read")
    return Lease(fleet, holder, int(count), at, placed)


def put(text: str, lease: Lease | None) -> str:
    """A text with this lease instead of the one that it had; without any for None."""
    others = _TEXT.sub("", text).strip()
    if lease is None:
        return others
    values = " ".join(f"{name}={quote(str(value), safe=_PLAIN)}" for name, value in asdict(lease).items())
    return f"{others} [gpuprov watch: {values}]".strip()
