"""Comparison of versions that packages have and people write: epoch, distribution revision, order."""

from __future__ import annotations

import re
from itertools import zip_longest

_EPOCH = re.compile(r"^\d+:")
# Suffixes that distributions append to their own versions: 3.0~deb13u1, 1.2+ubuntu24.04.1, 580.1.el9
_DISTRIBUTION = re.compile(r"(?:[~+](?:deb|bpo|ubuntu)[\w.~]*|\.(?:el|fc)\d[\w.]*)$")
_BUILD = re.compile(r"\+cuda\d+\.\d+")


def without_epoch(version: str) -> str:
    """Strip the epoch: `1:4.5.3-1` → `4.5.3-1`."""
    return _EPOCH.sub("", version.strip())


def upstream(version: str) -> str:
    """Return the author's own version: `1:4.5.3-1` → `4.5.3`, `580.126.09-1~deb13u1` → `580.126.09`.

    >>> upstream("2.29.7-1+cuda12.9")
    '2.29.7'
    """
    text = without_epoch(version)
    if "-" in text:
        text = text.rpartition("-")[0]
    return _DISTRIBUTION.sub("", text)


def same(installed: str, wanted: str) -> bool:
    """Return whether an installed package version is the wanted one.

    `wanted` determines the precision: `2.29.7` matches any packaging of it, `2.29.7-1` that revision,
    `2.29.7+cuda12.9` that CUDA build, and `2.29.7-1+cuda12.9` both.
    """
    wanted, exact = without_epoch(wanted), without_epoch(installed)
    build = _BUILD.search(exact)
    plain = _BUILD.sub("", exact)
    spellings = {exact, upstream(exact), _DISTRIBUTION.sub("", exact)}
    if build:
        spellings |= {plain, _BUILD.sub("", upstream(exact)) + build.group()}
    return wanted in spellings


def numbers(version: str) -> tuple[int, ...] | None:
    """Return the leading dotted numbers: `580.126.09-1` → (580, 126, 9); None if there are none."""
    match = re.match(r"\d+(?:\.\d+)*", without_epoch(version))
    return tuple(int(part) for part in match.group().split(".")) if match else None


def at_least(installed: str, wanted: str) -> bool:
    """Return whether `installed` is `wanted` or newer, number by number (`12.10` is newer than `12.9`)."""
    have, want = numbers(installed), numbers(wanted)
    if have is None or want is None:
        return False
    pairs = list(zip_longest(have, want, fillvalue=0))
    return [one for one, _ in pairs] >= [other for _, other in pairs]
