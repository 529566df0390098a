"""An API server of Kubernetes over real HTTP: kmock's, extended for changes of nodes.

Added: strategic merge patches for `spec.taints` (replaced whole) and `status.conditions` (merged by type),
resourceVersion and 409, metadata.managedFields, the eviction of pods with disruption budgets, field
selectors, pages, and failures on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp.web
import kmock
import yaml

from provision.fleet import Fleet, Node
from provision.remote.schedulers.kubernetes import TIMEOUT, Kubernetes, Member

NODES, PODS = kmock.resource("", "v1", "nodes"), kmock.resource("", "v1", "pods")
TOKEN = "not-to-be-shown"
BEFORE = "2026-05-01T08:00:00Z"


@dataclass
class Request:
    """One received request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class Failure:
    """The failure of the next `times` requests with this method and path.
    `status` 0: no answer at all; `done`: the server performs the request before it fails."""

    method: str
    path: str
    status: int
    said: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 10_000
    text: str | None = None
    done: bool = False


class Api(kmock.KubernetesEmulator):  # type: ignore[misc]  # without stubs where it is absent
    """The emulated API server. `budgets`: pod → number of evictions refused before one succeeds."""

    def start(self) -> None:
        self.came: list[Request] = []
        self.failures: list[Failure] = []
        self.budgets: dict[str, int] = {}
        self.versions = itertools.count(100)
        self.meddling: list[Mapping[str, Any]] = []  # patches that others apply before our next one
        self.listed_instead: list[Any] = []  # pods of an outdated list, returned instead of the current ones
        self.over = asyncio.Event()
        for resource in (NODES, PODS):
            self.resources[resource] = {}

    # --- what is in it

    def add_node(self, name: str, **parts: Any) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": BEFORE}
        self.objects[NODES, None, name] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(next(self.versions))}
            | parts.pop("metadata", {}),
            "spec": parts.pop("spec", {"taints": []}),
            "status": {"conditions": [ready, *parts.pop("conditions", [])]},
        }

    def add_pod(self, name: str, node: str, **parts: Any) -> None:
        owner = parts.pop("owner", "Job")
        owners = [{"kind": owner, "name": "x", "uid": "u", "apiVersion": "v1", "controller": True}]
        gpus = parts.pop("gpus", "")  # name of the device plugin's resource
        resources = {"limits": {gpus: "8"}} if gpus else {}
        self.objects[PODS, "team", name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team", "uid": f"u-{name}"}
            | ({"ownerReferences": owners} if owner else {})
            | parts.pop("metadata", {}),
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": parts.pop("phase", "Running"), "startTime": BEFORE},
        }

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = copy.deepcopy(self.objects[NODES, None, name].raw)
        return found

    def change(self, name: str, patch: Mapping[str, Any], manager: str) -> None:
        """Patch a node as `manager`, which may be gpuprov or another program."""
        after = merged(self.node(name), {**patch})
        after["metadata"]["resourceVersion"] = str(next(self.versions))
        self._own(self.node(name), after, manager)
        del self.objects[NODES, None, name]
        self.objects[NODES, None, name] = after

    @staticmethod
    def _own(before: Mapping[str, Any], after: dict[str, Any], manager: str) -> None:
        """Record who set spec.unschedulable, as the API server does: the manager that changed it last."""
        now = after["spec"].get("unschedulable")
        if now != before["spec"].get("unschedulable"):
            entry: dict[str, Any] = {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": BEFORE,
            }
            entry |= {"fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
            after["metadata"]["managedFields"] = [entry] if now else []

    # --- how it answers

    async def _handle(self, request: Any) -> Any:
        path, method = request.url.path, str(request.method.value).upper()
        body: Any = json.loads(request.body) if request.body else None
        came = Request(method, path, dict(request.url.query), copy.deepcopy(body), dict(request.headers))
        self.came.append(came)
        for failure in self.failures:
            if failure.times and failure.method in (method, "") and re.fullmatch(failure.path, path):
                failure.times -= 1
                if failure.done:
                    self._patched(request, body)
                return await self._fail(failure)
        if path == "/api/v1":  # kubectl's first request; kmock 0.8 names the core group `/v1`
            return aiohttp.web.json_response(self._discovery())
        if method == "PATCH" and request.resource == NODES:
            return self._patched(request, body)
        if path.endswith("/eviction"):
            return self._evicted(request, body)
        if method == "GET" and request.resource in (NODES, PODS) and not request.name:
            return self._listed(request)
        return await super()._handle(request)

    async def _fail(self, failure: Failure) -> aiohttp.web.Response:
        if not failure.status:
            await self.over.wait()
        if failure.text is not None:
            return aiohttp.web.Response(text=failure.text, status=failure.status or 200)
        return status(failure.status or 500, failure.headers, **failure.said)

    def _patched(self, request: Any, body: dict[str, Any]) -> aiohttp.web.Response:
        name = request.name
        if (NODES, None, name) not in self.objects:
            return status(404, message=f'nodes "{name}" not found', reason="NotFound")
        if request.headers["Content-Type"] != "application/strategic-merge-patch+json":
            return status(415, message="wrong kind of patch")
        if self.meddling:
            self.change(name, self.meddling.pop(0), "kubectl")
        version = body.get("metadata", {}).pop("resourceVersion", None)
        if version not in (None, self.node(name)["metadata"]["resourceVersion"]):
            return status(
                409, reason="Conflict", message="the object has been modified; please apply your changes"
            )
        part = {"status"} if request.subresource == "status" else {"metadata", "spec"}
        self.change(
            name, {key: value for key, value in body.items() if key in part}, request.params["fieldManager"]
        )
        return aiohttp.web.json_response(self.node(name))

    def _evicted(self, request: Any, body: dict[str, Any]) -> aiohttp.web.Response:
        key = (PODS, request.namespace, request.name)
        if key not in self.objects:
            return status(404, reason="NotFound", message=f'pods "{request.name}" not found')
        if body["deleteOptions"]["preconditions"]["uid"] != self.objects[key].raw["metadata"]["uid"]:
            return status(409, reason="Conflict", message="the UID in the precondition does not match")
        if self.budgets.get(request.name, 0) > 0:
            self.budgets[request.name] -= 1
            # Wording of pkg/registry/core/pod/storage/eviction.go in kubernetes/kubernetes.
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            cause = {"reason": "DisruptionBudget"}
            cause["message"] = "The disruption budget web needs 2 healthy pods and has 2 currently"
            return status(
                429, {"Retry-After": "1"}, reason="TooManyRequests", message=message, causes=[cause]
            )
        del self.objects[key]
        return status(201, message="")

    def _listed(self, request: Any) -> aiohttp.web.Response:
        query = request.url.query
        items = [self.objects[key].raw for key in self.objects if key[0] == request.resource]
        if request.resource == PODS and self.listed_instead:
            items = list(self.listed_instead)
        if "metadata.name" in query.get("fieldSelector", ""):  # kubectl, for a single object
            wanted = query["fieldSelector"].partition("=")[2]
            items = [one for one in items if one["metadata"]["name"] == wanted]
        for one in query.get("fieldSelector", "").split(","):
            name, negated, value = re.findall(r"([\w.]*?)(!?)=(.*)", one)[0] if one else ("", "", "")
            if name.startswith(("spec.", "status.")):
                top, low = name.split(".")
                items = [each for each in items if (each[top].get(low, "") == value) != bool(negated)]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 0)) or len(items)
        more = {"continue": str(start + limit)} if start + limit < len(items) else {}
        kind = "NodeList" if request.resource == NODES else "PodList"
        page = {"kind": kind, "apiVersion": "v1", "metadata": more, "items": items[start : start + limit]}
        return aiohttp.web.json_response(page)

    def _discovery(self) -> dict[str, Any]:
        nodes = {"name": "nodes", "singularName": "node", "kind": "Node", "namespaced": False}
        pods = {"name": "pods", "singularName": "pod", "kind": "Pod", "namespaced": True}
        known = [{**one, "verbs": ["get", "list", "patch"]} for one in (nodes, pods)]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": known}

    def changes(self) -> list[Request]:
        return [one for one in self.came if one.method != "GET"]


