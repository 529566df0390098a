"""Lease of a node: which watch may act on it, stored with the node in its scheduler (pure).

It is a single text, `[gpuprov watch: fleet=… holder=…]`, which people can read and which can follow other
text, so that a site's own comment on a node stays.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

from provision.text import one_line

_TEXT = re.compile(r" ?\[gpuprov watch: ([^\[\]]{0,4000})\]")
_ID = re.compile("[0-9A-Za-z-]{1,64}")  # part of file names
_PLAIN = "/:.,_-+@"  # characters that are not quoted in values


@dataclass(frozen=True)
class Lease:
    """The lease of a node, which names one watch.
    `fleet`: a random id that is handed on with the lease; `holder`: the id of a watch's folder, "" if
    unreadable; `count`: how often the lease was taken; `at`: machine and folder of the watch, for people;
    `placed`: the node's last replacement, `INCIDENT NODE SPARE`, or `spare` if it was repaired since."""

    fleet: str
    holder: str
    count: int = 1
    at: str = ""
    placed: str = ""


def read(text: str) -> Lease | None:
    """Parse the lease in a text, or return None. An unreadable lease belongs to an unknown watch.

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
    """Return the text with its lease replaced, or removed for None."""
    others = _TEXT.sub("", text).strip()
    if lease is None:
        return others
    values = " ".join(f"{name}={quote(str(value), safe=_PLAIN)}" for name, value in asdict(lease).items())
    return f"{others} [gpuprov watch: {values}]".strip()
