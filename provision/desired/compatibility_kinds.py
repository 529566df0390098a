"""Kinds of compatibility rules for the versions on one node (data/compatibility.yml).

A kind takes a rule and a Subject, and returns (problem, remedy), or None without a problem, or if a variable
it is about is not known yet.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from provision.desired import vendors, versions
from provision.desired.role import DECIDING, Role, all_defaults, all_roles, possible, roles_of
from provision.desired.templating import BadTemplateError, NotPlainError, Renderer
from provision.nearest import did_you_mean

Said = tuple[str, str] | None


class Subject:
    """A node's variables, rendered on demand. `node`: its gpuprov_node, or None before it was observed."""

    def __init__(
        self, declared: Mapping[str, Any], node: Mapping[str, Any] | None, mentioned: set[str] | None = None
    ) -> None:
        self.node = node
        roles = possible(declared) if node is None else roles_of(declared, node)
        self.roles = frozenset(role.name for role in roles)
        machine = {"gpuprov_node": node} if node is not None else {}
        own = [role.own_vars(node["os"]) for role in all_roles().values()] if node is not None else []
        self._renderer = Renderer([machine, *own, declared, all_defaults()], mentioned)
        self._renderer.mentioned.update(DECIDING)

    def get(self, name: str) -> Any:
        """Return the variable's value; None if it is absent, not yet known, or of an unused role."""
        owner = next((role for role in all_roles().values() if name.startswith(f"{role.name}_")), None)
        if owner is not None and not self.uses(owner):
            return None
        return self._value(name)

    def uses(self, role: Role) -> bool:
        """Return whether the role is listed in gpuprov_roles and not switched off."""
        return role.name in self.roles and self._value(f"{role.name}_enabled") is not False

    def _value(self, name: str) -> Any:
        try:
            return self._renderer.value("{{ " + name + " | default(none) }}")
        except (BadTemplateError, NotPlainError):
            return None

    def gpu(self, key: str) -> Any:
        """Return a part of gpuprov_node.gpu; None if the node is not known."""
        return self.node["gpu"].get(key) if self.node is not None else None


def _version_format(rule: Mapping[str, Any], subject: Subject) -> Said:
    value = subject.get(rule["variable"])
    if value is None or (isinstance(value, str) and re.match(rule["pattern"], value)):
        return None
    fix = f'write the full version in quotes, for example "{rule["example"]}"'
    return f"{rule['variable']}: {value!r} is not a version", fix


def _text(subject: Subject, name: str, after: str = "") -> str | None:
    """Return a version as text, or the part of it after `after`; None if the value is not a version."""
    value = subject.get(name)
    if not isinstance(value, str) or versions.numbers(value) is None:
        return None
    return value.partition(after)[2] or None if after else value


def _newest(version: str | None) -> str | None:
    """Return a branch as newer than all its releases, so that 580 meets a floor of 580.65.06."""
    return f"{version}.9999" if version is not None and version.isdigit() else version


def _known_branch(rule: Mapping[str, Any], subject: Subject) -> Said:
    value = _text(subject, rule["variable"])
    if value is None:
        return None
    branch = int(value.split(".")[0])
    if branch <= rule["branches"][-1] and branch not in rule["branches"]:
        near = did_you_mean(
            str(branch), [str(each) for each in rule["branches"]], "choose an existing branch"
        )
        return f"{rule['variable']}: there is no driver branch {branch} ({value})", near
    last = rule["last_release"].get(str(branch))
    if last is not None and not versions.at_least(last, value):
        return (
            f"{rule['variable']}: there is no {value}; branch {branch} ended with {last}",
            f"use {last} or a newer branch",
        )
    return None


def _known_release(rule: Mapping[str, Any], subject: Subject) -> Said:
    value = _text(subject, rule["variable"])
    if value is None or value in rule["releases"] or not versions.at_least(rule["releases"][-1], value):
        return None
    near = did_you_mean(value, rule["releases"], "known: " + ", ".join(rule["releases"][-8:]))
    return f"{rule['variable']}: there is no release {value}", near


def _floor_by_major(rule: Mapping[str, Any], subject: Subject) -> Said:
    value, driver = _text(subject, rule["variable"], rule.get("after", "")), _text(subject, rule["needs"])
    if value is None or driver is None:
        return None
    floor = rule["floors"].get(value.split(".")[0])
    if floor is None or versions.at_least(str(_newest(driver)), floor):
        return None
    return (
        f"{rule['variable']}: {rule['what']} {value} needs driver {floor} or newer, not {driver}",
        f"set {rule['needs']} to {floor} or newer, or choose an older {rule['variable']}",
    )


def _version_below(rule: Mapping[str, Any], subject: Subject) -> Said:
    value = _text(subject, rule["variable"])
    if value is None or not versions.at_least(value, rule["below"]):
        return None
    return (
        f"{rule['variable']} is {value}: from {rule['below']} on {rule['what']}",
        f"set {rule['variable']} to something older than {rule['below']}",
    )


