"""Kubernetes scheduler: cordon and taint nodes, resume them, evict their pods, and label validation results.

Evictions honour disruption budgets. objects.py and published.py build the patches and cluster.py sends them.
A node is read before each change, and a conflicting change (409) is decided again after a fresh read.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from provision.fleet import Fleet, folder_of
from provision.remote.schedulers import Holder, Scheduled
from provision.remote.schedulers.kubernetes import objects, published
from provision.remote.schedulers.kubernetes.breaker import Breaker
from provision.remote.schedulers.kubernetes.cluster import ApiError, Cluster
from provision.remote.schedulers.kubernetes.objects import Pod, rows, text
from provision.remote.schedulers.kubernetes.published import Result
from provision.remote.schedulers.lease import Lease
from provision.text import many, now, one_line

Answer = TypeVar("Answer")

TIMEOUT = 60.0  # seconds for one call, regardless of the number of nodes
AT_ONCE = 8  # concurrent requests, limited to spare the API server
FEW = 16  # up to this many nodes are queried one by one; for more, everything is listed
CONFLICTS = 5  # tries of a change that conflicts with other changes of the node
POLL = 2.0  # seconds between polls of the remaining pods during an eviction
BUDGET = "DisruptionBudget"  # cause in a 429 due to a PodDisruptionBudget (k8s.io/api/policy/v1)


@dataclass(frozen=True)
class Member:
    """A node: `name` in Kubernetes, its cluster, and the labels by which pods select its pool."""

    name: str
    kubeconfig: Path | None = None
    context: str = ""
    pool_labels: tuple[str, ...] = ()


def members(fleet: Fleet, names: Mapping[str, str]) -> dict[str, Member]:
    """Map inventory names to Member, given `names` (inventory name → Kubernetes name).
    A relative kubeconfig path is resolved against the inventory's folder."""
    result = {}
    for node, name in names.items():
        given = fleet.nodes[node].variables
        path = given.get("gpuprov_kubeconfig")
        result[node] = Member(
            name,
            folder_of(fleet.source, str(path)) / Path(str(path)).expanduser() if path else None,
            str(given.get("gpuprov_kubernetes_context") or ""),
            tuple(str(label) for label in given.get("gpuprov_kubernetes_pool_labels") or ()),
        )
    return result


