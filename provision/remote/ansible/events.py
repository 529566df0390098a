"""Parser of ansible-runner's events: typed events, and one outcome per host (pure).

Raw events contain task arguments and whole results; only the fields named here leave this module, with
secrets masked. A raw event: `{"event": "runner_on_failed", "pid": 7, "event_data": {"host": "gpu-01", "role":
"nvidia_driver", "task": "Install", "task_path": "/…/roles/nvidia_driver/tasks/main.yml:9", "ignore_errors":
null, "res": {"msg": "…", "rc": 100, "stderr": "…", "invocation": {…}}}}`.
"""

from __future__ import annotations

import functools
import json
import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.remote.ansible import diffs
from provision.remote.ansible.messages import message_of
from provision.secrets_mask import masked as masked

STDOUT_LIMIT = 256 * 1024  # characters kept of a task's stdout, from its end
STDERR_LIMIT = 64 * 1024

_KINDS = {
    "runner_on_start": "started",
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
    "runner_item_on_ok": "ok",
    "runner_item_on_failed": "failed",
    "runner_item_on_skipped": "skipped",
}

_OF_A_ROLE = re.compile(r"/roles/([^/]+)/(?:tasks|handlers)/[^/]")


@dataclass(frozen=True)
class Event:
    """One event of a node.

    `kind`: ok, changed, failed, unreachable, skipped, started; or said: output of Ansible itself, without a
    node (`-vvv`: its connections). `result` holds named fields only: `msg`, `rc`, `stdout` and `stderr`
    (their ends; `truncated` if cut), `item` (label of one loop iteration), and the `gpuprov` field of our
    modules; with `--diff` also `diff`, and with `-v` `detail`, the whole result as text, which contains task
    arguments only with `-vvv`. `message`: why a task failed, as in an Outcome; for a loop at its end."""

    kind: str
    node: str
    role: str
    task: str
    result: Mapping[str, Any] = field(default_factory=dict)
    ignored: bool = False
    origin: str = field(default="", compare=False)  # of a worker's unit: label and event number
    message: str = field(default="", compare=False)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a playbook for one node: ok, failed or unreachable, and why.
    `lost`: its worker was lost, so that only an observation can show the node's state."""

    node: str
    status: str
    changed: int = 0
    role: str = ""
    task: str = ""
    message: str = ""
    lost: bool = False


def named_fields(result: Mapping[str, Any], secrets: Collection[str] = ()) -> dict[str, Any]:
    """Return the part of a task's result that may leave this module."""
    kept: dict[str, Any] = {}
    if result.get("censored"):
        kept["msg"] = "the task hides its output (no_log)"
    for name, limit in (("msg", STDERR_LIMIT), ("stdout", STDOUT_LIMIT), ("stderr", STDERR_LIMIT)):
        text = result.get(name)
        if isinstance(text, Mapping) and name == "msg":
            kept[name] = (
                text  # `debug: msg={…}` is our own query's answer (playbooks/resolve.yml): not masked
            )
            continue
        if text is not None and not isinstance(text, str):
            text = json.dumps(text)
        if isinstance(text, str) and text:
            text = masked(text, secrets)
            if len(text) > limit:
                kept["truncated"] = True
            kept[name] = text[-limit:]
    if isinstance(result.get("rc"), int):
        kept["rc"] = result["rc"]
    if "gpuprov" in result:
        kept["gpuprov"] = masked(result["gpuprov"], secrets)
    label = result.get("_ansible_item_label", result.get("item"))
    if isinstance(label, str | int):
        kept["item"] = masked(str(label), secrets)[:200]
    return kept


@dataclass
class _Host:
    """The state of one host so far."""

    started: bool = False
    changed: int = 0
    role: str = ""
    task: str = ""
    item: str = ""  # the first failed iteration of the current loop
    failure: Outcome | None = None
    unreachable: Outcome | None = None


def role_of(data: Mapping[str, Any]) -> str:
    """Return the role that contains a task; "" for a task of the playbook itself.

    If hosts run at their own pace, ansible-runner may attribute a task without a role to another host's role
    (its context is the last task that started anywhere), so the role counts only if the path agrees."""
    reported, path = str(data.get("role") or ""), str(data.get("task_path") or "")
    if not path:
        return reported
    roles = _OF_A_ROLE.findall(path)
    return (reported if reported.rpartition(".")[2] == roles[-1] else roles[-1]) if roles else ""