def _spared(rule: Mapping[str, Any], subject: Subject) -> bool:
    """Return whether another choice makes the rule irrelevant."""
    return any(subject.get(name) == value for name, value in rule.get("unless", {}).items())


def _minor(version: str) -> str:
    """Return the first two numbers of a version: 30.30 of 30.30.3."""
    return ".".join(version.split(".")[:2])


def _supported_with(rule: Mapping[str, Any], subject: Subject) -> Said:
    value, other = _text(subject, rule["variable"]), _text(subject, rule["needs"])
    if value is None or other is None or _spared(rule, subject):
        return None
    supported = rule["supported"].get(_minor(other))
    newest = max(
        (each for row in rule["supported"].values() for each in row),
        key=lambda each: versions.numbers(each) or (),
    )
    if supported is None or _minor(value) in supported or versions.at_least(value, f"{newest}.9999"):
        return None
    needed = [key for key, row in rule["supported"].items() if _minor(value) in row]
    fix = f"set {rule['needs']} to {' or '.join(needed)}, or " if needed else ""
    return (
        f"{rule['variable']}: {rule['what']} {value} is not supported with {rule['needs']} {other}, which "
        f"runs {', '.join(supported)}",
        f"{fix}choose a {rule['variable']} of these",
    )


def _kernel_below(rule: Mapping[str, Any], subject: Subject) -> Said:
    value = _text(subject, rule["variable"])
    if value is None or subject.node is None or _spared(rule, subject):
        return None
    below, kernel = rule["below"].get(_minor(value)), str(subject.node["kernel"]["boot_release"])
    if below is None or versions.numbers(kernel) is None or not versions.at_least(kernel, below):
        return None
    return (
        f"{rule['what']} {value} does not compile with kernel {below} and newer; the next boot uses {kernel}",
        f"choose a newer {rule['variable']}, an older kernel, or "
        + " or ".join(f"{name}: {other}" for name, other in rule["unless"].items()),
    )


def _same_major(rule: Mapping[str, Any], subject: Subject) -> Said:
    one, other = _text(subject, rule["variable"], rule.get("after", "")), _text(subject, rule["as"])
    if one is None or other is None or one.split(".")[0] == other.split(".")[0]:
        return None
    return (
        f"{rule['variable']} is built for CUDA {one}, but {rule['as']} is {other}",
        f"choose the build for CUDA {other.split('.')[0]}",
    )


def _same_version(rule: Mapping[str, Any], subject: Subject) -> Said:
    one, other = subject.get(rule["variable"]), subject.get(rule["as"])
    if one is None or other is None or one == other:
        return None
    return (
        f"{rule['variable']} is {one}, but must equal {rule['as']}, which is {other}",
        f"remove {rule['variable']}",
    )


def _floor_by_architecture(rule: Mapping[str, Any], subject: Subject) -> Said:
    value, floor = _text(subject, rule["variable"]), rule["floors"].get(subject.gpu("architecture"))
    newest = _newest(value) if rule["variable"] == "nvidia_driver_version" else value
    if value is None or floor is None or versions.at_least(str(newest), floor):
        return None
    return (
        f"{_product(subject)} needs {rule['what']} {floor} or newer, {rule['variable']} is {value}",
        f"set {rule['variable']} to {floor} or newer for this node",
    )


def _below_by_architecture(rule: Mapping[str, Any], subject: Subject) -> Said:
    value, ceiling = _text(subject, rule["variable"]), rule["ceilings"].get(subject.gpu("architecture"))
    if value is None or ceiling is None or not versions.at_least(value, ceiling):
        return None
    return (
        f"{_product(subject)} is not supported by {rule['what']} {ceiling} and newer; {value} was chosen",
        f"set {rule['variable']} to something older than {ceiling} for this node",
    )


def _flavour(key: str, rule: Mapping[str, Any], subject: Subject) -> Said:
    value, allowed = subject.get(rule["variable"]), rule["flavours"].get(subject.gpu(key))
    if value in (None, "auto") or allowed is None or value in allowed:
        return None
    modules = " or ".join(allowed)
    return (
        f"{_product(subject)} works with the {modules} kernel module only; {rule['variable']} is {value}",
        f"set {rule['variable']} to auto",
    )


def _value_below(rule: Mapping[str, Any], subject: Subject) -> Said:
    version = _text(subject, rule["version"])
    if subject.get(rule["variable"]) != rule["value"] or version is None:
        return None
    if not versions.at_least(version, rule["below"]):
        return None
    return (
        f"{rule['variable']}: {rule['what']} ended before {rule['below']}; {rule['version']} is {version}",
        f"set {rule['variable']} to auto, or {rule['version']} to something older than {rule['below']}",
    )


