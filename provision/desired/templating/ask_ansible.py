"""Resolution of variables by Ansible itself, through playbooks/resolve.yml; it changes no node."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision import paths
from provision.desired.templating.render_cache import frozen
from provision.errors import StackError
from provision.node_names import fold
from provision.remote.ansible import handover
from provision.remote.ansible.events import Outcome

# Templates that mention one of these mean another value on every node: none can answer for another.
_OWN_TO_A_NODE = re.compile(r"inventory_hostname|ansible_|hostvars|group_names")
# Templates that mention one of these need to be told of all nodes.
_OF_THE_FLEET = re.compile(r"\b(?:groups|group_names|hostvars)\b")
Run = Callable[..., dict[str, Outcome]]


def values(
    hosts: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, Sequence[str]],
    vault_password_files: Sequence[Path],
    run: Run | None = None,
    around: Callable[[], handover.Around] | None = None,
    where: Callable[[str], str] = lambda _name: "",
) -> dict[str, dict[str, Any]]:
    """The values of `wanted` (node → names) given each node's variables. Equal nodes are asked once. `around`
    tells of the whole inventory, and is called if a template may speak of it. `where`: name → the place it is
    written at, for errors.

    Raises StackError with Ansible's words when it cannot say. `run` stands in for the runner in tests.
    """
    if run is None:
        from provision.remote.ansible.runner import run_playbook

        run = run_playbook
    same: dict[Hashable, list[str]] = {}
    for node, asked in wanted.items():
        same.setdefault(_question(node, asked, hosts[node]), []).append(node)
    with handover.private_folder() as folder:
        questions = {
            nodes[0]: _prepared(hosts[nodes[0]], wanted[nodes[0]], folder / f"answer-{number}.json")
            for number, nodes in enumerate(same.values())
        }
        of_the_fleet = around is not None and any(_OF_THE_FLEET.search(str(question)) for question in same)
        outcomes = run(
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
    """Equal for nodes of which one can answer for all."""
    own = {
        name: value for name, value in variables.items() if not name.startswith("ansible_") or name in asked
    }
    text = frozen(own)
    return (node if _OWN_TO_A_NODE.search(str(text)) else None, tuple(asked), text)


def _prepared(variables: Mapping[str, Any], asked: Sequence[str], answer: Path) -> dict[str, Any]:
    """The variables of a host that answers here. What is asked has an alias, lest Ansible use it."""
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
        asked = ", ".join(question["gpuprov_names"])
        places = ", ".join(filter(None, map(where, question["gpuprov_names"])))
        raise StackError(
            f"{f'{places}: '.removeprefix(': ')}{fold(nodes)}: Ansible cannot resolve {asked}: {reason}",
            "correct it in the inventory",
        ) from None
