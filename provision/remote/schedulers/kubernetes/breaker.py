"""Breaker of all drains for a fault in Kubernetes: an annotation of nodes, set with a drain's rights.

It is open while any node of the cluster has the annotation, which holds the reason. Only a watch drains for a
fault here. Drains are counted by drained nodes, as the API server has no counter that two writers could only
increase in turn, so watches that drain at once may exceed the limit by their open incidents.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from provision.remote.schedulers import PREFIX, BreakerError
from provision.remote.schedulers.kubernetes import objects
from provision.remote.schedulers.kubernetes.cluster import ApiError, Cluster
from provision.remote.schedulers.kubernetes.objects import DOMAIN, Object, part, text
from provision.remote.schedulers.slurm_breaker import held, limit
from provision.text import one_line

NOTE = f"{DOMAIN}/breaker"
ON = 3  # annotated nodes; more than one, since a node may be deleted
_HOUR = 3600.0
_PLANNED = re.compile(re.escape(PREFIX) + r"(?:\([^)]*\) )?(?:up |burn-in |spare\b)")


class Breaker:
    """Breaker of these clusters; `names` lists each cluster's nodes. All methods raise BreakerError."""

    def __init__(self, names: Mapping[Cluster, Sequence[str]], timeout: float) -> None:
        self._names, self._timeout = names, timeout

    def read(self) -> str | None:
        """Return why the breaker is open; None while it is closed."""
        return next((why for cluster in self._names for why in _reasons(self._nodes(cluster))), None)

    def permit(self, cluster: Cluster, name: str, labels: Sequence[str], share: float, least: int) -> str:
        """Return why this node may not be drained now, or ""; the limit is per pool, or for all nodes."""
        nodes = {text(node, "metadata", "name"): node for node in self._nodes(cluster)}
        if name not in nodes:
            raise BreakerError(f"{cluster.place} has no node {name}")
        why = next(_reasons(nodes.values()), None) or (self.read() if len(self._names) > 1 else None)
        mine = [nodes[one] for one in self._names[cluster] if one in nodes]
        if why is None:
            why = next(
                (
                    f"{of or cluster.place} has had {most} of its {len(pool)} nodes drained within an hour"
                    for of, pool in _pools(nodes[name], mine, labels)
                    if sum(map(_counts, pool)) >= (most := limit(len(pool), share, least))
                ),
                None,
            )
            if why is None:
                return ""
            self.open(why)
        return held(why)

    def open(self, why: str) -> None:
        """Annotate some nodes of each cluster. Idempotent."""
        for cluster, names in self._names.items():
            if next(_reasons(self._nodes(cluster)), None) is None:
                self._annotate(cluster, sorted(names)[:ON], one_line(why, 200))

    def close(self) -> None:
        """Remove the annotation from every node. Idempotent.

        Drains within the last hour still count, since their nodes remain drained."""
        for cluster in self._names:
            has = [text(node, "metadata", "name") for node in self._nodes(cluster) if _has(node)]
            self._annotate(cluster, has, None)

    def _nodes(self, cluster: Cluster) -> list[Object]:
        try:
            return list(cluster.nodes(time.monotonic() + self._timeout))
        except ApiError as error:
            raise BreakerError(one_line(str(error), 300)) from None

    def _annotate(self, cluster: Cluster, names: Iterable[str], why: str | None) -> None:
        problems = []
        tried = list(names)
        for name in tried:
            try:
                patch = {"metadata": {"annotations": {NOTE: why}}}
                cluster.patch_node(name, patch, time.monotonic() + self._timeout)
            except ApiError as error:
                problems.append(one_line(str(error), 300))
        if problems and (why is None or len(problems) == len(tried)):
            raise BreakerError(problems[0])


def _has(node: Object) -> bool:
    return NOTE in part(node, "metadata", "annotations")


def _reasons(nodes: Iterable[Object]) -> Iterator[str]:
    for node in nodes:
        if _has(node):
            yield text(node, "metadata", "annotations", NOTE)[:300] or "no reason is given"


def _pools(
    node: Object, members: Sequence[Object], labels: Sequence[str]
) -> list[tuple[str, Sequence[Object]]]:
    """Return the node's pools with their nodes, or all nodes if it is in no pool."""
    of = objects.pool_labels_of(node, labels)
    pools: list[tuple[str, Sequence[Object]]] = [
        (f"{key}={value}", [one for one in members if objects.pool_labels_of(one, labels).get(key) == value])
        for key, value in of.items()
    ]
    return pools or [("", members)]


def _counts(node: Object) -> bool:
    """Return whether gpuprov drained the node for a fault within the last hour."""
    if not objects.is_marked(node) or _PLANNED.match(objects.note(node)):
        return False
    since = text(node, "metadata", "annotations", objects.DRAINED_AT)
    try:
        return time.time() - datetime.datetime.fromisoformat(since).timestamp() < _HOUR
    except (ValueError, OverflowError):
        return True
