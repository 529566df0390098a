"""gpuprov's own inventory variables; a mistyped one is refused, not silently ignored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.desired import compared, skus, variable_types
from provision.desired.inventory.ansible import ansible_inventory
from provision.desired.role import all_roles
from provision.errors import StackError
from provision.fleet import Fleet, Node
from provision.nearest import did_you_mean
from provision.node_names import fold

# Inventory variables for gpuprov itself; the rest are options of the roles' argument specs.
OWN = {
    "gpuprov_stack": "the set of versions: a shipped stack's name, or a path to a file like it",
    "gpuprov_roles": "the roles this node takes part in; absent: those for any machine and for its GPUs",
    "gpuprov_sku": "the GPU product this node must have",
    "gpuprov_expected_gpus": "how many GPUs this node must have; with 0 only pairs of nodes are measured",
    "gpuprov_pcie_width": "lanes the slots of its GPUs are wired with, where that is fewer than 16",
    "gpuprov_expected_nics": "number or names of the RDMA cards that it must have for traffic between nodes",
    "gpuprov_expected_nvmes": "how many NVMe drives it must have",
    "gpuprov_expected_memory_gib": "GiB of memory it must have; 2 % less is enough",
    "gpuprov_expected_cpus": "how many hardware threads must be online",
    "gpuprov_expected_services": "services that must run, such as munge and slurmd",
    "gpuprov_rack": "rack or leaf switch, by name, to choose pairs; its NVL72 trays share one NVLink domain",
    "gpuprov_address": "where the other nodes reach this one; ansible_host when absent",
    "gpuprov_oversubscription": "how many times more a rack sends than its uplinks carry; 1 when absent",
    "gpuprov_rack_kw": "kilowatts that the nodes of its rack may draw together under burn-in",
    "gpuprov_rack_loads": "how many nodes of its rack may be under burn-in load at the same time",
    "gpuprov_fleet_kw": "kilowatts that all nodes may draw together under burn-in",
    "gpuprov_fleet_loads": "how many nodes may be under burn-in load at the same time",
    "gpuprov_node_kw": "highest measured power of this node in kilowatts (default: estimated from its GPUs)",
    "gpuprov_launcher": "how NCCL is started across nodes: auto, openmpi or slurm; auto when absent",
    "gpuprov_mpi_networks": "the networks that MPI's daemons talk over, as 10.1.0.0/16; any when absent",
    "gpuprov_slurm_options": "options for srun, a list: a partition, an account",
    "gpuprov_nccl_net": "the network plugin NCCL must use between nodes; IB where there are RDMA ports",
    "gpuprov_kubeconfig": "kubeconfig on the controller; a pod's own credentials when absent",
    "gpuprov_kubernetes_context": "which context of the kubeconfig; its current one when absent",
    "gpuprov_kubernetes_pool_labels": "the labels of nodes by which pods choose a pool; a spare gets them",
    "gpuprov_gpu_operator": "NVIDIA's GPU Operator: absent, with_driver (its own) or without_driver (ours)",
    "gpuprov_container_image": "an image on the node; validate then starts a container of it with the GPUs",
    "gpuprov_wave": "a number; nodes of a lower one are done first",
    "gpuprov_canary": "true: this node is done before others of its SKU and OS",
    "gpuprov_atomic": "the name of a variable; nodes with the same value of it share a wave",
    "gpuprov_drain_hook": "program on the controller that takes a node out of service before a change",
    "gpuprov_undrain_hook": "program on the controller that returns a node to service once it has no drift",
    "gpuprov_hook_timeout": "seconds a hook may take; 600 when absent",
    "gpuprov_scheduler": "who hands this node out to jobs: slurm, kubernetes, hooks or none",
    "gpuprov_scheduler_name": "what its scheduler calls this node; its own name when absent",
    "gpuprov_job_wait": "seconds that jobs get to end on a node that up has drained; 600 when absent",
    "gpuprov_hook_scope": "node: a hook is called for each node; wave: once with all of a wave",
    "gpuprov_package_lock_timeout": "seconds to wait for another package manager; 600 when absent",
    "gpuprov_ignore_majority": "facts in which this node may differ from the rest of the fleet",
    "gpuprov_accelerator": "mitogen: the roles run with the strategy of the Python package mitogen",
    "gpuprov_receptor_node": "the workers that can do this node's work: members of the group gpuprov_workers",
    "gpuprov_receptor_socket": "the local Receptor's control socket, on the controller and on a worker",
    "gpuprov_receptor_tls_client": "the tls-client in the controller's receptor.conf; mesh when absent",
    "gpuprov_worker": "not used any more: gpuprov_receptor_node takes its place (docs/workers.md)",
    "gpuprov_worker_python": "a worker's interpreter that has gpuprov; python3 when absent",
    "gpuprov_watch": "limits of `gpuprov watch` and its choice of spares, a mapping (docs/watch.md)",
    "gpuprov_watch_hook": "program on the controller that is told what `gpuprov watch` does",
    "gpuprov_watch_webhooks": "addresses that are told what `gpuprov watch` does, as JSON by POST",
    "gpuprov_watch_alertmanager": "address of an Alertmanager that is told what `gpuprov watch` does",
    "gpuprov_reboot_timeout": "seconds a node has to come back after a reboot",
}


def _text(pattern: str) -> Callable[[Any], bool]:
    """Return a predicate that accepts text of this form."""
    form = re.compile(pattern, re.DOTALL)
    return lambda value: isinstance(value, str) and form.fullmatch(value) is not None


_ADDRESS = _text(r"https?://[!-~]+")
_WITHOUT_TEMPLATE = _text(r"(?!.*\{\{).*")
# Names of labels in Kubernetes; a label that identifies a machine must not be copied to another.
_POOL_LABEL = _text(
    r"(?!kubernetes\.io/hostname$)([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?"
    r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
# Names, the test of their values, and the required kind of value as text.
_PLAIN: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("gpuprov_canary",), lambda value: isinstance(value, bool), "true or false"),
    (
        ("gpuprov_kubernetes_context",),
        _text(r"[!-~]{1,253}"),
        "a name without spaces",
    ),
    (
        ("gpuprov_kubeconfig",),
        lambda value: _WITHOUT_TEMPLATE(value) and bool(value.strip()),
        "the path of a file, without templates",
    ),
    (
        ("gpuprov_kubernetes_pool_labels",),
        lambda value: isinstance(value, list) and all(map(_POOL_LABEL, value)),
        "a list of labels other than kubernetes.io/hostname, such as [pool]",
    ),
    (
        ("gpuprov_gpu_operator",),
        lambda value: value in ("absent", "without_driver", "with_driver"),
        "absent, without_driver or with_driver",
    ),
    (
        ("gpuprov_atomic",),
        lambda value: isinstance(value, str) and value.isidentifier(),
        "the name of a variable, such as rack",
    ),
    (
        ("gpuprov_drain_hook", "gpuprov_undrain_hook", "gpuprov_watch_hook"),
        lambda value: _WITHOUT_TEMPLATE(value) and bool(value.strip()),
        "the path of a program, without templates",
    ),
    (
        ("gpuprov_receptor_socket", "gpuprov_receptor_tls_client", "gpuprov_worker", "gpuprov_worker_python"),
        _WITHOUT_TEMPLATE,
        "plain text",
    ),
    (
        ("gpuprov_receptor_node",),
        lambda value: all(map(_WITHOUT_TEMPLATE, value if isinstance(value, list) else [value])),
        "the name of a worker or a list of them",
    ),
    (
        ("gpuprov_pcie_width",),
        lambda value: type(value) is int and value in (1, 2, 4, 8, 16),
        "1, 2, 4, 8 or 16",
    ),
    (
        ("gpuprov_rack",),
        lambda value: type(value) is int or (isinstance(value, str) and bool(value.strip())),
        "a name or a whole number",
    ),
    (("gpuprov_address",), _text(r"[0-9A-Za-z][0-9A-Za-z.:_-]*"), "a host name or an IP address"),
    (
        ("gpuprov_oversubscription",),
        lambda value: type(value) in (int, float) and 1 <= value <= 64,
        "a number from 1 to 64",
    ),
    (
        ("gpuprov_rack_kw", "gpuprov_fleet_kw", "gpuprov_node_kw"),
        lambda value: type(value) in (int, float) and 0 < value < 1e6,
        "kilowatts, a number above 0",
    ),
    (
        ("gpuprov_rack_loads", "gpuprov_fleet_loads", "gpuprov_expected_memory_gib", "gpuprov_expected_cpus"),
        lambda value: type(value) is int and value > 0,
        "a whole number above 0",
    ),
    (
        ("gpuprov_launcher",),
        lambda value: value in ("auto", "openmpi", "slurm"),
        "auto, openmpi or slurm",
    ),
    (("gpuprov_mpi_networks",), _text(r"[0-9a-fA-F.:/,]+"), "networks as 10.1.0.0/16, separated by commas"),
    (
        ("gpuprov_slurm_options",),
        lambda value: isinstance(value, list) and all(map(_text(r"-[!-~]+"), value)),
        "a list of options, each with its value: --partition=gpu",
    ),
    (
        ("gpuprov_expected_services",),
        lambda value: isinstance(value, list) and all(map(_text(r"[\w@.:-]{1,200}"), value)),
        "a list of services, such as [munge, slurmd]",
    ),
    (("gpuprov_nccl_net",), _text(r"[0-9A-Za-z][0-9A-Za-z ._-]*"), "the name of a plugin, such as IB"),
    (("gpuprov_accelerator",), lambda value: value == "mitogen", "mitogen, or absent"),
    (("gpuprov_watch",), lambda value: isinstance(value, dict), "a mapping"),
    (
        ("gpuprov_watch_webhooks",),
        lambda value: isinstance(value, list) and all(map(_ADDRESS, value)),
        "a list of addresses, https://host/path",
    ),
    (("gpuprov_watch_alertmanager",), _ADDRESS, "an address, https://host:9093"),
    (
        ("gpuprov_scheduler",),
        lambda value: value in ("slurm", "kubernetes", "hooks", "none"),
        "slurm, kubernetes, hooks or none",
    ),
    (("gpuprov_scheduler_name",), _text(r"[0-9A-Za-z][0-9A-Za-z._-]{0,252}"), "the name of one node"),
    (("gpuprov_hook_scope",), lambda value: value in ("node", "wave"), "node or wave"),
)
_OTHERS = {
    "gpuprov_stack": "a stack's name, or a path",
    "gpuprov_roles": "a list of roles",
    "gpuprov_sku": "a SKU, such as h100-sxm",
    "gpuprov_expected_nics": "a number, or a list of names",
    "gpuprov_expected_nvmes": "a whole number",
    "gpuprov_container_image": "an image, by name or by id",
    "gpuprov_ignore_majority": "a list of facts",
}
# Observed, never declared.
RESERVED = frozenset({"gpuprov_node", "gpuprov_run"})
_SURE = 0.9  # similarity from which a name without our prefix counts as a misspelling
_NEAR = 0.75  # the same after the prefix of a role: nccl_verison
_SAID = 5  # foreign variables that are named one by one


def known() -> frozenset[str]:
    """Return the name of every variable that gpuprov or its roles use."""
    return frozenset(OWN).union(*(role.options for role in all_roles().values()))


def form(name: str) -> str:
    """Return the kind of value that a variable of OWN requires, as text for messages."""
    if name in variable_types.NUMBERS:
        return "a whole number"
    return next((required for names, _, required in _PLAIN if name in names), _OTHERS.get(name, ""))


def is_text(name: str) -> bool:
    """Return whether a role's argument spec declares the variable as text."""
    return any(role.options.get(name, {}).get("type") == "str" for role in all_roles().values())


