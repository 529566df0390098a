"""Readers and patches of Kubernetes Node and Pod objects (pure).

gpuprov holds a node that has the taint `gpuprov.io/unhealthy` and an annotation with a reason that begins
with PREFIX. Others hold it if it is cordoned without these, or if the API server's record of field managers
(`metadata.managedFields`) names another program for the cordon. A person who cordons a node that gpuprov has
cordoned changes nothing, which cannot be detected.

Patches are strategic merge patches: `spec.taints` is replaced as a whole, `status.conditions` merges by
`type` (struct tags in staging/src/k8s.io/api/core/v1/types.go of kubernetes/kubernetes). A patch of taints
contains the resourceVersion it is based on, so the API server rejects it (409) if the node has changed since.
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

MANAGER = "gpuprov"  # name of gpuprov in metadata.managedFields
DOMAIN = "gpuprov.io"
TAINT = f"{DOMAIN}/unhealthy"
REASON_NOTE = f"{DOMAIN}/reason"  # annotation, since its value may be any text
DRAINED_AT = f"{DOMAIN}/drained-at"
LEASE = f"{DOMAIN}/watch"
POOLS = f"{DOMAIN}/pools"  # JSON of the pool labels that a node had before gpuprov took it out of the pool

# Taints that repel every new pod that does not tolerate all: well_known_taints.go of k8s.io/api/core/v1, and
# those of the cluster autoscaler and Karpenter for nodes they are about to remove.
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
_MIRROR = "kubernetes.io/config.mirror"  # annotation of the API's copy of a static pod, run by the kubelet


@dataclass(frozen=True)
class Pod:
    """A pod: `controlled` if it would be replaced, `gpus` if it requests GPUs, `leaving` in deletion."""

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
    """Return the mapping below these keys; empty if missing."""
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def rows(found: Any, *names: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list below these keys."""
    value = part(found, *names[:-1]).get(names[-1])
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, Sequence) else []


def text(found: Any, *names: str) -> str:
    """Return the text below these keys, on one line; "" if missing."""
    value = part(found, *names[:-1]).get(names[-1])
    return one_line(value) if isinstance(value, str) else ""


# --- state of nodes


def taints(node: Object) -> list[Mapping[str, Any]]:
    return rows(node, "spec", "taints")


def is_cordoned(node: Object) -> bool:
    return part(node, "spec").get("unschedulable") is True


def is_marked(node: Object) -> bool:
    """Return whether the node has gpuprov's taint and reason."""
    return any(one.get("key") == TAINT for one in taints(node)) and note(node).startswith(PREFIX)


def note(node: Object) -> str:
    return text(node, "metadata", "annotations", REASON_NOTE)


def cordoned_by(node: Object) -> tuple[str, str]:
    """Return (manager of spec.unschedulable, time) from the API server's record; ("", "") if not recorded.
    gpuprov comes first if there are several managers."""
    entries = [
        (text(one, "manager"), text(one, "time"))
        for one in rows(node, "metadata", "managedFields")
        if "f:unschedulable" in part(one, "fieldsV1", "f:spec")
    ]
    ours = [one for one in entries if one[0] == MANAGER]
    return next(iter(ours or entries), ("", ""))


def holder(node: Object) -> Holder:
    """Return who keeps jobs away from the node."""
    ours = is_marked(node)
    if is_cordoned(node) and (not ours or cordoned_by(node)[0] not in ("", MANAGER)):
        return Holder.OTHERS
    if ours:
        return Holder.US
    # A person set gpuprov's taint by hand: it holds the node, and no reason allows us to remove it.
    return Holder.OTHERS if any(one.get("key") == TAINT for one in taints(node)) else Holder.NOBODY


def is_ready(node: Object) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions(node))


def conditions(node: Object) -> list[Mapping[str, Any]]:
    return rows(node, "status", "conditions")


def why(node: Object) -> str:
    """Return why the node is out of service, with user and time if recorded."""
    by, when = cordoned_by(node)
    if holder(node) is Holder.US:
        since = text(node, "metadata", "annotations", DRAINED_AT)
        return note(node) + (f" [{since}]" if since else "")
    reasons = []
    if is_cordoned(node):
        reasons.append("cordoned" + (f" by {by}" if by else "") + (f" [{when}]" if when else ""))
    reasons += [taint_text(one) for one in taints(node) if text(one, "key") in _CLOSED]
    ready = next((one for one in conditions(node) if one.get("type") == "Ready"), {})
    if not is_ready(node):
        reasons.append(text(ready, "message") or "the node does not report to Kubernetes")
    return one_line("; ".join(reasons), REASON + 100)


def taint_text(taint: Object) -> str:
    value = text(taint, "value")
    return f"{text(taint, 'key')}{'=' + value if value else ''}:{text(taint, 'effect')}"


