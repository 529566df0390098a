"""Labels and a condition that publish a node's validation result on its Node object (pure)."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any

from provision.remote.schedulers.kubernetes.objects import DOMAIN, Object, conditions, part, text
from provision.text import one_line

LABELS = {name: f"{DOMAIN}/{name}" for name in ("verdict", "sku", "stack", "validated-at")}
CONDITION = "GpuHealthy"

_MESSAGE = 1000  # maximum length of a condition's message, in characters
_STATUS = {"pass": "True", "warn": "True", "fail": "False"}
_REASONS = {"pass": "Validated", "warn": "ValidatedWithWarnings", "fail": "CheckFailed"}


@dataclass(frozen=True)
class Result:
    """A node's result: verdict (pass, warn, fail, skip, error), measured SKU and stack, end (ISO 8601),
    and a one-line message."""

    verdict: str
    sku: str
    stack: str
    validated_at: str
    message: str


def label_value(value: str) -> str | None:
    """Return `value` as a valid label, or None, which removes the label, if nothing is left.

    At most 63 letters, digits, `-`, `_` and `.`, alphanumeric at both ends.

    >>> label_value("./stacks/our own.yml")
    'stacks_our_own.yml'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", value).strip("._-")[:63].rstrip("._-") or None


def label_time(moment: str) -> str | None:
    """Return a timestamp as a valid label that sorts by time; None if it cannot be parsed.

    >>> label_time("2026-05-04T10:00:00.250Z")
    '20260504T100000Z'
    """
    try:
        when = datetime.datetime.fromisoformat(moment)
    except ValueError:
        return None
    return when.astimezone(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")


def labelled(node: Object, result: Result) -> dict[str, Any] | None:
    """Return the patch of the labels; None if they are up to date."""
    labels = {
        LABELS["verdict"]: label_value(result.verdict),
        LABELS["sku"]: label_value(result.sku),
        LABELS["stack"]: label_value(result.stack),
        LABELS["validated-at"]: label_time(result.validated_at),
    }
    have = part(node, "metadata", "labels")
    changed = {key: value for key, value in labels.items() if have.get(key) != value}
    return {"metadata": {"labels": changed}} if changed else None


def is_newer(node: Object, result: Result) -> bool:
    """Return whether the node already shows a result measured after this one."""
    shown = text(node, "metadata", "labels", LABELS["validated-at"])
    return re.fullmatch(r"\d{8}T\d{6}Z", shown) is not None and shown > (
        label_time(result.validated_at) or ""
    )


def conditioned(node: Object, result: Result, moment: str) -> dict[str, Any]:
    """Return the patch of the node's condition; its transition time stays if the status is unchanged."""
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
