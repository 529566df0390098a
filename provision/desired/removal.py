"""Removal of roles from a node: the expected state, what stays for other roles, what forbids it.

What must be true is the reverse of the roles' promises (roles/*/expect.yml): their packages, files and
services are gone, and nothing that they loaded is in memory. Two variables in a role's `vars` define the
rest: `__ROLE_needs` (roles it builds on) and `__ROLE_stays` (packages, files and units it leaves in place).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from provision.desired import lockfile
from provision.desired.compatibility import Refusal
from provision.desired.expectations import Expectation, facts_to_ask, of_node, renderer_for
from provision.desired.resolve import View
from provision.desired.role import all_roles, roles_of
from provision.desired.templating import BadTemplateError, NotPlainError
from provision.desired.templating.render_cache import RenderCache, frozen
from provision.errors import StackError, UsageError
from provision.nearest import did_you_mean

_WHY = "the role is removed"
_REBOOT = ("driver", "module", "amdgpu")  # families about what stays in the kernel until the machine boots
_UNCHANGED = ("restart_required", "core_stale")  # attributes that must be true after a removal, too
_THINGS = ("package", "file", "module", "service", "driver")  # families in which a role may promise absence
_lists: defaultdict[tuple[str, str], RenderCache[list[str]]] = defaultdict(RenderCache)


def named(roles: Sequence[str]) -> tuple[str, ...]:
    """Return these roles in the reverse order of `up`. Raises UsageError for one that does not exist."""
    for role in roles:
        if role not in all_roles():
            hint = did_you_mean(role, all_roles(), "roles: " + ", ".join(all_roles()))
            raise UsageError(f"--remove {role}: no role called {role!r}", hint)
    return tuple(role for role in reversed(tuple(all_roles())) if role in roles)


def of_view(view: View, remove: Sequence[str], node: Mapping[str, Any]) -> list[Expectation]:
    """Return the expectations for a node without these roles, given its variables and its gpuprov_node."""
    stays = {name for role in remove for name in _listed(role, "stays", view, node)}
    for names in kept(view, remove, node).values():
        stays.update(names)
    expectations: dict[str, Expectation] = {}
    for promised in of_node(_without(view, remove), node):
        for expected in _reversed(promised):
            if _item(expected.fact) not in stays:
                expectations.setdefault(expected.fact, expected)
    return list(expectations.values())


def asked(view: View, remove: Sequence[str]) -> frozenset[str]:
    """Return the facts that these expectations may be about, for a node that is not known yet."""
    promised = (
        Expectation(remove[0], fact, "matches", "", "", reboot=True)
        for fact in facts_to_ask(_without(view, remove))
    )
    return frozenset(expected.fact for each in promised for expected in _reversed(each))


def kept(view: View, remove: Collection[str], node: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the `packages` and `files` that the node's other roles promise."""
    promises: dict[str, set[str]] = {"packages": set(), "files": set()}
    for promised in of_node(_with(view, _others(view, remove, node) - {lockfile.ROLE}), node):
        family = {"package": "packages", "file": "files"}.get(promised.fact.partition(".")[0])
        if family and not _absence(promised):
            promises[family].add(_item(promised.fact))
    return {family: sorted(names) for family, names in promises.items()}


def refusals(view: View, remove: Sequence[str], node: Mapping[str, Any], name: str) -> list[Refusal]:
    """Return why these roles must not be removed: others build on them, or the lock file requires them."""
    refused = []
    others = _others(view, remove, node)
    for role in remove:
        users = [
            each for each in all_roles() if each in others and role in _listed(each, "needs", view, node)
        ]
        if users:
            fix = (
                f"remove them as well ({' '.join(f'--remove {user}' for user in users)}), or take them out of"
            )
            what = f"{name}: {_and(users)} {'builds' if len(users) == 1 else 'build'} on {role}"
            refused.append(Refusal("role-needed", what, f"{fix} its gpuprov_roles", "the roles' own needs"))
    if lockfile.ROLE in others:
        locked = {_item(each.fact) for each in of_node(_with(view, [lockfile.ROLE]), node)}
        going = [_item(each.fact) for each in of_view(view, remove, node) if each.fact.startswith("package.")]
        conflicts = list(dict.fromkeys(package for package in going if package in locked))
        if conflicts:
            what = f"{name}: the lock file has {conflicts[0]}"
            more = f" and {len(conflicts) - 1} more of what would be removed" if len(conflicts) > 1 else ""
            fix = "remove it with --no-lock, then run gpuprov lock again"
            refused.append(Refusal("lock-file-wants-it", what + more, fix, "the lock file's groups"))
    return refused


