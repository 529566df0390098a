"""What a run found of a node, as labels and a condition of its object (pure)."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any

from provision.remote.schedulers.kubernetes.objects import DOMAIN, Object, conditions, part, text
from provision.text import one_line

LABELS = {name: f"{DOMAIN}/{name}" for name in ("verdict", "sku", "stack", "validated-at")}
CONDITION = "GpuHealthy"

_MESSAGE = 1000  # characters of a condition's message
_STATUS = {"pass": "True", "warn": "True", "fail": "False"}
_REASONS = {"pass": "Validated", "warn": "ValidatedWithWarnings", "fail": "CheckFailed"}


@dataclass(frozen=True)
class Result:
    """What is published of a node: its verdict (pass, warn, fail, skip, error), the SKU and stack it was
    measured as, when that ended (ISO 8601), and one line on what was found."""

    verdict: str
    sku: str
    stack: str
    validated_at: str
    message: str


def label_value(value: str) -> str | None:
    """`value` as a label may hold it: at most 63 characters, letters, digits, `-`, `_` and `.`, a letter or
    digit at both ends; None, which removes the label, where nothing is left.

    >>> label_value("./stacks/our own.yml")
    'stacks_our_own.yml'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", value).strip("._-")[:63].rstrip("._-") or None


def label_time(moment: str) -> str | None:
    """A moment as a label may hold it, so that texts sort as times; None for what is no moment.

    >>> label_time("2026-05-04T10:00:00.250Z")
    '20260504T100000Z'
    """
    try:
        when = datetime.datetime.fromisoformat(moment)
    except ValueError:
        return None
    return when.astimezone(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")


def labelled(node: Object, result: Result) -> dict[str, Any] | None:
    """The patch of labels; None where they say so already."""
    wanted = {
        LABELS["verdict"]: label_value(result.verdict),
        LABELS["sku"]: label_value(result.sku),
        LABELS["stack"]: label_value(result.stack),
        LABELS["validated-at"]: label_time(result.validated_at),
    }
    have = part(node, "metadata", "labels")
    changed = {key: value for key, value in wanted.items() if have.get(key) != value}
    return {"metadata": {"labels": changed}} if changed else None


def is_newer(node: Object, result: Result) -> bool:
    """Whether what the node shows already was measured after this."""
    shown = text(node, "metadata", "labels", LABELS["validated-at"])
    return re.fullmatch(r"\d{8}T\d{6}Z", shown) is not None and shown > (
        label_time(result.validated_at) or ""
    )


def conditioned(node: Object, result: Result, moment: str) -> dict[str, Any]:
    """The patch of the node's condition; the time of its last change stays where its status does."""
    status = _STATUS.get(result.verdict, "Unknown")
    before = next((one for one in conditions(node) if one.get("type") == CONDITION), {})
    changed = text(before, "lastTransitionTime") if before.get("status") == status else ""
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": _REASONS.get(result.verdict, "NotMeasured"),
        "message": one_line(result.message, _MESSAGE),
        "lastHeartbeatTime": moment,
        "lastTransitionTime": changed or moment,
    }
    return {"status": {"conditions": [condition]}}
