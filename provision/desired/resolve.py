"""Resolution of variables that plain Jinja2 cannot render.
One Ansible run does it for all nodes that need it (playbooks/resolve.yml), and changes no node."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision import paths
from provision.desired import stack, variables
from provision.desired.expectations import hypothetical_machines
from provision.desired.role import all_defaults, all_roles
from provision.desired.templating import BadTemplateError, NotPlainError, Renderer, references
from provision.desired.templating.render_cache import RenderCache, frozen
from provision.desired.variable_types import EARLY, is_dynamic
from provision.errors import StackError
from provision.fleet import Fleet, sources
from provision.node_names import fold
from provision.remote.ansible import handover
from provision.remote.ansible.handover import Around, inert

if TYPE_CHECKING:
    from provision.remote.ansible.events import Outcome

# Variables with which Ansible would describe only the nodes it was given.
_OF_THE_FLEET = frozenset({"groups", "group_names"})


class View(ChainMap[str, Any]):
    """Layered mappings in which the first with a name wins; 10,000 nodes look up a hundred names each."""

    def get(self, key: str, default: Any = None) -> Any:
        """Look up a name like ChainMap, five times as fast."""
        for mapping in self.maps:
            if key in mapping:
                return mapping[key]
        return default


@dataclass(frozen=True)
class Resolved:
    """Every node's view. `secrets`: texts among its values that were vaulted; never show or store them."""

    views: Mapping[str, View]
    secrets: frozenset[str]


def views_of(
    fleet: Fleet, declared: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any] | None = None
) -> dict[str, View]:
    """Return each node's variables as templates see them.
    In order of precedence: resolved, declared, Ansible's own, and values `given` to all nodes."""
    shared: dict[str, Any] = {
        **(given or {}),
        "groups": {name: list(members) for name, members in fleet.groups.items()},
    }
    files = [source.resolve() for source in sources(fleet.source)]
    # In a folder, or with several files, it is the file that names the host first, which is not recorded.
    folders = {source if source.is_dir() else source.parent for source in files}
    if len(folders) == 1:
        shared["inventory_dir"] = str(*folders)
    if len(files) == 1 and not files[0].is_dir():
        shared["inventory_file"] = str(files[0])
    return {
        name: View({}, dict(declared[name]), _magic(name, node.groups), shared)
        for name, node in fleet.nodes.items()
    }


def _magic(name: str, groups: tuple[str, ...]) -> dict[str, Any]:
    return {
        "inventory_hostname": name,
        "inventory_hostname_short": name.split(".")[0],
        "group_names": sorted(groups),
    }


def _place(view: View) -> dict[str, Any]:
    """Return the inventory's location, because Ansible is given another file."""
    return {name: view[name] for name in ("inventory_dir", "inventory_file") if name in view}


def _around(fleet: Fleet, views: Mapping[str, View]) -> Around:
    """Return the whole inventory, as declared."""
    names = dict.fromkeys([*fleet.groups.get("all", ()), *views])
    others = {name: node.variables for name, node in fleet.others.items()}
    declared = {**others, **{name: view.maps[1] for name, view in views.items()}}
    return Around({name: declared.get(name, {}) for name in names}, fleet.groups)


def resolve(
    fleet: Fleet, declared: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any] | None = None
) -> Resolved:
    """Return every node's view, in which Ansible has resolved the role options that only it can render.
    `given`: values and functions that every template finds in addition to its variables.

    Raises StackError if Ansible cannot resolve one either, or a value is vaulted without a password.
    """
    views = views_of(fleet, declared, given)
    options = variables.known() - variables.OWN.keys()
    cache: RenderCache[tuple[str, ...]] = RenderCache()
    unresolved: dict[str, list[str]] = {}
    for node, view in views.items():
        names = cache.get(view, 0, lambda mentioned, view=view: _unrenderable(view, options, mentioned))  # type: ignore[misc]
        if names:
            unresolved[node] = list(names)
    secrets = _fill(fleet, views, unresolved)
    for node in unresolved:
        views[node].maps[0] = inert(views[node].maps[0])
    return Resolved(views, secrets)