def _check_types(node: Node, source: Path, overrides: Mapping[str, Any]) -> None:
    for name in variable_types.types().keys() & node.variables.keys() - overrides.keys():
        if wrong := variable_types.mistyped(name, node.variables[name]):
            raise StackError(
                f"{_at(name, source)}{name} ({node.name}) must be {wrong}, not {node.variables[name]!r}",
                "correct it in the inventory",
            )


def check(
    fleet: Fleet, overrides: Mapping[str, Any], say: Callable[[str], None] = lambda _line: None
) -> None:
    """Refuse variables that look like ours but are not, and invalid values of our own.
    `say` prints a line about variables that only share a prefix with a role, as another collection's may.

    Raises StackError with the variable, the nodes, the line (if found in the inventory's files) and similar
    names.
    """
    ours = known()
    wrong: dict[str, list[str]] = {}
    for name in overrides:
        if _suspect(name, ours):
            wrong.setdefault(name, []).append("--set")
    judged: dict[str, bool] = {}
    for node in fleet.nodes.values():
        for name in node.variables:
            if name not in judged:
                judged[name] = _suspect(name, ours)
            if judged[name]:
                wrong.setdefault(name, []).append(node.name)
    foreign = {name for name, where in wrong.items() if _foreign(name, where, ours)}
    for name, where in wrong.items():
        if name not in foreign:
            raise _unknown(name, where, fleet.source, ours)
    for line in _said(sorted(foreign), fleet.source):
        say(line)
    for node in {id(node.variables): node for node in fleet.nodes.values()}.values():
        _check_types(node, fleet.source, overrides)
        _check_connection(node, fleet.source)
    seen: set[tuple[str, str]] = set()
    for node in fleet.nodes.values():
        for name in OWN:
            value = overrides.get(name, node.variables.get(name))
            if value is not None and (name, repr(value)) not in seen:
                seen.add((name, repr(value)))
                try:
                    _check_own(name, value, node.name)
                except StackError as wrong:
                    place = "" if name in overrides else written(name, fleet.source)
                    raise StackError(f"{place}: {wrong.what}" if place else wrong.what, wrong.fix) from None