def merged(before: Any, patch: Any, key: str = "") -> Any:
    """Apply a strategic merge patch to the fields that tests patch."""
    if key == "conditions":
        kinds = {one["type"]: one for one in before or []}
        for one in patch:
            kinds[one["type"]] = {**kinds.get(one["type"], {}), **one}
        return list(kinds.values())
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    after = dict(before or {})
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = merged(after.get(name), value, name)
    return after


def status(code: int, headers: Mapping[str, str] | None = None, **said: Any) -> aiohttp.web.Response:
    """Return a Status object, the form of every refusal of an API server."""
    causes = said.pop("causes", None)
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": code, **said}
    body["status"] = "Success" if code < 300 else "Failure"
    if causes:
        body["details"] = {"causes": causes}
    return aiohttp.web.json_response(body, status=code, headers=headers)


@dataclass
class Served:
    """A running server, and a kubeconfig that names it."""

    api: Api
    url: str
    kubeconfig: Path


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Served]:
    """Start a server in its own thread, on a free port."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    found: list[Any] = []

    async def run() -> None:
        async with Api() as api, kmock.Server(api) as server:
            api.start()
            found.extend((api, str(server.url).rstrip("/")))
            ready.set()
            await api.over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(20), "kmock did not start"
    api, url = found
    try:
        yield Served(api, url, kubeconfig(folder / "kubeconfig", url))
    finally:
        loop.call_soon_threadsafe(api.over.set)
        thread.join(20)
        loop.close()


def kubeconfig(path: Path, url: str, **cluster: Any) -> Path:
    """Write a kubeconfig with a token."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def scheduler(members: Mapping[str, Member], timeout: float = TIMEOUT) -> Kubernetes:
    """Return a scheduler for a fleet with variables that describe these members."""
    nodes = {}
    for name, member in members.items():
        given = {
            "gpuprov_kubeconfig": str(member.kubeconfig) if member.kubeconfig else None,
            "gpuprov_kubernetes_context": member.context,
            "gpuprov_kubernetes_pool_labels": list(member.pool_labels),
        }
        nodes[name] = Node(name, (), given)
    names = {name: member.name for name, member in members.items()}
    return Kubernetes(Fleet(Path("inventory.yml"), nodes, {}), names, timeout=timeout)