def scheduled(node: Object, pods: Iterable[Object], pool_labels: Sequence[str], now: float) -> Scheduled:
    """Return the scheduler's view of a node and its pods; `now` in seconds since 1970."""
    closed = is_cordoned(node) or any(
        text(one, "key") in _CLOSED and text(one, "effect") in ("NoSchedule", "NoExecute")
        for one in taints(node)
    )
    ready = is_ready(node)
    states = ["Ready" if ready else "NotReady", *(["SchedulingDisabled"] if is_cordoned(node) else [])]
    labels = pool_labels_of(node, pool_labels)
    jobs = [
        Job(pod.id, pod.namespace, _age(pod.started, now))
        for pod in sorted(somebodys(pods), key=lambda pod: (not pod.gpus, pod.id))
    ]
    return Scheduled(
        name=text(node, "metadata", "name"),
        state=",".join(states),
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
    """Return the pods that are a user's jobs: unfinished, not static, and not of a DaemonSet.
    (A DaemonSet runs on every node and restarts at once; static pods come from files on the node.)"""
    jobs = []
    for pod in pods:
        meta, spec = part(pod, "metadata"), part(pod, "spec")
        owner = next((one for one in rows(meta, "ownerReferences") if one.get("controller") is True), {})
        if text(pod, "status", "phase") in ("Succeeded", "Failed") or owner.get("kind") == "DaemonSet":
            continue
        if _MIRROR in part(meta, "annotations"):
            continue
        jobs.append(
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
    return jobs


def _asks_for_gpus(spec: Object) -> bool:
    """Return whether a pod requests GPUs of a device plugin or by a claim of dynamic allocation.
    The plugins' resources are nvidia.com/gpu, nvidia.com/mig-1g.10gb, amd.com/gpu and the like."""
    containers = [*rows(spec, "containers"), *rows(spec, "initContainers")]
    names = {
        name for one in containers for kind in ("requests", "limits") for name in part(one, "resources", kind)
    }
    plugins = ("nvidia.com/", "amd.com/")
    return bool(rows(spec, "resourceClaims")) or any(str(name).startswith(plugins) for name in names)


def eviction(pod: Pod) -> dict[str, Any]:
    """Return the request to evict exactly this pod, and no later pod of the same name."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }


# --- patches


def drained(node: Object, reason: str, moment: str) -> dict[str, Any] | None:
    """Return the patch that takes a node out of service; None if it is already held.
    The reason of a node that gpuprov holds stays. `moment`: current time, ISO 8601."""
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
    """Return the patch that resumes a node that gpuprov holds, with its pool labels; None for others."""
    if holder(node) is not Holder.US:
        return None
    others = [dict(one) for one in taints(node) if one.get("key") != TAINT]
    notes = {REASON_NOTE: None, DRAINED_AT: None, **({POOLS: None} if _left(node) else {})}
    spec = {"unschedulable": None, "taints": others or None}
    return _patch(node, notes, spec, _lost_labels(node))


def marked(node: Object, reason: str) -> dict[str, Any] | None:
    """Return the patch that replaces the reason; None if it is unchanged."""
    return None if note(node) == ours(reason) else _patch(node, {REASON_NOTE: ours(reason)}, {})


def leased(node: Object) -> lease.Lease | None:
    """Return the lease of the watch in charge of the node."""
    kept = part(node, "metadata", "annotations").get(LEASE)
    return lease.read(kept) if isinstance(kept, str) else None


def lent(node: Object, to: lease.Lease | None) -> dict[str, Any] | None:
    """Return the patch that sets the node's lease; None if it is unchanged."""
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
    """Return the labels by which pods select its pool, current or removed by `left`."""
    all_labels = {**_left(node), **part(node, "metadata", "labels")}
    return {key: str(all_labels[key]) for key in pool_labels if key in all_labels}


def joined(node: Object, pools: Sequence[str]) -> dict[str, Any] | None:
    """Return the patch that adds the labels of these pools (`key=value`); None if all are present."""
    have = part(node, "metadata", "labels")
    want = {key: value for key, _, value in (pool.partition("=") for pool in pools)}
    missing = {key: value for key, value in want.items() if have.get(key) != value}
    return {"metadata": {"labels": missing}} if missing else None


def left(node: Object, pool_labels: Sequence[str]) -> dict[str, Any] | None:
    """Return the patch that removes a node's pool labels and records them in an annotation.
    None if the node has none, or gpuprov does not hold it."""
    labels = part(node, "metadata", "labels")
    mine = {key: labels[key] for key in pool_labels if key in labels}
    if holder(node) is not Holder.US or not mine:
        return None
    note = json.dumps({**_left(node), **mine}, sort_keys=True)
    return _patch(node, {POOLS: note}, {}, dict.fromkeys(mine))


def rejoined(node: Object) -> dict[str, Any] | None:
    """Return the patch that restores the pool labels; None if the node left no pool."""
    return _patch(node, {POOLS: None}, {}, _lost_labels(node)) if _left(node) else None


def _left(node: Object) -> dict[str, str]:
    """Return the labels recorded by `left`; empty if the annotation is malformed."""
    try:
        recorded = foreign_json.read(part(node, "metadata", "annotations").get(POOLS) or "{}")
    except (ValueError, TypeError, AttributeError):
        return {}
    pairs = recorded.items() if isinstance(recorded, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _lost_labels(node: Object) -> dict[str, str]:
    """Return the recorded labels that the node lacks now."""
    have = part(node, "metadata", "labels")
    return {key: value for key, value in _left(node).items() if key not in have}
