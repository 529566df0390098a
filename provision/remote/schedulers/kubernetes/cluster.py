"""Client of one Kubernetes API server; the only module that imports the optional package `kubernetes`.

Answers are read as JSON instead of the client's models, which reject a whole object for a single field that
is newer than the client. Every request has a timeout, follows no redirect (which would forward the token),
and verifies the server's certificate; proxies come from the kubeconfig and the environment.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provision import foreign_json, yamlfile
from provision.errors import GpuprovError
from provision.remote.schedulers.kubernetes.deadline import limit_answers
from provision.remote.schedulers.kubernetes.objects import MANAGER, part, rows, text
from provision.text import one_line

INSTALL = "pip install 'gpuprov[kubernetes]'"
RIGHTS = "docs/examples/kubernetes/rbac.yml has the rights it needs"
CONNECT, READ = 5.0, 15.0  # seconds
LOGIN = 30.0  # seconds; reading the kubeconfig may run a program that fetches a token
PAGE = 250  # objects per page
LARGEST = 64 * 1024 * 1024  # limit of one answer, in bytes
TRIES = 4  # tries of a request that the server cannot take at the moment
_WAIT = 10.0  # longest backoff before a retry, in seconds
_LATER = (429, 500, 502, 503, 504)
_FINISHED = "status.phase!=Succeeded,status.phase!=Failed"


class ApiError(Exception):
    """A failed request, described in one line.
    `status`: HTTP status, 0 if missing. `everything`: every other request would fail too. `body`: the
    server's Status object. `wait`: seconds to wait before a retry, as the server requests."""

    def __init__(
        self,
        what: str,
        status: int = 0,
        *,
        everything: bool = False,
        body: Mapping[str, Any] | None = None,
        wait: float | None = None,
    ) -> None:
        super().__init__(what)
        self.status, self.everything, self.body, self.wait = status, everything, body or {}, wait


@dataclass(frozen=True)
class _Asked:
    """A request in RBAC's terms for error messages: `patch` `nodes/status` of `gpu-01`."""

    verb: str
    resource: str
    name: str = ""


_How = Mapping[str, Any]  # keyword options of a request
_NONE: _How = {}
_Call = Callable[[Any, _How], Any]  # makes a request with the client's API object


