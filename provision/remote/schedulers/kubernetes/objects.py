"""Nodes and pods of Kubernetes as its API writes them: what they say, and patches that change them (pure).

A node is ours where it has the taint `gpuprov.io/unhealthy` and an annotation with a reason that begins with
PREFIX. It is somebody else's where it is cordoned without these, or where the API server's own record of who
set which field (`metadata.managedFields`) names another program for the cordon. A person who cordons a node
that we cordoned already changes nothing there, and cannot be seen.

Patches are strategic merge patches: `spec.taints` is replaced whole, `status.conditions` merges by `type`
(struct tags in staging/src/k8s.io/api/core/v1/types.go of kubernetes/kubernetes). A patch of the taints holds
the resourceVersion it was made from, so the API server refuses it with 409 where the node changed in between.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision import foreign_json
from provision.remote.schedulers import PREFIX, REASON, Holder, Job, Scheduled, lease
from provision.text import one_line

Object = Mapping[str, Any]

MANAGER = "gpuprov"  # whose changes these are, in metadata.managedFields
DOMAIN = "gpuprov.io"
TAINT = f"{DOMAIN}/unhealthy"
REASON_NOTE = f"{DOMAIN}/reason"  # annotations: their values may be any text
DRAINED_AT = f"{DOMAIN}/drained-at"
LEASE = f"{DOMAIN}/watch"
POOLS = f"{DOMAIN}/pools"  # the labels, as JSON, that a node of ours had while it was in a pool

# Taints that keep every new pod away which does not tolerate all: well_known_taints.go of k8s.io/api/core/v1,
# and those of the cluster autoscaler and of Karpenter, which are about to remove the node.
_CLOSED = frozenset(
    {
        TAINT,
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
        "node.kubernetes.io/network-unavailable",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
    }
)
_MIRROR = "kubernetes.io/config.mirror"  # annotation of a static pod's copy: the kubelet's own


@dataclass(frozen=True)
class Pod:
    """A pod: `controlled` says whether somebody makes a new one when it goes; `gpus` whether it asks for any;
    `leaving` whether its deletion has begun."""

    namespace: str
    name: str
    uid: str
    controlled: bool
    gpus: bool
    leaving: bool
    started: str

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}"


def part(found: Any, *names: str) -> Mapping[str, Any]:
    """The mapping below these keys; an empty one where there is none."""
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def rows(found: Any, *names: str) -> list[Mapping[str, Any]]:
    """The mappings of the list below these keys."""
    value = part(found, *names[:-1]).get(names[-1])
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, Sequence) else []


def text(found: Any, *names: str) -> str:
    """The text below these keys, on one line; "" where there is none."""
    value = part(found, *names[:-1]).get(names[-1])
    return one_line(value) if isinstance(value, str) else ""


# --- nodes: what they say


def taints(node: Object) -> list[Mapping[str, Any]]:
    return rows(node, "spec", "taints")


def is_cordoned(node: Object) -> bool:
    return part(node, "spec").get("unschedulable") is True


def is_marked(node: Object) -> bool:
    """Whether it has our taint and our reason."""
    return any(one.get("key") == TAINT for one in taints(node)) and note(node).startswith(PREFIX)


def note(node: Object) -> str:
    return text(node, "metadata", "annotations", REASON_NOTE)


def cordoned_by(node: Object) -> tuple[str, str]:
    """(the program that set spec.unschedulable, when), as the API server recorded it; ("", "") where it did
    not. Ours, where it is among several."""
    found = [
        (text(one, "manager"), text(one, "time"))
        for one in rows(node, "metadata", "managedFields")
        if "f:unschedulable" in part(one, "fieldsV1", "f:spec")
    ]
    ours = [one for one in found if one[0] == MANAGER]
    return next(iter(ours or found), ("", ""))


def holder(node: Object) -> Holder:
    """Who keeps jobs away from it."""
    ours = is_marked(node)
    if is_cordoned(node) and (not ours or cordoned_by(node)[0] not in ("", MANAGER)):
        return Holder.OTHERS
    if ours:
        return Holder.US
    # Somebody typed our taint: it holds the node, and nothing says why we should take it away.
    return Holder.OTHERS if any(one.get("key") == TAINT for one in taints(node)) else Holder.NOBODY


def is_ready(node: Object) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions(node))


def conditions(node: Object) -> list[Mapping[str, Any]]:
    return rows(node, "status", "conditions")


def why(node: Object) -> str:
    """Why it is out of service, with who and when where it says so."""
    by, when = cordoned_by(node)
    if holder(node) is Holder.US:
        since = text(node, "metadata", "annotations", DRAINED_AT)
        return note(node) + (f" [{since}]" if since else "")
    said = []
    if is_cordoned(node):
        said.append("cordoned" + (f" by {by}" if by else "") + (f" [{when}]" if when else ""))
    said += [taint_text(one) for one in taints(node) if text(one, "key") in _CLOSED]
    ready = next((one for one in conditions(node) if one.get("type") == "Ready"), {})
    if not is_ready(node):
        said.append(text(ready, "message") or "the node does not report to Kubernetes")
    return one_line("; ".join(said), REASON + 100)


def taint_text(taint: Object) -> str:
    value = text(taint, "value")
    return f"{text(taint, 'key')}{'=' + value if value else ''}:{text(taint, 'effect')}"


def scheduled(node: Object, pods: Iterable[Object], pool_labels: Sequence[str], now: float) -> Scheduled:
    """What Kubernetes says of a node and of these pods on it; `now` in seconds since 1970."""
    closed = is_cordoned(node) or any(
        text(one, "key") in _CLOSED and text(one, "effect") in ("NoSchedule", "NoExecute")
        for one in taints(node)
    )
    ready = is_ready(node)
    words = ["Ready" if ready else "NotReady", *(["SchedulingDisabled"] if is_cordoned(node) else [])]
    labels = pool_labels_of(node, pool_labels)
    jobs = [
        Job(pod.id, pod.namespace, _age(pod.started, now))
        for pod in sorted(somebodys(pods), key=lambda pod: (not pod.gpus, pod.id))
    ]
    return Scheduled(
        name=text(node, "metadata", "name"),
        state=",".join(words),
        reason=why(node),
        holder=holder(node),
        takes_jobs=ready and not closed,
        down=not ready,
        pools=tuple(f"{key}={one_line(value)}" for key, value in labels.items()),
        jobs=tuple(jobs),
        lease=leased(node),
    )


def _age(started: str, now: float) -> int | None:
    try:
        return max(0, int(now - datetime.datetime.fromisoformat(started).timestamp()))
    except (ValueError, OverflowError):
        return None


# --- pods


def somebodys(pods: Iterable[Object]) -> list[Pod]:
    """Those that somebody waits for: not finished, of no DaemonSet (one runs on every node and comes back at
    once), and no static pod (the kubelet starts it from a file of the node)."""
    found = []
    for pod in pods:
        meta, spec = part(pod, "metadata"), part(pod, "spec")
        owner = next((one for one in rows(meta, "ownerReferences") if one.get("controller") is True), {})
        if text(pod, "status", "phase") in ("Succeeded", "Failed") or owner.get("kind") == "DaemonSet":
            continue
        if _MIRROR in part(meta, "annotations"):
            continue
        found.append(
            Pod(
                namespace=text(meta, "namespace"),
                name=text(meta, "name"),
                uid=text(meta, "uid"),
                controlled=bool(owner),
                gpus=_asks_for_gpus(spec),
                leaving=bool(meta.get("deletionTimestamp")),
                started=text(pod, "status", "startTime"),
            )
        )
    return found


def _asks_for_gpus(spec: Object) -> bool:
    """Of a device plugin (nvidia.com/gpu, nvidia.com/mig-1g.10gb, amd.com/gpu), or by a claim of dynamic
    allocation."""
    containers = [*rows(spec, "containers"), *rows(spec, "initContainers")]
    names = {
        name for one in containers for kind in ("requests", "limits") for name in part(one, "resources", kind)
    }
    plugins = ("nvidia.com/", "amd.com/")
    return bool(rows(spec, "resourceClaims")) or any(str(name).startswith(plugins) for name in names)


def eviction(pod: Pod) -> dict[str, Any]:
    """The request to evict this very pod: a new one of the same name, elsewhere, is not meant."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }


