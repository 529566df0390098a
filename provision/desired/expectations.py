"""Expectations for a node, from roles/*/expect.yml and its variables. The format is in docs/facts.md."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import yamlfile
from provision.desired import service_hosts, skus, versions
from provision.desired.role import (
    DECIDING,
    OF_FILES,
    Promise,
    Role,
    all_defaults,
    all_roles,
    roles_of,
    vendor_of,
)
from provision.desired.templating import BadTemplateError, NotPlainError, Renderer
from provision.desired.templating.render_cache import RenderCache, Tracked, frozen
from provision.desired.vendors import SILENT_GPUS as SILENT_GPUS
from provision.errors import StackError
from provision.node.description import DEFAULT_VENDOR

HARDWARE = "hardware"  # value of Expectation.role for facts that no role can repair
# Placeholder in a requested fact's name for the node's kernel, which the controller does not know yet.
KERNEL = "{kernel.release}"
_ITEM = re.compile(r"\bitem\b")


@dataclass(frozen=True)
class Expectation:
    """One fact that a role promises.

    `operator` is one of equals, version, at_least, one_of, contains, matches, template (see docs/facts.md);
    `value` is the rendered value it compares with. `reboot`: if the fact still differs after the role ran, a
    reboot corrects it. `restarts`: services that the role restarts to correct it. `step`: the part of the
    role that corrects it (empty: the whole role), tagged ROLE_STEP there. `role` is HARDWARE for facts that
    the inventory declares about the machine itself.
    """

    role: str
    fact: str
    operator: str
    value: Any
    why: str
    reboot: bool = False
    restarts: tuple[str, ...] = ()
    step: str = ""

    def holds(self, found: Any) -> bool:
        """Return whether a value is as promised; a missing fact (None) only meets `equals: null`."""
        if self.operator == "equals":
            return _equal(found, self.value)
        if found is None:
            return False
        if self.operator == "template":
            return type(found) is str and found == self.value
        if self.operator == "at_least" and type(self.value) is int:
            return type(found) is int and found >= self.value
        if self.operator == "one_of":
            return any(_equal(found, each) for each in self.value)
        if self.operator == "contains":
            return isinstance(found, str | list) and self.value in found
        if not isinstance(found, str):
            return False
        if self.operator == "version":
            return versions.same(found, self.value)
        if self.operator == "at_least":
            return versions.at_least(found, self.value)
        return re.search(self.value, found) is not None


def _equal(one: Any, other: Any) -> bool:
    """Compare type and value at every level, because 1 and true are equal in plain Python."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    return bool(one == other)


def roles_in_order() -> tuple[str, ...]:
    """Return every shipped role with an expect.yml, in the order in which playbooks/up.yml applies them."""
    return tuple(all_roles())


# Caches for whole nodes and for single roles: nodes that differ in one role share the results of the others.
_of_node: RenderCache[list[Expectation]] = RenderCache()
_of_role: defaultdict[str, RenderCache[list[Expectation]]] = defaultdict(RenderCache)
_facts: RenderCache[frozenset[str]] = RenderCache()
_facts_of_role: defaultdict[str, RenderCache[frozenset[str]]] = defaultdict(RenderCache)
_sets: dict[frozenset[str], frozenset[str]] = {}  # nodes that differ mostly need the same facts


def of_node(declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any]) -> list[Expectation]:
    """Return the expectations for a node, given its declared variables and its gpuprov_node.
    Equal nodes share the list, so do not change it. Raises StackError on a bad template."""

    def compute(mentioned: set[str]) -> list[Expectation]:
        expected: list[Expectation] = []
        for role in _roles_of(declared, mentioned, gpuprov_node):
            compute_role = functools.partial(_promised, role, declared, gpuprov_node)
            expected += _of_role[role.name].get(declared, where, compute_role, mentioned)
        return expected + _of_hardware(declared, mentioned, gpuprov_node)

    where = (_shipped(), frozen(gpuprov_node))
    return _of_node.get(declared, where, compute)


def _promised(
    role: Role, declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any], mentioned: set[str]
) -> list[Expectation]:
    renderer = renderer_for(role, declared, gpuprov_node, mentioned)
    return [each for promise in role.promises for each in _render(promise, role, renderer)]