class Cluster:
    """API server of a cluster, safe to share between threads.
    Without `kubeconfig` this process must run in a pod of the cluster. `context`: current one if empty."""

    def __init__(self, kubeconfig: Path | None, context: str) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._api: Any = None
        self._guard = threading.Lock()

    @property
    def place(self) -> str:
        """Return the name of the cluster's API server for messages."""
        if self._kubeconfig is None:
            return "the API server"
        return f"the API server of {self._kubeconfig}" + (f" ({self._context})" if self._context else "")

    # --- requests, one method each

    def node(self, name: str, end: float) -> dict[str, Any]:
        asked = _Asked("get", "nodes", name)
        return self._json(asked, end, lambda api, how: api.read_node(name, **how))

    def nodes(self, end: float) -> Iterator[dict[str, Any]]:
        return self._pages(_Asked("list", "nodes"), end, lambda api, how: api.list_node(**how))

    def pods(self, node: str, end: float) -> Iterator[dict[str, Any]]:
        """Yield the unfinished pods on a node, or on every node if `node` is ""."""
        where = f"spec.nodeName={node}" if node else "spec.nodeName!="
        return self._pages(
            _Asked("list", "pods"),
            end,
            lambda api, how: api.list_pod_for_all_namespaces(field_selector=f"{where},{_FINISHED}", **how),
        )

    def patch_node(self, name: str, body: Mapping[str, Any], end: float) -> dict[str, Any]:
        asked = _Asked("patch", "nodes", name)
        return self._json(
            asked, end, lambda api, how: api.patch_node(name, dict(body), field_manager=MANAGER, **how)
        )

    def patch_status(self, name: str, body: Mapping[str, Any], end: float) -> dict[str, Any]:
        asked = _Asked("patch", "nodes/status", name)
        return self._json(
            asked,
            end,
            lambda api, how: api.patch_node_status(name, dict(body), field_manager=MANAGER, **how),
        )

    def evict(self, namespace: str, pod: str, body: Mapping[str, Any], end: float) -> None:
        """Evict a pod in a single try; the caller schedules retries. Raises ApiError, as all of these."""
        asked = _Asked("create", "pods/eviction", f"{namespace}/{pod}")
        self._once(
            asked,
            end,
            lambda api, how: api.create_namespaced_pod_eviction(pod, namespace, dict(body), **how),
        )

    # --- sending requests

    def _pages(self, asked: _Asked, end: float, call: _Call) -> Iterator[dict[str, Any]]:
        next_page = ""
        while True:
            how = {"limit": PAGE, **({"_continue": next_page} if next_page else {})}
            page = self._json(asked, end, call, how)
            yield from (dict(one) for one in rows(page, "items"))
            next_page = text(page, "metadata", "continue")
            if not next_page:
                return

    def _json(self, asked: _Asked, end: float, call: _Call, how: _How = _NONE) -> dict[str, Any]:
        """Return the answer, with retries while the server cannot take the request."""
        for tried in range(1, TRIES + 1):
            try:
                return self._once(asked, end, call, how)
            except ApiError as error:
                wait = min(_WAIT, error.wait if error.wait is not None else 0.5 * 2**tried)
                if error.status not in _LATER or tried == TRIES or time.monotonic() + wait >= end:
                    raise
                time.sleep(wait)
        raise AssertionError("unreachable")

    def _once(self, asked: _Asked, end: float, call: _Call, how: _How = _NONE) -> dict[str, Any]:
        try:
            return self._answered(asked, end, call, how, self._connected())
        except ApiError as error:
            if error.status != 401:
                raise
        # An expired token may have been renewed in the kubeconfig or by its credential program.
        return self._answered(asked, end, call, how, self._connected(again=True))

    def _answered(self, asked: _Asked, end: float, call: _Call, how: _How, api: Any) -> dict[str, Any]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        limit = min(READ, end - time.monotonic())
        if limit <= 0:
            raise ApiError(f"{self.place} was not asked: the time for it is over", everything=True)
        try:
            limits = {"_preload_content": False, "_request_timeout": (min(CONNECT, limit), limit)}
            response = call(api, {**how, **limits})
            with contextlib.closing(response):
                data = response.read(LARGEST + 1)
        except ApiException as error:
            raise self._refused(asked, error) from None
        except HTTPError as error:
            raise self._silent(error) from None
        try:
            document = foreign_json.read(data, largest=LARGEST)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ApiError(f"{self.place} did not answer as one: is its address right?", everything=True)
        return document

    def _connected(self, *, again: bool = False) -> Any:
        with self._guard:
            if self._api is None or again:
                self._api = self._connect()
            return self._api

    def _connect(self) -> Any:
        try:
            from kubernetes import client, config
        except ImportError:
            raise ApiError(
                f"gpuprov_scheduler: kubernetes needs the package kubernetes: {INSTALL}",
                everything=True,
            ) from None
        settings = client.Configuration()
        failed: list[Exception] = []

        def load() -> None:
            mine = threading.get_ident()

            def silence(record: logging.LogRecord) -> bool:
                """Drop the client's log lines, which may contain the output of a credential program."""
                return record.thread != mine

            logging.getLogger().addFilter(silence)
            try:
                if self._kubeconfig is None:
                    config.load_incluster_config(client_configuration=settings)
                else:
                    config.load_kube_config(
                        str(self._kubeconfig), self._context or None, settings, persist_config=False
                    )
            except Exception as error:  # a damaged kubeconfig can make the client raise anything
                failed.append(error)
            finally:
                logging.getLogger().removeFilter(silence)

        loading = threading.Thread(target=load, daemon=True)
        loading.start()
        loading.join(LOGIN)
        if loading.is_alive():
            failed.append(TimeoutError(f"its program for credentials took longer than {LOGIN:.0f} s"))
        if failed:
            raise ApiError(self._unusable(failed[0]), everything=True)
        if not (settings.api_key or settings.cert_file or settings.username) and self._runs_a_program():
            raise ApiError(
                f"{self.place}: its program for credentials gave none: try kubectl", everything=True
            )
        self._refuse_unsafe(settings)
        settings.retries = False  # urllib3's own redirects and retries have no overall timeout
        settings.connection_pool_maxsize = 16
        api = client.ApiClient(settings)
        limit_answers(api.rest_client.pool_manager)
        return client.CoreV1Api(api)

    def _runs_a_program(self) -> bool:
        """Return whether credentials come from a program; the client only logs the failure of one."""
        kubeconfig: Any = {}
        with contextlib.suppress(GpuprovError):  # YAML that only the client can parse
            kubeconfig = yamlfile.load(self._kubeconfig, GpuprovError) if self._kubeconfig else {}
        context = _named(kubeconfig, "contexts", self._context or text(kubeconfig, "current-context"))
        return "exec" in part(_named(kubeconfig, "users", text(context, "context", "user")), "user")

    def _unusable(self, error: Exception) -> str:
        if self._kubeconfig is None:
            return (
                f"no credentials for Kubernetes ({one_line(str(error), 120)}): set gpuprov_kubeconfig, or "
                "run gpuprov in a pod of the cluster"
            )
        if not self._kubeconfig.is_file():
            return f"gpuprov_kubeconfig: there is no {self._kubeconfig}"
        reason = one_line(str(error), 200)
        return f"{self._kubeconfig} cannot be used: {reason}: correct it, or gpuprov_kubernetes_context"

    def _refuse_unsafe(self, settings: Any) -> None:
        """Raise ApiError if the token could be sent to an unverified server."""
        address = urlsplit(str(settings.host))
        local = address.hostname == "localhost" or _is_loopback(address.hostname or "")
        if address.scheme != "https" and not local:
            raise ApiError(f"{self.place} is not asked without TLS: write https:// there", everything=True)
        if settings.verify_ssl is False:
            raise ApiError(
                f"{self.place} is not asked with insecure-skip-tls-verify: write certificate-authority there",
                everything=True,
            )

    # --- failures, in one line each

    def _refused(self, asked: _Asked, error: Any) -> ApiError:
        """Convert an error answer to ApiError, without the client's own text, which includes headers."""
        status = int(error.status or 0)
        if status == 0:  # the client reports TLS failures as status 0
            return self._untrusted(str(error.reason))
        try:
            body = foreign_json.read(error.body or "")
        except (ValueError, TypeError):
            body = {}
        message = one_line(text(body, "message"), 300)
        what = f"{asked.verb} {asked.resource}"
        if status == 401:
            line = "does not accept the credentials (401): the token is wrong or has expired; renew it"
        elif status == 403:
            line = f"does not allow {what} (403): {message or 'no reason given'}; {RIGHTS}"
        elif status == 404 and asked.resource.startswith("nodes"):
            line = f"has no node {one_line(asked.name, 80)} (404): set gpuprov_scheduler_name"
        elif status == 429:
            line = f"has too many requests to take {what} (429): {message or 'try again later'}"
        elif 300 <= status < 400:
            line = f"answers with a redirect ({status}): write the address it leads to into the kubeconfig"
        else:
            line = f"answers {what} with {status}: {message or 'no reason given'}"
        wait = _seconds(
            (error.headers or {}).get("Retry-After"), part(body, "details").get("retryAfterSeconds")
        )
        return ApiError(
            f"{self.place} {line}",
            status,
            everything=status == 401 or 300 <= status < 400,
            body=part(body),
            wait=wait,
        )

    def _silent(self, error: Exception) -> ApiError:
        """Convert a missing answer to ApiError."""
        from urllib3 import exceptions

        cause = getattr(error, "reason", None) or error
        if isinstance(error, exceptions.SSLError) or isinstance(cause, exceptions.SSLError):
            return self._untrusted(str(cause))
        if isinstance(error, exceptions.ReadTimeoutError):
            return ApiError(f"{self.place} took the request and did not answer in time", everything=True)
        refused = isinstance(error, exceptions.NewConnectionError)  # in urllib3 also a ConnectTimeoutError
        if isinstance(error, exceptions.ConnectTimeoutError) and not refused:
            return ApiError(f"{self.place} cannot be reached: no answer in {CONNECT:.0f} s", everything=True)
        shown = one_line(str(cause).rpartition("> ")[2].rpartition(": ")[2], 120)
        return ApiError(f"{self.place} cannot be reached: {shown}", everything=True)

    def _untrusted(self, why: str) -> ApiError:
        shown = one_line(why.replace("SSLError", "").replace("\n", " "), 200)
        return ApiError(
            f"{self.place} has a certificate that is not trusted: {shown}; correct the certificate-authority "
            "of the kubeconfig, or the server's name in it",
            everything=True,
        )


def _named(kubeconfig: Any, kind: str, name: str) -> Mapping[str, Any]:
    return next((one for one in rows(kubeconfig, kind) if one.get("name") == name), {})


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _seconds(*given: Any) -> float | None:
    for one in given:
        with contextlib.suppress(TypeError, ValueError):
            return max(0.0, float(one))
    return None