def _suspect(name: str, ours: Collection[str]) -> bool:
    if name in ours:
        return False
    if name.startswith(("gpuprov_", *(f"{role}_" for role in all_roles()))):
        return True
    return not name.startswith("ansible_") and bool(difflib.get_close_matches(name, ours, n=1, cutoff=_SURE))


_PORTS = ("ansible_port", "ansible_ssh_port")
_CONNECTIONS = ("ssh", "smart", "local", "paramiko", "paramiko_ssh", "docker", "podman", "winrm", "psrp")


def _check_connection(node: Node, source: Path) -> None:
    """Refuse what Ansible would refuse again for each node and task, and name the line."""
    for name in _PORTS:
        value = node.variables.get(name)
        if value not in (None, "") and not (str(value).isdecimal() and 0 < int(value) < 65536):
            raise StackError(
                f"{_at(name, source)}{name} ({node.name}) must be a port from 1 to 65535, not {value!r}",
                "correct it in the inventory",
            )
    chosen = node.variables.get("ansible_connection")
    if isinstance(chosen, str) and chosen not in _CONNECTIONS:
        near = difflib.get_close_matches(chosen, _CONNECTIONS, n=1, cutoff=_NEAR)
        if near:
            raise StackError(
                f"{_at('ansible_connection', source)}no connection {chosen!r} ({node.name})",
                f"did you mean {near[0]}?",
            )