def _value_by_os(rule: Mapping[str, Any], subject: Subject) -> Said:
    if subject.node is None or subject.get(rule["variable"]) != rule["value"]:
        return None
    os = subject.node["os"]
    fits = os["id"] in rule.get("ids", [os["id"]]) and os["family"] in rule.get("families", [os["family"]])
    lacking = [
        f"{name}: {value}" for name, value in rule.get("only_with", {}).items() if subject.get(name) != value
    ]
    if fits and not lacking:
        return None
    why = f"without {', '.join(lacking)}" if fits else f"on {os['id']}"
    return (
        f"{rule['variable']} is {rule['value']}: there is not {rule['what']} {why}",
        f"set {rule['variable']}: {rule['instead']}" + (f", or {', '.join(lacking)}" if fits else ""),
    )


def _said_by_role(rule: Mapping[str, Any], subject: Subject) -> Said:
    """Refuse a choice for the role's own reasons, which are stated once, in the role's variables."""
    role = all_roles().get(rule["role"])
    if subject.node is None or role is None or not subject.uses(role):
        return None
    reasons = subject.get(rule["reasons"])
    if not reasons:
        return None
    return f"{rule['variable']} {subject.get(rule['variable'])} cannot work: {reasons}", rule["fix"]


def _left_to_other(rule: Mapping[str, Any], subject: Subject) -> Said:
    """Refuse roles that would install the same software as this choice."""
    if subject.get(rule["variable"]) != rule["value"]:
        return None
    roles = all_roles()
    twice = [name for name in rule["roles"] if name in roles and subject.uses(roles[name])]
    if not twice:
        return None
    return f"{rule['variable']} {rule['value']}: {rule['what']}, and so would {', '.join(twice)}", rule["fix"]


def _product(subject: Subject) -> str:
    return str(subject.gpu("sku") or f"a {subject.gpu('architecture')} GPU")


def _has_gpu(rule: Mapping[str, Any], subject: Subject) -> Said:
    if subject.gpu("count") or subject.get(rule["unless_false"]) in (False, None):
        return None
    return vendors.WITHOUT[rule["vendor"]]


def _gpus_of_vendor(_rule: Mapping[str, Any], subject: Subject) -> Said:
    """Refuse roles for another vendor's GPUs, which do nothing; roles for any machine may run."""
    if subject.node is None or subject.gpu("vendor") is None:
        return None
    used = [role for role in all_roles().values() if role.vendor is not None and subject.uses(role)]
    if vendors.not_provisioned(subject.node):
        refusal = vendors.cannot(subject.node, "provision"), f"{vendors.LEAVE_OUT}, {vendors.HOST_ONLY}"
        return refusal if used else None
    wrong = [role for role in used if role.vendor != subject.gpu("vendor")]
    if not wrong:
        return None
    names, whose = ", ".join(role.name for role in wrong), vendors.NAMES[str(wrong[0].vendor)]
    return (
        f"gpuprov_roles lists {names}, for {whose}'s GPUs, and the machine has {vendors.gpus(subject.node)}",
        f"take {'it' if len(wrong) == 1 else 'them'} out, or leave gpuprov_roles out: the roles then follow "
        "from the GPUs",
    )


def _supported_release(_rule: Mapping[str, Any], subject: Subject) -> Said:
    if subject.node is None:
        return None
    os = subject.node["os"]
    version = str(os["version_id"])
    # Roles list only major releases of the RHEL family: 9, not 9.4.
    here = (os["id"], version.partition(".")[0] if os["family"] == "redhat" else version)
    missing = [
        role.name
        for role in all_roles().values()
        if subject.uses(role) and here not in {(name, version) for name, _family, version in role.releases()}
    ]
    if not missing:
        return None
    whole = {
        f"{name} {version}" for role in all_roles().values() for name, _family, version in role.releases()
    }
    return (
        f"{os['id']} {os['version_id']} is not supported by {', '.join(missing)}",
        f"supported: {', '.join(sorted(whole))}; or list the roles this node takes part in as gpuprov_roles",
    )


KINDS: dict[str, Callable[[Mapping[str, Any], Subject], Said]] = {
    "below_by_architecture": _below_by_architecture,
    "flavour_by_architecture": functools.partial(_flavour, "architecture"),
    "flavour_by_sku": functools.partial(_flavour, "sku"),
    "floor_by_architecture": _floor_by_architecture,
    "floor_by_major": _floor_by_major,
    "gpus_of_vendor": _gpus_of_vendor,
    "has_gpu": _has_gpu,
    "kernel_below": _kernel_below,
    "known_branch": _known_branch,
    "known_release": _known_release,
    "left_to_other": _left_to_other,
    "said_by_role": _said_by_role,
    "same_major": _same_major,
    "same_version": _same_version,
    "supported_release": _supported_release,
    "supported_with": _supported_with,
    "value_below": _value_below,
    "value_by_os": _value_by_os,
    "version_below": _version_below,
    "version_format": _version_format,
}
# These kinds judge a machine; the others judge versions alone.
NEED_NODE = frozenset(
    {"below_by_architecture", "flavour_by_architecture", "flavour_by_sku", "floor_by_architecture", "has_gpu"}
    | {"gpus_of_vendor", "kernel_below"}
    | {"said_by_role", "supported_release", "value_by_os"}
)