def facts_to_ask(declared: Mapping[str, Any]) -> frozenset[str]:
    """Return every fact that any supported OS and hardware could need, for a node that is not known yet.

    A name may contain KERNEL in place of the node's kernel release."""

    def compute(mentioned: set[str]) -> frozenset[str]:
        names: set[str] = set()
        for role in _roles_of(declared, mentioned):
            compute_role = functools.partial(_names_anywhere, role, declared)
            names |= _facts_of_role[role.name].get(declared, _shipped(), compute_role, mentioned)
        names |= _silent_gpus(declared, mentioned, vendor_of(declared))
        names |= {expectation.fact for expectation in _of_machine(declared, mentioned)}
        facts = frozenset(names)
        return _sets.setdefault(facts, facts)

    return _facts.get(declared, _shipped(), compute)


def _names_anywhere(role: Role, declared: Mapping[str, Any], mentioned: set[str]) -> frozenset[str]:
    def on(machine: Mapping[str, Any], reads: set[str]) -> frozenset[str]:
        return frozenset(_names_on(role, renderer_for(role, declared, Tracked(machine, reads), mentioned)))

    # Most roles read little of a machine: of 4,368 machines for all roles together, 233 are rendered (0.3 s).
    kinds: RenderCache[frozenset[str]] = RenderCache()
    machines = hypothetical_machines(role)
    return frozenset().union(*(kinds.get(each, 0, functools.partial(on, each)) for each in machines))


def _names_on(role: Role, renderer: Renderer) -> Iterator[str]:
    for promise in role.promises:
        yield from (fact for fact, _local in _instances(promise, renderer))


def _shipped() -> int:
    """Return a cache key that distinguishes the shipped roles from another set of roles."""
    return id(all_roles())


def _roles_of(
    declared: Mapping[str, Any], mentioned: set[str], gpuprov_node: Mapping[str, Any] | None = None
) -> list[Role]:
    mentioned.update(DECIDING)
    return roles_of(declared, gpuprov_node)


def renderer_for(
    role: Role,
    declared: Mapping[str, Any],
    gpuprov_node: Mapping[str, Any],
    mentioned: set[str] | None = None,
) -> Renderer:
    """Return a renderer for a role on a node. A play has all roles' defaults; the role's own come first."""
    own = role.own_vars(gpuprov_node["os"])
    layers = [own, declared, role.defaults, all_defaults()]
    return Renderer(layers, mentioned, given={"gpuprov_node": gpuprov_node})


def hypothetical_machines(role: Role) -> Iterator[dict[str, Any]]:
    """Yield every kind of machine a role could meet, in the form of gpuprov_node."""
    vendor = role.vendor or DEFAULT_VENDOR
    for (os_id, family, version), (architecture, fabric), arch in itertools.product(
        dict.fromkeys(role.releases()), skus.kinds(vendor), ("x86_64", "aarch64")
    ):
        yield {
            "os": {"id": os_id, "version_id": version, "codename": "", "family": family, "arch": arch},
            "kernel": {"release": KERNEL, "boot_release": KERNEL},
            "gpu": {
                **{"vendor": vendor, "sku": None, "count": 8, "architecture": architecture},
                **{"fabric": fabric, "pci_ids": []},
            },
        }


