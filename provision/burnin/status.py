"""The progress of each node in a burn-in, from the node's answer (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.burnin.node_talk import Answer
from provision.burnin.timeline import SERIOUS
from provision.text import one_line


@dataclass(frozen=True)
class Status:
    """One node. `words`: for a person; `over`: nothing more will come; `done`: it came to an end of its own;
    `bad`: something went wrong on it; `holding`: the fleet segment it waits in."""

    node: str
    words: str
    alive: bool = False
    over: bool = False
    done: bool = False
    bad: bool = False
    holding: str = ""
    error: str = ""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "node": self.node,
            "status": self.words,
            "burning": self.alive and not self.over,
            "over": self.over,
            "trouble": self.bad,
            "error": self.error or None,
        }


def status(answer: Answer, campaign: str, refused: str = "") -> Status:
    """What one answer says of a burn-in."""
    if answer.error:
        return Status(answer.node, f"status unknown: {answer.error}", error=answer.error)
    if answer.campaign != campaign:
        has = f"has the burn-in {answer.campaign}" if answer.campaign else "has no burn-in"
        words = f"{has}; it was not started: {refused}" if refused else has
        return Status(answer.node, words, over=True, bad=True, error=words)
    said = answer.said
    alive, finished = answer.true("alive"), answer.true("finished")
    events = [event for event in said.get("events") or () if isinstance(event, Mapping)]
    last: Mapping[str, Any] = events[-1] if events else {}
    serious = [event for event in events if event.get("event") in SERIOUS]
    state = _mapping(said.get("state"))
    words = _where(state, said, alive=alive, finished=finished)
    if serious:
        words += f"; {one_line(str(serious[-1].get('event')), 30)}"
    elif not alive and not finished:
        words += f"; last: {one_line(str(last.get('event') or 'nothing'), 30)}"
    return Status(
        answer.node,
        words,
        alive=alive,
        over=finished or not alive,
        done=finished,
        bad=bool(serious) or (not alive and not finished),
        holding=one_line(str(said.get("holding") or ""), 64),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _where(state: Mapping[str, Any], said: Mapping[str, Any], *, alive: bool, finished: bool) -> str:
    """`day_one, round 3, gpu_burn`."""
    if finished:
        how = one_line(str(state.get("finished") or "done"), 20)
        return "done" if how == "done" else f"ended ({how})"
    names = _mapping(said.get("order")).get("segments")
    number = state.get("segment")
    place = "waiting"
    if isinstance(names, list) and type(number) is int and 0 <= number < len(names):
        place = f"{one_line(str(names[number]), 64)} ({number + 1} of {len(names)})"
        doing, run = _mapping(state.get("doing")), _mapping(state.get("doing")).get("round")
        if doing:
            number = run + 1 if isinstance(run, int) else 1
            place += f", {one_line(str(doing.get('check')), 64)}, run {number}"
        if state.get("begun") is False:
            place = f"waits for {place}"
    return place if alive else f"not running, stopped in {place}"