class Kubernetes:
    """Nodes of one or more clusters; `names` maps inventory names to Kubernetes names.
    Every call except `evict` ends within `timeout` seconds plus the timeout of one request."""

    kind = "kubernetes"
    settle = 0.0  # the API server rejects a write with an outdated resourceVersion at once

    def __init__(self, fleet: Fleet, names: Mapping[str, str], *, timeout: float = TIMEOUT) -> None:
        self._members, self._timeout = members(fleet, names), timeout
        locations = dict.fromkeys((one.kubeconfig, one.context) for one in self._members.values())
        self._clusters = {location: Cluster(*location) for location in locations}
        nodes_of: dict[Cluster, list[str]] = {}
        for node, one in self._members.items():
            nodes_of.setdefault(self._cluster(node), []).append(one.name)
        self._breaker = Breaker(nodes_of, timeout)

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """Return each node's state and its pods; see the protocol for methods without a docstring."""
        end = time.monotonic() + self._timeout
        if len(nodes) <= FEW:
            read, failed = self._each(nodes, lambda node: self._read(node, end), end)
        else:
            read, failed = self._listed(nodes, end)
        states = {
            node: objects.scheduled(one, pods, self._members[node].pool_labels, time.time())
            for node, (one, pods) in read.items()
        }
        for node, error in failed.items():
            states[node] = Scheduled(self._members[node].name, error=error)
        return {node: states[node] for node in nodes}

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        return self._changed(reasons, lambda name, node: objects.drained(node, reasons[name], now("seconds")))

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        return self._changed(nodes, lambda _name, node: objects.resumed(node))

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        def decide(name: str, node: Mapping[str, Any]) -> dict[str, Any] | None:
            if objects.holder(node) is not Holder.US:
                raise ApiError(f"gpuprov does not hold it: {objects.why(node) or 'in service'}")
            return objects.marked(node, reasons[name])

        return self._changed(reasons, decide)

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:
        if self._cluster(node) is not self._cluster(like):
            return f"{like} is in another cluster: {self._cluster(like).place}"
        return self._changed([node], lambda _name, found: objects.joined(found, pools)).get(node, "")

    def leave(self, node: str) -> str:
        pools = self._members[node].pool_labels
        return self._changed([node], lambda _name, found: objects.left(found, pools)).get(node, "")

    def rejoin(self, node: str) -> str:
        return self._changed([node], lambda _name, found: objects.rejoined(found)).get(node, "")

    def lease(self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]) -> dict[str, str]:
        def decide(name: str, node: Mapping[str, Any]) -> dict[str, Any] | None:
            if objects.leased(node) != before.get(name):
                raise ApiError("another watch changed its lease just now")
            return objects.lent(node, leases[name])

        return self._changed(leases, decide)

    def breaker(self) -> str | None:
        return self._breaker.read()

    def permit(self, node: str, share: float, least: int) -> str:
        member = self._members[node]
        return self._breaker.permit(self._cluster(node), member.name, member.pool_labels, share, least)

    def open_breaker(self, why: str) -> None:
        self._breaker.open(why)

    def close_breaker(self) -> None:
        self._breaker.close()

    def publish(self, results: Mapping[str, Result]) -> dict[str, str]:
        """Write the condition GpuHealthy and the labels of each node; return node → error. Idempotent.
        A node that already shows a newer result keeps it and is reported."""
        end = time.monotonic() + self._timeout

        def one(node: str) -> str:
            cluster, name = self._cluster(node), self._members[node].name
            before = cluster.node(name, end)
            if published.is_newer(before, results[node]):
                shown = text(before, "metadata", "labels", published.LABELS["validated-at"])
                return f"it shows a newer result already ({shown}): nothing was changed"
            cluster.patch_status(name, published.conditioned(before, results[node], now("seconds")), end)
            patch = published.labelled(before, results[node])
            if patch:
                cluster.patch_node(name, patch, end)
            return ""

        done, failed = self._each(list(results), one, end)
        return failed | {node: problem for node, problem in done.items() if problem}

    def evict(self, nodes: Sequence[str], deadline: float) -> dict[str, str]:
        """Evict the pods of nodes that gpuprov holds, retrying refusals for up to `deadline` seconds.
        Returns node → what still runs there and why. Pods without a controller, which would not be restarted,
        stay, and no pod is ever deleted directly."""
        end = time.monotonic() + deadline
        _, failed = self._each(nodes, lambda node: self._emptied(node, end), end)
        return failed

    # --- evictions

    def _emptied(self, node: str, end: float) -> None:
        """Evict pods until none is left to wait for. Raises ApiError that lists the rest at the end."""
        cluster, name = self._cluster(node), self._members[node].name
        if objects.holder(observed := cluster.node(name, end)) is not Holder.US:
            raise ApiError(
                f"gpuprov does not hold it: {objects.why(observed) or 'in service'}; no pod was evicted"
            )
        problems: dict[str, str] = {}  # pod → why its eviction is pending
        next_try: dict[str, float] = {}
        while True:
            pods = objects.somebodys(cluster.pods(name, end))
            left = [pod for pod in pods if pod.controlled or pod.leaving]
            for pod in left:
                if not pod.leaving and time.monotonic() >= next_try.get(pod.id, 0.0):
                    problems[pod.id], wait = self._evicted(cluster, pod, end)
                    next_try[pod.id] = time.monotonic() + wait
            if not left:
                break
            rest = end - time.monotonic()
            if rest <= POLL:
                raise ApiError(_left(left, problems))
            time.sleep(min(POLL, rest))
        if pods:
            raise ApiError(
                f"{many(len(pods), 'pod')} without a controller left, which nobody would start again: "
                + _some(pod.id for pod in pods)
            )

    def _evicted(self, cluster: Cluster, pod: Pod, end: float) -> tuple[str, float]:
        """Request one eviction; return (refusal or "", seconds until a retry makes sense)."""
        try:
            cluster.evict(pod.namespace, pod.name, objects.eviction(pod), end)
        except ApiError as error:
            if error.everything or error.status == 403:
                raise
            if error.status == 404:  # the pod ended by itself
                return "", POLL
            causes = rows(error.body, "details", "causes")
            budget = next((one for one in causes if one.get("reason") == BUDGET), {})
            return text(budget, "message") or str(error), error.wait or 5.0
        return "", POLL

    # --- many nodes

    def _cluster(self, node: str) -> Cluster:
        member = self._members[node]
        return self._clusters[member.kubeconfig, member.context]

    def _read(self, node: str, end: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        cluster, name = self._cluster(node), self._members[node].name
        return cluster.node(name, end), list(cluster.pods(name, end))

    def _listed(
        self, nodes: Sequence[str], end: float
    ) -> tuple[dict[str, tuple[dict[str, Any], list[dict[str, Any]]]], dict[str, str]]:
        """Read nodes and pods as `_read` does, with one list of nodes and one of pods per cluster."""
        read: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        failed: dict[str, str] = {}
        for place, cluster in self._clusters.items():
            mine = {
                one.name: node
                for node in nodes
                if ((one := self._members[node]).kubeconfig, one.context) == place
            }
            if not mine:
                continue
            try:
                for observed in cluster.nodes(end):
                    if (name := text(observed, "metadata", "name")) in mine:
                        read[mine[name]] = (observed, [])
                for pod in cluster.pods("", end):
                    if (node := mine.get(text(pod, "spec", "nodeName"), "")) in read:
                        read[node][1].append(pod)
            except ApiError as error:
                failed |= dict.fromkeys(mine.values(), str(error))
                for node in mine.values():
                    read.pop(node, None)
                continue
            absent = f"{cluster.place} has no such node: set gpuprov_scheduler_name"
            failed |= {node: absent for node in mine.values() if node not in read}
        return read, failed

    def _changed(
        self,
        nodes: Iterable[str],
        decide: Callable[[str, Mapping[str, Any]], dict[str, Any] | None],
    ) -> dict[str, str]:
        """Read each node and send the patch that `decide` returns; return node → error."""
        end = time.monotonic() + self._timeout

        def one(node: str) -> None:
            cluster, name = self._cluster(node), self._members[node].name
            for _ in range(CONFLICTS):
                patch = decide(node, cluster.node(name, end))
                if patch is None:
                    return
                try:
                    cluster.patch_node(name, patch, end)
                    return
                except ApiError as error:
                    if error.status != 409:
                        raise
            raise ApiError(f"others changed the node during each of {CONFLICTS} tries (409): try again")

        return self._each(list(nodes), one, end)[1]

    def _each(
        self, nodes: Sequence[str], work: Callable[[str], Answer], end: float
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """Run `work` for each node, skipping broken clusters; return (node → answer, node → error)."""
        broken: dict[Cluster, str] = {}

        def one(node: str) -> Answer:
            cluster = self._cluster(node)
            if cluster in broken:
                raise ApiError(broken[cluster])
            if time.monotonic() >= end:
                raise ApiError("not tried: the time for it was over")
            try:
                return work(node)
            except ApiError as error:
                if error.everything:
                    broken.setdefault(cluster, str(error))
                raise

        done: dict[str, Answer] = {}
        failed: dict[str, str] = {}
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            running = {node: pool.submit(one, node) for node in nodes}
            for node, future in running.items():
                # Not re-raised: the traceback would keep this frame and the clusters' connections alive.
                error = future.exception()
                if isinstance(error, ApiError):
                    failed[node] = str(error)
                else:
                    done[node] = future.result()
        return done, failed


def _left(pods: Sequence[Pod], problems: Mapping[str, str]) -> str:
    """Describe remaining pods: `2 pods left when the time was over: The disruption budget … : web-1`."""
    reasons = {pod.id: problems.get(pod.id) or "still ending" for pod in pods}
    count = Counter(reasons.values())
    groups = [
        f"{why}: {_some(name for name, reason in reasons.items() if reason == why)}"
        for why, _ in count.most_common(3)
    ]
    return one_line(f"{many(len(pods), 'pod')} left when the time was over: {'; '.join(groups)}", 500)


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(one_line(name, 120) for name in listed[:most]) + rest


__all__ = ["Kubernetes", "Member", "Result"]