def for_ansible(view: View, gpuprov_node: Mapping[str, Any]) -> dict[str, Any]:
    """Return replacements for a node's variables when Ansible is given only some nodes.
    These are values it resolved before, options that mention groups, and the inventory's own location."""
    declared = view.maps[1]
    options = (variables.known() - variables.OWN.keys()) & declared.keys() - view.maps[0].keys()
    values = {name: value for name, value in view.maps[0].items() if not _is_vaulted(declared.get(name))}
    for name in options:
        if is_dynamic(declared[name]):
            mentioned: set[str] = set()
            renderer = Renderer([{"gpuprov_node": gpuprov_node}, view, all_defaults()], mentioned)
            with contextlib.suppress(NotPlainError, BadTemplateError):  # Ansible reports it, in its own task
                value = renderer.value(declared[name])
                if not mentioned.isdisjoint(_OF_THE_FLEET):
                    values[name] = inert(value)
    return {**values, **_place(view)}


def reachable(fleet: Fleet, overrides: Mapping[str, Any]) -> Fleet:
    """Return the fleet with connection variables (`ansible_*`) and gpuprov's own (`gpuprov_*`) rendered.
    Values from `--set` are included.

    Connections outside Ansible need `ansible_host: "{{ inventory_hostname }}.cluster"` and vaulted passwords
    as plain values, and so do the readers of `gpuprov_rack`. Raises StackError like `resolve`.
    """
    views = views_of(fleet, {name: stack.declared(node, overrides) for name, node in fleet.nodes.items()})

    def where(name: str) -> str:
        return "--set" if name in overrides else variables.written(name, fleet.source)

    defaults = all_defaults()
    unresolved: dict[str, list[str]] = {}
    for node, view in views.items():
        rendered, left = _early(view, defaults, where)
        view.maps[0].update(rendered)
        if left:
            unresolved[node] = left
    _fill(fleet, views, unresolved, where)
    chosen = {name: value for name, value in overrides.items() if name.startswith(EARLY)}
    nodes = {
        name: replace(node, variables={**node.variables, **chosen, **views[name].maps[0]})
        if chosen or views[name].maps[0]
        else node
        for name, node in fleet.nodes.items()
    }
    return replace(fleet, nodes=nodes)


def _early(
    view: View, defaults: Mapping[str, Any], where: Callable[[str], str]
) -> tuple[dict[str, Any], list[str]]:
    """Render the early variables that are templates; also return the names of those left to Ansible."""
    rendered: dict[str, Any] = {}
    left: list[str] = []
    renderer: Renderer | None = None
    declared = view.maps[1]
    for name in [name for name in declared if name.startswith(EARLY)]:
        if is_dynamic(declared[name]):
            renderer = renderer or Renderer([view, defaults])
            try:
                rendered[name] = renderer.value(declared[name])
            except NotPlainError:
                left.append(name)
            except BadTemplateError as trouble:
                place = f"{where(name)}: ".removeprefix(": ")
                raise StackError(
                    f"{place}{view['inventory_hostname']}: {name}: {trouble}", "correct it in the inventory"
                ) from None
    return rendered, left


def _unrenderable(view: View, options: frozenset[str], mentioned: set[str]) -> tuple[str, ...]:
    """Return the role options that only Ansible can render, and the vaulted variables behind them."""
    machine = next((each for role in all_roles().values() for each in hypothetical_machines(role)), {})
    renderer = Renderer([{"gpuprov_node": machine}, view, all_defaults()], mentioned)
    unresolved = []
    mentioned.update(options)
    for name in sorted(options & view.keys()):
        if is_dynamic(view[name]):
            try:
                renderer.value(view[name])
            except NotPlainError:
                unresolved.append(name)
            except BadTemplateError:
                continue  # the role that needs it reports it better
    behind = _behind(unresolved, view.maps[1])
    mentioned.update(behind)
    return (*unresolved, *sorted(name for name in behind if _is_vaulted(view.maps[1][name])))


def _behind(names: Sequence[str], declared: Mapping[str, Any]) -> set[str]:
    """Return the other variables that these refer to, directly or indirectly."""
    reached: set[str] = set()
    todo = list(names)
    while todo:
        news = references(declared[todo.pop()]) & declared.keys() - reached
        reached |= news
        todo += news
    return reached.difference(names)


def _is_vaulted(value: Any) -> bool:
    return "__ansible_vault" in str(value)