class Tally:
    """Converter of raw events to typed ones and, in the end, to one Outcome per host."""

    def __init__(
        self, secrets: Mapping[str, tuple[str, ...]], *, diff: bool = False, verbosity: int = 0
    ) -> None:
        self._hosts = {name: _Host() for name in secrets}
        self._secrets = secrets
        self._diff = diff
        self._verbosity = verbosity
        self._stats: Mapping[str, Mapping[str, int]] | None = None
        self._said: deque[str] = deque(maxlen=40)
        self.play_started = False

    @property
    def last_words(self) -> str:
        """Return the last lines that Ansible printed outside of tasks: why a playbook could not run."""
        lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line).strip() for line in self._said]
        errors = [number for number, line in enumerate(lines) if "ERROR" in line]
        lines = lines[errors[-1] :][:8] if errors else lines[-8:]
        return str(masked("\n".join(line for line in lines if line), self._every_secret))[-2000:]

    @functools.cached_property
    def _every_secret(self) -> tuple[str, ...]:
        """Return all nodes' secrets, longest first as in each node's own."""
        every = {secret for secrets in self._secrets.values() for secret in secrets}
        return tuple(sorted(every, key=lambda text: (-len(text), text)))

    def take(self, raw: Mapping[str, Any]) -> Event | None:
        """Process a raw event; return a typed one if it concerns a host."""
        name = str(raw.get("event", ""))
        data = raw.get("event_data") or {}
        if name == "playbook_on_stats":
            self._stats = data
        elif name == "playbook_on_play_start":
            self.play_started = True
        elif name in ("verbose", "error", "warning", "") and raw.get("stdout"):
            self._said.append(str(raw["stdout"])[:1000])
            if self._verbosity > 2 and name == "verbose":
                text = str(masked(str(raw["stdout"])[:STDERR_LIMIT], self._every_secret))
                return Event("said", "", "", "", {"detail": text})
        node = data.get("host")
        if name not in _KINDS or node not in self._hosts:
            return None
        return self._host_event(name, node, data, str(raw.get("origin") or ""))

    def _host_event(self, name: str, node: str, data: Mapping[str, Any], origin: str) -> Event:
        host, secrets = self._hosts[node], self._secrets[node]
        result = data.get("res") or {}
        kind = _KINDS[name]
        if kind == "ok" and result.get("changed"):
            kind = "changed"
        host.role, host.task = role_of(data), str(masked(str(data.get("task") or ""), secrets))
        ignored = bool(data.get("ignore_errors"))
        if name.startswith("runner_item"):
            if kind == "failed" and not host.item:
                label = named_fields(result, secrets).get("item", "")
                host.item = (
                    f"{label}: {message_of(result, secrets)}" if label else message_of(result, secrets)
                )
            fields = self._fields(kind, result, secrets)
            return Event(kind, node, host.role, host.task, fields, origin=origin)
        message = self._note(host, node, kind, result, ignored)
        fields = self._fields(kind, result, secrets)
        return Event(kind, node, host.role, host.task, fields, ignored, origin, message)

    def _fields(self, kind: str, result: Mapping[str, Any], secrets: tuple[str, ...]) -> dict[str, Any]:
        fields = named_fields(result, secrets)
        if self._diff and kind == "changed" and (text := diffs.text(result, secrets)):
            fields["diff"] = text[:STDERR_LIMIT]
        if self._verbosity and kind != "started":
            left_out = {"diff", "results", *(() if self._verbosity > 2 else ("invocation",))}
            shown = {
                name: value
                for name, value in result.items()
                if name not in left_out and not name.startswith("_ansible_")
            }
            fields["detail"] = json.dumps(masked(shown, secrets), ensure_ascii=False, default=str)
        return fields

    def _note(self, host: _Host, node: str, kind: str, result: Mapping[str, Any], ignored: bool) -> str:
        host.started = True
        message = ""
        if kind == "started":
            host.item = ""
        elif kind == "changed":
            host.changed += 1
        elif kind in ("failed", "unreachable") and not ignored:
            message = host.item or message_of(result, self._secrets[node])
            outcome = Outcome(node, kind, host.changed, host.role, host.task, message)
            if kind == "failed":
                host.failure = outcome
            else:
                host.unreachable = outcome
        return message

    def outcomes(self, unfinished: str, *, whole: bool = True, lost: bool = False) -> dict[str, Outcome]:
        """Return one outcome per host; `unfinished` is the message of hosts that had not finished.
        Without `whole`, events are missing, so all count as unfinished. `lost`: unreachable, not failed."""
        if not whole:
            self._stats = None
        status = "unreachable" if lost else "failed"
        return {node: self._outcome(node, host, unfinished, status) for node, host in self._hosts.items()}

    def _outcome(self, node: str, host: _Host, unfinished: str, status: str) -> Outcome:
        if self._stats is None:
            failure = host.unreachable or host.failure
            return failure or Outcome(node, status, host.changed, host.role, host.task, unfinished)
        if node in self._stats.get("dark", {}):
            return host.unreachable or Outcome(node, "unreachable", message="Ansible could not reach it")
        if node in self._stats.get("failures", {}):
            return host.failure or Outcome(
                node, "failed", message="Ansible reported a failure without a message"
            )
        if node in self._stats.get("processed", {}) and host.started:
            return Outcome(node, "ok", host.changed)
        return Outcome(node, "failed", message="nothing was run on it")
