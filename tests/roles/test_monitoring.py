"""Effects of the role `monitoring` on running and on missing services."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from provision import paths, yamlfile

EXPORTER = "prometheus-node-exporter.service"


def module(file: str, name: str) -> list[dict[str, Any]]:
    """Return the tasks of this file that use this module."""
    tasks = yamlfile.load(paths.ROLES / "monitoring" / "tasks" / file)
    return [task for task in tasks if f"ansible.builtin.{name}" in task]


@pytest.mark.parametrize("written", [[], ["/prometheus/dropin"], ["/etc/prometheus/gpuprov/nodes.yml"]])
def test_no_change_ends_the_node_exporter(written: list[str]) -> None:
    """The unit's reload in Debian sends SIGHUP, which terminates the node exporter."""
    jinja = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701 - no HTML
    jinja.tests["changed"] = lambda result: bool(result["paths"])
    variables = {
        "__monitoring_written": {"paths": written},
        "__monitoring_prometheus_unit": "prometheus.service",
        "__monitoring_alertmanager_unit": "prometheus-alertmanager.service",
        "__monitoring_prometheus_dropin": "/prometheus/dropin",
        "__monitoring_alertmanager_dropin": "/alertmanager/dropin",
    }
    (task,) = module("configure.yml", "systemd_service")
    state = {}
    for entry in task["loop"]:
        item = {name: jinja.from_string(text).render(variables) for name, text in entry.items()}
        wanted = task["ansible.builtin.systemd_service"]["state"]
        state[item["unit"]] = jinja.from_string(wanted).render({**variables, "item": item}).strip()
    assert state.pop(EXPORTER) == "started"
    others = (
        {"restarted", "reloaded"}
        if "/prometheus/dropin" in written
        else {"reloaded" if written else "started"}
    )
    assert set(state.values()) == others


def test_grafana_may_be_installed_later() -> None:
    """systemctl fails for the name of a missing unit, but not for a pattern without a match."""
    (task,) = module("grafana.yml", "command")
    *words, unit = task["ansible.builtin.command"]["argv"]
    assert words == ["systemctl", "try-restart"]
    assert unit == "grafana-server.service*"