# --- patches


def drained(node: Object, reason: str, moment: str) -> dict[str, Any] | None:
    """The patch that takes a node out of service; None where nothing is to be done: somebody has it already.
    The reason of a node that we hold stays. `moment`: now, ISO 8601."""
    if holder(node) is Holder.OTHERS or (is_marked(node) and is_cordoned(node)):
        return None
    others = [dict(one) for one in taints(node) if one.get("key") != TAINT]
    notes = {} if is_marked(node) else {REASON_NOTE: ours(reason), DRAINED_AT: moment}
    return _patch(
        node,
        notes,
        {"unschedulable": True, "taints": [*others, {"key": TAINT, "value": "true", "effect": "NoSchedule"}]},
    )


def resumed(node: Object) -> dict[str, Any] | None:
    """The patch that gives a node of ours back as it was; None where it is not ours."""
    if holder(node) is not Holder.US:
        return None
    others = [dict(one) for one in taints(node) if one.get("key") != TAINT]
    notes = {REASON_NOTE: None, DRAINED_AT: None, **({POOLS: None} if _left(node) else {})}
    spec = {"unschedulable": None, "taints": others or None}
    return _patch(node, notes, spec, _lost_labels(node))


def marked(node: Object, reason: str) -> dict[str, Any] | None:
    """The patch that gives a node of ours another reason; None where it has that already."""
    return None if note(node) == ours(reason) else _patch(node, {REASON_NOTE: ours(reason)}, {})