def _instances(promise: Promise, renderer: Renderer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the facts of one promise: one, or one per item of its loop; none if its condition is false."""
    try:
        # A condition without `item` is evaluated before the list of items, which may depend on variables that
        # differ between nodes, and would be rendered for each node even if the role is off.
        each = promise.loop is not None and _ITEM.search(str(promise.when)) is not None
        if not each and not renderer.condition(promise.when):
            return
        items = [{}] if promise.loop is None else [{"item": item} for item in renderer.value(promise.loop)]
        for local in items:
            if not each or renderer.condition(promise.when, local):
                yield str(renderer.value(promise.fact, local)), local
    except (BadTemplateError, NotPlainError) as trouble:
        raise _cannot_render(promise, trouble) from None


def _render(promise: Promise, role: Role, renderer: Renderer) -> Iterator[Expectation]:
    for fact, local in _instances(promise, renderer):
        try:
            value = renderer.value(promise.value, local)
            if promise.operator in OF_FILES:
                value = _of_file(promise.operator, role, str(value), renderer, local)
        except (BadTemplateError, NotPlainError) as trouble:
            raise _cannot_render(promise, trouble) from None
        _check_value(promise, value)
        yield Expectation(
            role.name,
            fact,
            "equals" if promise.operator.endswith("_sha256") else promise.operator,
            value,
            promise.why,
            promise.reboot,
            promise.restarts,
            str(renderer.value(promise.step, local)) if promise.step else "",
        )


def _cannot_render(promise: Promise, trouble: Exception) -> StackError:
    return StackError(f"{promise.where}: {trouble}", "look at the variables it mentions")


def _check_value(promise: Promise, value: Any) -> None:
    if promise.operator == "one_of" and not isinstance(value, list):
        raise StackError(
            f"{promise.where}: one_of needs a list, got {value!r}", "look at the variables it mentions"
        )
    if promise.operator == "at_least" and type(value) is int:
        return
    if promise.operator in ("version", "at_least", "matches") and not isinstance(value, str):
        raise StackError(
            f"{promise.where}: {promise.operator} needs text, got {value!r}",
            "quote the version in the inventory",
        )
    if promise.operator == "at_least" and versions.numbers(value) is None:
        raise StackError(f"{promise.where}: {value!r} is not a version", "write numbers with dots between")
    if promise.operator == "matches":
        try:
            re.compile(value)
        except re.error as trouble:
            raise StackError(
                f"{promise.where}: {value!r} is not a regular expression: {trouble}", ""
            ) from None


def _of_file(operator: str, role: Role, name: str, renderer: Renderer, local: Mapping[str, Any]) -> str:
    """Return the text of a rendered template, or the hexadecimal SHA-256 of a text.
    The latter is for texts that are too large or too secret to be compared."""
    if operator == "file_sha256":
        return _digest_of(role.path / "files" / name)
    text: str = renderer.file(_template(role.path / "templates" / name), local)
    return text if operator == "template" else hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def _digest_of(file: Path) -> str:
    return hashlib.sha256(yamlfile.read_text(file, StackError).encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def _template(file: Path) -> str:
    return yamlfile.read_text(file, StackError)


def _silent_gpus(declared: Mapping[str, Any], mentioned: set[str], vendor: str | None) -> set[str]:
    """Return the fact that lists GPUs without an answer, for nodes with GPUs of this vendor."""
    mentioned.update(service_hosts.ENABLED)
    is_node = vendor in SILENT_GPUS and not any(map(declared.get, service_hosts.ENABLED))
    return {SILENT_GPUS[str(vendor)]} if is_node else set()


def _of_hardware(
    declared: Mapping[str, Any], mentioned: set[str], gpuprov_node: Mapping[str, Any]
) -> list[Expectation]:
    mentioned.update(("gpuprov_expected_gpus", "gpuprov_sku"))
    expected = []
    for variable, fact in (("gpuprov_expected_gpus", "gpu.count"), ("gpuprov_sku", "gpu.sku")):
        if declared.get(variable) is not None:
            why = f"as set in the inventory ({variable})"
            expected.append(Expectation(HARDWARE, fact, "equals", declared[variable], why))
    why = "no program can use such a GPU; power-cycle the node, then run gpuprov validate"
    silent = _silent_gpus(declared, mentioned, gpuprov_node["gpu"].get("vendor"))
    expected += [Expectation(HARDWARE, fact, "equals", [], why) for fact in silent]
    return expected + _of_machine(declared, mentioned)


def _of_machine(declared: Mapping[str, Any], mentioned: set[str]) -> list[Expectation]:
    """Return expectations for declared memory, CPUs and services, as judged in checks/host/host_basics.py."""
    memory, cpus, services = variables = (
        "gpuprov_expected_memory_gib",
        "gpuprov_expected_cpus",
        "gpuprov_expected_services",
    )
    mentioned.update(variables)
    required = {name: declared[name] for name in variables if declared.get(name) is not None}
    least = {
        "memory.installed_gib": -(-required.get(memory, 0) * 98 // 100),  # the firmware keeps some for itself
        "cpu.online": required.get(cpus, 0),
    }
    why = "as set in the inventory ({})"
    expected = [
        Expectation(HARDWARE, fact, "at_least", number, why.format(variable))
        for variable, (fact, number) in zip((memory, cpus), least.items(), strict=True)
        if number
    ]
    names = [str(name).removesuffix(".service") for name in required.get(services, ())]
    return expected + [
        Expectation(HARDWARE, f"service.{name}.active", "equals", "active", why.format(services))
        for name in dict.fromkeys(names)
    ]


def by_fact(expectations: Sequence[Expectation]) -> frozenset[str]:
    """Return the facts of these expectations."""
    return frozenset(expectation.fact for expectation in expectations)
