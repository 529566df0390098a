"""Kubernetes as a scheduler: nodes cordoned and tainted with their reason, given back, emptied by evictions
that honour disruption budgets, and labelled with what was measured.

What a patch says is decided in objects.py and published.py, how it is sent in cluster.py. A node is read
before each change, and a change that meets another one (409) is decided anew from a fresh read.
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

TIMEOUT = 60.0  # seconds of one call, whatever the number of nodes
AT_ONCE = 8  # requests under way at the same time: the API server has others to serve
FEW = 16  # nodes that are asked for one by one; of more, everything is listed
CONFLICTS = 5  # times that a change is decided anew because somebody else changed the node
POLL = 2.0  # seconds between two looks at what is still there, while pods are evicted
BUDGET = "DisruptionBudget"  # the cause in a 429 that a PodDisruptionBudget gave (k8s.io/api/policy/v1)


@dataclass(frozen=True)
class Member:
    """A node: `name` in Kubernetes, the cluster it is in, and the labels that pods choose its pool by."""

    name: str
    kubeconfig: Path | None = None
    context: str = ""
    pool_labels: tuple[str, ...] = ()


def members(fleet: Fleet, names: Mapping[str, str]) -> dict[str, Member]:
    """Inventory name → Member, for `names` (inventory name → what Kubernetes calls it). A kubeconfig that is
    named relatively lies beside the inventory."""
    found = {}
    for node, name in names.items():
        given = fleet.nodes[node].variables
        path = given.get("gpuprov_kubeconfig")
        found[node] = Member(
            name,
            folder_of(fleet.source, str(path)) / Path(str(path)).expanduser() if path else None,
            str(given.get("gpuprov_kubernetes_context") or ""),
            tuple(str(label) for label in given.get("gpuprov_kubernetes_pool_labels") or ()),
        )
    return found


class Kubernetes:
    """The nodes of one or several clusters. `names`: inventory name → what Kubernetes calls it. Other calls
    than `evict` end within `timeout` seconds, and up to one request's time limit after that."""

    kind = "kubernetes"
    settle = 0.0  # a write with the resourceVersion from before another one is refused

    def __init__(self, fleet: Fleet, names: Mapping[str, str], *, timeout: float = TIMEOUT) -> None:
        self._members, self._timeout = members(fleet, names), timeout
        places = dict.fromkeys((one.kubeconfig, one.context) for one in self._members.values())
        self._clusters = {place: Cluster(*place) for place in places}
        every: dict[Cluster, list[str]] = {}
        for node, one in self._members.items():
            every.setdefault(self._cluster(node), []).append(one.name)
        self._breaker = Breaker(every, timeout)

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """Each node's state and the pods on it; see the protocol for all methods that are not explained."""
        end = time.monotonic() + self._timeout
        if len(nodes) <= FEW:
            read, failed = self._each(nodes, lambda node: self._read(node, end), end)
        else:
            read, failed = self._listed(nodes, end)
        found = {
            node: objects.scheduled(one, pods, self._members[node].pool_labels, time.time())
            for node, (one, pods) in read.items()
        }
        for node, error in failed.items():
            found[node] = Scheduled(self._members[node].name, error=error)
        return {node: found[node] for node in nodes}

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
        """Write each node's condition GpuHealthy and its labels. Node → why that failed. Idempotent; a node
        that shows a newer result already keeps that, and is named."""
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
        return failed | {node: said for node, said in done.items() if said}

    def evict(self, nodes: Sequence[str], deadline: float) -> dict[str, str]:
        """Ask Kubernetes to move the pods of these nodes elsewhere, again while disruption budgets refuse,
        for up to `deadline` seconds. Node → what still runs there and why. Only of nodes that we hold; pods
        that nobody would start again are left, and no pod is ever deleted."""
        end = time.monotonic() + deadline
        _, failed = self._each(nodes, lambda node: self._emptied(node, end), end)
        return failed

    # --- evictions

    def _emptied(self, node: str, end: float) -> None:
        """Return once no pod is left to wait for. Raises ApiError that says what is left at the end."""
        cluster, name = self._cluster(node), self._members[node].name
        if objects.holder(found := cluster.node(name, end)) is not Holder.US:
            raise ApiError(
                f"gpuprov does not hold it: {objects.why(found) or 'in service'}; no pod was evicted"
            )
        problems: dict[str, str] = {}  # pod → why it is not evicted yet
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
        """(why it was not, "" where it was; seconds until it makes sense to try again)."""
        try:
            cluster.evict(pod.namespace, pod.name, objects.eviction(pod), end)
        except ApiError as error:
            if error.everything or error.status == 403:
                raise
            if error.status == 404:  # it ended by itself
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
        """What `_read` finds for each of these, from one list of nodes and one of pods for each cluster."""
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
                for found in cluster.nodes(end):
                    if (name := text(found, "metadata", "name")) in mine:
                        read[mine[name]] = (found, [])
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
        """Read each node, and send the patch that `decide` makes of it. Node → why that failed."""
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
        """(node → its answer, node → why there is none). What breaks for a whole cluster is tried once."""
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
                # Not raised again: its traceback would keep this frame, and so the clusters' connections.
                error = future.exception()
                if isinstance(error, ApiError):
                    failed[node] = str(error)
                else:
                    done[node] = future.result()
        return done, failed


def _left(pods: Sequence[Pod], problems: Mapping[str, str]) -> str:
    """`2 pods left when the time was over: The disruption budget web needs 2 healthy pods …: team/web-1`."""
    reasons = {pod.id: problems.get(pod.id) or "still ending" for pod in pods}
    count = Counter(reasons.values())
    said = [
        f"{why}: {_some(name for name, reason in reasons.items() if reason == why)}"
        for why, _ in count.most_common(3)
    ]
    return one_line(f"{many(len(pods), 'pod')} left when the time was over: {'; '.join(said)}", 500)


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(one_line(name, 120) for name in listed[:most]) + more


__all__ = ["Kubernetes", "Member", "Result"]