def leased(node: Object) -> lease.Lease | None:
    """The lease of the watch that has it."""
    kept = part(node, "metadata", "annotations").get(LEASE)
    return lease.read(kept) if isinstance(kept, str) else None


def lent(node: Object, to: lease.Lease | None) -> dict[str, Any] | None:
    """The patch that gives the node this lease; None where it has that already."""
    return None if leased(node) == to else _patch(node, {LEASE: lease.put("", to) or None}, {})


def ours(reason: str) -> str:
    return PREFIX + one_line(reason, REASON)


def _patch(
    node: Object, notes: Mapping[str, Any], spec: Mapping[str, Any], labels: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": part(node, "metadata").get("resourceVersion")}
    if notes:
        metadata["annotations"] = dict(notes)
    if labels:
        metadata["labels"] = dict(labels)
    return {"metadata": metadata, **({"spec": dict(spec)} if spec else {})}


# --- pools


def pool_labels_of(node: Object, pool_labels: Sequence[str]) -> dict[str, str]:
    """The labels by which pods choose its pool: those that it has, and those that it had before it left."""
    found = {**_left(node), **part(node, "metadata", "labels")}
    return {key: str(found[key]) for key in pool_labels if key in found}


def joined(node: Object, pools: Sequence[str]) -> dict[str, Any] | None:
    """The patch that gives `node` the labels of these pools (`key=value`); None where it has them."""
    have = part(node, "metadata", "labels")
    want = {key: value for key, _, value in (pool.partition("=") for pool in pools)}
    missing = {key: value for key, value in want.items() if have.get(key) != value}
    return {"metadata": {"labels": missing}} if missing else None


def left(node: Object, pool_labels: Sequence[str]) -> dict[str, Any] | None:
    """The patch that takes a node of ours out of its pools, and notes on it which they were; None where it is
    in none, or not ours."""
    labels = part(node, "metadata", "labels")
    mine = {key: labels[key] for key in pool_labels if key in labels}
    if holder(node) is not Holder.US or not mine:
        return None
    note = json.dumps({**_left(node), **mine}, sort_keys=True)
    return _patch(node, {POOLS: note}, {}, dict.fromkeys(mine))


def rejoined(node: Object) -> dict[str, Any] | None:
    """The patch that puts a node back into the pools that it left; None where it left none."""
    return _patch(node, {POOLS: None}, {}, _lost_labels(node)) if _left(node) else None


def _left(node: Object) -> dict[str, str]:
    """The labels in the note of `left`; none where somebody wrote something else there."""
    try:
        found = foreign_json.read(part(node, "metadata", "annotations").get(POOLS) or "{}")
    except (ValueError, TypeError, AttributeError):
        return {}
    known = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in known if isinstance(value, str)}


def _lost_labels(node: Object) -> dict[str, str]:
    """Those of them that nobody has given it since."""
    have = part(node, "metadata", "labels")
    return {key: value for key, value in _left(node).items() if key not in have}