def _with(view: View, roles: Collection[str]) -> View:
    """Return the node's variables with these roles as its own."""
    return view.new_child({"gpuprov_roles": sorted(roles)})


def _without(view: View, remove: Collection[str]) -> View:
    """Return the node's variables with the removed roles, switched on because they may have run before."""
    return _with(view, remove).new_child({f"{role}_enabled": True for role in remove})


def _others(view: View, remove: Collection[str], node: Mapping[str, Any]) -> set[str]:
    """Return the roles that the node keeps."""
    remaining = {role.name for role in roles_of(view, node)} - set(remove)
    roles = all_roles()
    # A role that is off by default has `false` among its defaults.
    defaults = {role: roles[role].defaults.get(f"{role}_enabled") for role in remaining if role in roles}
    return {role for role in remaining if view.get(f"{role}_enabled", defaults.get(role)) is not False}


def _listed(role: str, what: str, view: View, node: Mapping[str, Any]) -> list[str]:
    """Return `__ROLE_needs` or `__ROLE_stays` on this node; empty if the role has no such variable."""
    owner, name = all_roles()[role], f"__{role}_{what}"
    if name not in owner.own_vars(node["os"]):
        return []

    def compute(mentioned: set[str]) -> list[str]:
        try:
            items = renderer_for(owner, view, node, mentioned).value("{{ " + name + " }}")
        except (BadTemplateError, NotPlainError) as trouble:
            raise StackError(
                f"{owner.path}: {name}: {trouble}", "look at the variables it mentions"
            ) from None
        return [str(each) for each in items]

    return _lists[role, what].get(view, (id(all_roles()), frozen(node)), compute)


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _item(fact: str) -> str:
    """Return the item of a fact: `libnccl2` of `package.libnccl2.version`, a file's path, a unit's name."""
    return fact.partition(".")[2].rpartition(".")[0]


def _absence(promised: Expectation) -> bool:
    """Return whether the role itself promises that something is absent or inactive."""
    if promised.operator == "one_of":
        return "absent" in promised.value
    return promised.operator == "equals" and promised.value in (None, False, "absent", "inactive", "disabled")


def _reversed(promised: Expectation) -> Iterator[Expectation]:
    """Yield the expectations that replace a promise once its role is gone.
    Facts that only a boot, or nothing at all, can revert, and the machine's own properties get none."""
    fact = promised.fact
    family, item, attribute = fact.partition(".")[0], _item(fact), fact.rpartition(".")[2]
    if attribute in _UNCHANGED:
        yield promised
        return
    if family in _THINGS and attribute != "held" and _absence(promised):
        return
    gone: Any = None
    if family == "package":
        fact = f"package.{item}.version"
    elif family == "file" or (family == "pgp_key" and item.startswith("/")):
        fact, gone = f"file.{item}.exists", False
    elif family == "fabric":
        fact = f"fabric.{'imex' if attribute.startswith('imex') else 'manager'}_version"
    elif family == "driver" and attribute != "broken_libraries":
        gone = None
    elif fact == "amdgpu.loaded_version":
        fact = "amdgpu.dkms_version"  # the kernel's own driver may take its place
    elif family == "module" and promised.reboot:
        gone = False
    elif family == "container" and item == "cdi":
        fact = "container.cdi.version"
    elif family == "amd_cdi":
        fact = "amd_cdi.version"
    elif family == "container_runtime" and attribute.startswith("amd_"):
        fact = "container_runtime.docker.amd_path"
    elif family == "container_runtime" and item == "all":
        for runtime in ("docker", "containerd", "crio"):
            yield _gone(promised, f"container_runtime.{runtime}.path", None)
        return
    elif family == "container_runtime" and attribute == "path":
        gone = None
    elif family != "service":
        return
    yield _gone(promised, fact, gone)


def _gone(promised: Expectation, fact: str, value: Any) -> Expectation:
    reboot = promised.reboot and fact.partition(".")[0] in _REBOOT
    return Expectation(promised.role, fact, "equals", value, _WHY, reboot)
