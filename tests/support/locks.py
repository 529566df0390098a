"""Locks of nodes that exist only in a test, answered as provision/node/lock.py would."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.remote.protocol import NodeError, unreachable

_TOLD = ("run", "node", "who", "since", "verb")


@dataclass
class NodeLocks:
    """Fake locks of nodes. `holders`: node → holder; `asked`: each operation with its node.
    `clock`: seconds by which node clocks are ahead; `silent`: nodes that do not answer the release."""

    holders: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    clock: float = 0.0
    silent: frozenset[str] = frozenset()

    def programs(
        self, _nodes: Any, texts: Mapping[str, str], **_options: Any
    ) -> dict[str, bytes | NodeError]:
        """Replace provision.remote.reach.observe.run_programs."""
        return {node: self._answer(node, text.rpartition("main(dict(")[2]) for node, text in texts.items()}

    def _answer(self, node: str, call: str) -> bytes | NodeError:
        asked = dict(re.findall(r"(\w+)='([^']*)'", call))
        before = re.findall(r"'([^']*)'", call.partition("before=[")[2].partition("]")[0])
        if node in self.silent and asked["op"] == "release":
            return unreachable("no route to host")
        holder = self.holders.get(node)
        self.asked.append((asked["op"], node))
        ours = holder is None or holder["run"] in (asked["run"], *before) or "force=True" in call
        if ours and asked["op"] == "release":
            self.holders.pop(node)
        elif ours:
            self.holders[node] = {name: asked[name] for name in _TOLD}
        state = "taken" if ours else "held"
        said: dict[str, Any] = {"state": state, "holder": holder, "age": 1.0, "busy": [], "problem": ""}
        body = json.dumps(said | {"time": time.time() + self.clock}).encode()
        return b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end\n" % (len(body), body)