def _at(name: str, source: Path) -> str:
    place = written(name, source)
    return f"{place}: " if place else ""


def _foreign(name: str, where: Collection[str], ours: Collection[str]) -> bool:
    """Return whether a name only shares a role's prefix; False if it was typed for gpuprov alone."""
    if name.startswith("gpuprov_") or "--set" in where:
        return False
    if difflib.get_close_matches(name, ours, n=1, cutoff=_SURE):
        return False
    prefixes = [f"{role}_" for role in all_roles() if name.startswith(f"{role}_")]
    return bool(prefixes) and not any(
        difflib.get_close_matches(name[len(prefix) :], rest, n=1, cutoff=_NEAR)
        for prefix in prefixes
        for rest in [[each[len(prefix) :] for each in ours if each.startswith(prefix)]]
    )


def _said(foreign: Sequence[str], source: Path) -> Iterator[str]:
    for name in foreign[:_SAID]:
        yield f"{_at(name, source)}{name} is no variable of gpuprov: ignored (roles/*/README.md list those)"
    if len(foreign) > _SAID:
        yield f"{', '.join(foreign[_SAID:])}: no variables of gpuprov either"


def _unknown(name: str, where: list[str], source: Path, ours: Collection[str]) -> StackError:
    place = written(name, source)
    at = f"{place}: " if place and "--set" not in where else ""
    who = "--set" if "--set" in where else fold(where)
    if name in RESERVED:
        return StackError(f"{at}{name} ({who}) is a fact that gpuprov observes", "remove it; use gpuprov_sku")
    hint = did_you_mean(name, ours, "gpuprov docs variables lists them")
    return StackError(f"{at}unknown variable {name} ({who})", hint)


def written(name: str, source: Path, value: object = "") -> str:
    """Return `file:line` of a variable in the inventory's files, if its spelling is found there.
    With `value`, return the line with that value."""
    with_value = rf"""\s*["']?{re.escape(str(value))}(?![\w.])""" if value else ""
    pattern = rf"""(?:[^#;]*[\s{{,])?["']?{re.escape(name)}["']?\s*[:=]{with_value}"""
    return ansible_inventory.place_of(pattern, source)


def _check_own(name: str, value: Any, node: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name in variable_types.NUMBERS and not whole:
        raise StackError(f"{node}: {name} must be a whole number, not {value!r}", "write digits alone")
    for names, fits, wanted in _PLAIN:
        if name in names and not fits(value):
            raise StackError(f"{node}: {name} must be {wanted}, not {value!r}", "correct it in the inventory")
    if name == "gpuprov_sku" and value not in skus.all_skus():
        raise StackError(
            f"{node}: gpuprov_sku: no SKU called {value!r}",
            did_you_mean(str(value), skus.all_skus(), "known: " + ", ".join(skus.all_skus())),
        )
    if name == "gpuprov_ignore_majority":
        facts = compared.compared_facts()
        for fact in _list(name, value, node, "firmware.gpu_vbios"):
            if fact not in facts:
                hint = did_you_mean(str(fact), facts, "facts: " + ", ".join(facts))
                raise StackError(f"{node}: gpuprov_ignore_majority: {fact!r} is not compared", hint)
    if name == "gpuprov_roles":
        for role in _list(name, value, node, "nvidia_driver"):
            if role not in all_roles():
                hint = did_you_mean(str(role), all_roles(), "roles: " + ", ".join(all_roles()))
                raise StackError(f"{node}: gpuprov_roles: no role called {role!r}", hint)


def _list(name: str, value: Any, node: str, example: str) -> list[Any]:
    if not isinstance(value, list):
        raise StackError(f"{node}: {name} must be a list, not {value!r}", f"write it as [{example}, …]")
    return value
