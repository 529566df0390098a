"""roles/*/expect.yml + variables → the expectations of a node. The format is docs/facts.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expectation:
    """One fact a role promises.

    `operator` is one of equals, version, at_least, one_of, contains, matches, template (see docs/facts.md);
    `value` is what it compares with, rendered. `reboot`: if it still does not hold after the role ran, a reboot is
    what makes it hold.
    """

    role: str
    fact: str
    operator: str
    value: Any
    why: str
    reboot: bool = False

    def holds(self, found: Any) -> bool:
        """Whether an observed value satisfies it. A fact that was not observed (None) satisfies only `equals: null`."""
        raise NotImplementedError


def roles_in_order() -> tuple[str, ...]:
    """Every shipped role that has an expect.yml, in the order playbooks/up.yml applies them."""
    raise NotImplementedError


def of_node(declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any]) -> list[Expectation]:
    """What must be true of a node, given its declared variables and what it is. Raises StackError on a bad template."""
    raise NotImplementedError


def facts_to_ask(declared: Mapping[str, Any]) -> frozenset[str]:
    """Every fact name any supported OS and hardware could need: asked before we know what the node is."""
    raise NotImplementedError


def resolve_with_ansible(names: Sequence[str]) -> None:
    """Placeholder: variables plain Jinja2 cannot resolve are resolved by asking Ansible once for those nodes."""
    raise NotImplementedError