def _fill(
    fleet: Fleet,
    views: Mapping[str, View],
    wanted: Mapping[str, list[str]],
    where: Callable[[str], str] = lambda _name: "",
) -> frozenset[str]:
    """Put Ansible's answers into the views; returns the texts that were vaulted.
    `where`: returns the place where a name is written, for errors."""
    if not wanted:
        return frozenset()
    vaulted = {node: [n for n in names if _is_vaulted(views[node][n])] for node, names in wanted.items()}
    for node, names in vaulted.items():
        if names and not fleet.vault_password_files:
            place = f"{where(names[0])}: ".removeprefix(": ")
            raise StackError(
                f"{place}{node}: {', '.join(names)} is vaulted", "give --vault-password-file FILE"
            )
    hosts = {node: {**all_defaults(), **views[node].maps[1], **_place(views[node])} for node in wanted}
    around = functools.partial(_around, fleet, views)
    answers = ask_ansible(hosts, wanted, fleet.vault_password_files, around, where)
    for node, answer in answers.items():
        views[node].maps[0].update(answer)
    return frozenset(
        text for node, names in vaulted.items() for n in names for text in _texts(views[node][n])
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (line for line in {value, *value.splitlines()} if len(line) > 3)
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


# Templates that mention one of these differ on every node, so that no node can answer for another.
_OWN_TO_A_NODE = re.compile(r"inventory_hostname|ansible_|hostvars|group_names")
# Templates that mention one of these need the whole inventory.
_NEEDS_ALL_NODES = re.compile(r"\b(?:groups|group_names|hostvars)\b")


def ask_ansible(
    hosts: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, Sequence[str]],
    vault_password_files: Sequence[Path],
    around: Callable[[], handover.Around] | None = None,
    where: Callable[[str], str] = lambda _name: "",
) -> dict[str, dict[str, Any]]:
    """Return the values of `wanted` (node → names), given each node's variables.
    Equal nodes are resolved once. `around`: returns the whole inventory, if a template may refer to it.
    `where`: returns the place where a name is written, for errors.

    Raises StackError with Ansible's message if it cannot resolve a value.
    """
    from provision.remote.ansible.runner import run_playbook

    same: dict[Hashable, list[str]] = {}
    for node, names in wanted.items():
        same.setdefault(_question(node, names, hosts[node]), []).append(node)
    with handover.private_folder() as folder:
        questions = {
            nodes[0]: _prepared(hosts[nodes[0]], wanted[nodes[0]], folder / f"answer-{number}.json")
            for number, nodes in enumerate(same.values())
        }
        of_the_fleet = around is not None and any(_NEEDS_ALL_NODES.search(str(question)) for question in same)
        outcomes = run_playbook(
            paths.PLAYBOOKS / "resolve.yml",
            questions,
            vault_password_files=vault_password_files,
            around=around() if around is not None and of_the_fleet else None,
        )
        return {
            node: answer
            for nodes in same.values()
            for answer in [_answer(nodes, questions[nodes[0]], outcomes.get(nodes[0]), where)]
            for node in nodes
        }


def _question(node: str, asked: Sequence[str], variables: Mapping[str, Any]) -> Hashable:
    """Return a key that is equal for nodes with the same answer."""
    own = {
        name: value for name, value in variables.items() if not name.startswith("ansible_") or name in asked
    }
    text = frozen(own)
    return (node if _OWN_TO_A_NODE.search(str(text)) else None, tuple(asked), text)


def _prepared(variables: Mapping[str, Any], asked: Sequence[str], answer: Path) -> dict[str, Any]:
    """Return a host's variables for a local run; aliases keep Ansible from using requested ones itself."""
    aliases = {f"resolve_{number}": variables[name] for number, name in enumerate(asked)}
    return {
        **variables,
        **aliases,
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "gpuprov_aliases": list(aliases),
        "gpuprov_names": list(asked),
        "gpuprov_answer": str(answer),
    }


def _answer(
    nodes: Sequence[str],
    question: Mapping[str, Any],
    outcome: Outcome | None,
    where: Callable[[str], str],
) -> dict[str, Any]:
    try:
        return dict(json.loads(Path(question["gpuprov_answer"]).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        reason = outcome.message if outcome is not None and outcome.message else "it did not answer"
        names = ", ".join(question["gpuprov_names"])
        places = ", ".join(filter(None, map(where, question["gpuprov_names"])))
        raise StackError(
            f"{f'{places}: '.removeprefix(': ')}{fold(nodes)}: Ansible cannot resolve {names}: {reason}",
            "correct it in the inventory",
        ) from None
