"""One node's part of a campaign: segments in order, from the stored position on, and their steps.

The programs of a step run in a child of the runner.
"""

import json
import os
import signal
import time
import traceback

from provision.node.burnin.amd_gpus import amd_holders
from provision.node.burnin.order import STEP_CAP
from provision.node.burnin.processes import foreign_of, holders_by_file, holders_in
from provision.node.burnin.runner import Ending, Watch
from provision.node.burnin.spool import full
from provision.node.burnin.tool_output import OUT_OF_MEMORY
from provision.node.modules.gpuprov_run import boot_id, kernel_lines, kernel_log_delta, run_all, run_one

HOLDERS_DEADLINE = 15.0  # seconds
HOLDERS = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]


def guarded(function):
    """Wrap a function for a Worker: it answers with JSON, also on failure."""

    def run():
        try:
            answer = function()
        except Exception:
            answer = {"error": traceback.format_exc(limit=-3)[-1000:]}
        return json.dumps(answer).encode()

    return run


def run_step(spool, step, name, about, cap):
    """Run the step's programs, store their output as raw/`name`, and return a summary."""
    before = kernel_lines()
    outputs = run_all(step["commands"], cap)
    outputs.append(kernel_log_delta(before, cap))
    answer = dict(about, outputs=outputs, boot_id=boot_id(), boot_id_before=about["boot_id_before"])
    summary = summary_of(outputs)
    for last in (False, True):
        try:
            spool.write_raw(name, answer)
            summary["raw"] = "raw/" + name
            break
        except OSError as error:
            summary.update(raw=None, why="it could not be stored: %s" % (error.strerror or error))
            if last or not full(error) or not spool.give_reserve():
                break
    return summary


def summary_of(outputs):
    """Return a step's event fields: load seconds, failed programs, and programs killed by a signal."""
    own = [output for output in outputs[:-1] if not output["beside"]]
    kernel_log = outputs[-1]["stdout"]
    memory = [line for line in kernel_log.splitlines() if OUT_OF_MEMORY.search(line)]
    failed = [{"name": output["name"], "why": why} for output in own for why in [trouble_of(output)] if why]
    killed = [
        {"program": output["name"], "signal": -output["rc"], "out_of_memory": bool(memory)}
        for output in own
        if output["rc"] is not None and output["rc"] < 0 and not output["timed_out"]
    ]
    for one in killed:
        if memory:
            one["line"] = memory[-1][:300]
    return {
        "load_seconds": round(sum(output["seconds"] for output in own if not output["not_started"]), 3),
        "failed": failed,
        "killed": killed,
    }


def trouble_of(output):
    """Return why a program failed; empty for exit status 0."""
    if output["not_started"]:
        return output["not_started"]
    if output["timed_out"]:
        return "no end within its deadline"
    if output["rc"] is not None and output["rc"] < 0:
        try:
            return "killed by %s" % signal.Signals(-output["rc"]).name
        except ValueError:
            return "killed by signal %d" % -output["rc"]
    return "" if output["rc"] == 0 else "status %s" % output["rc"]


def foreign_holders(ours, vendor):
    """Return processes on the vendor's GPUs except `ours` ({"foreign": [[pid, name]]}), and the query."""
    mine = {os.getpid(), *ours}
    if vendor == "amd":
        holders, why = amd_holders()
        answer = {"asked": "open files", "why": why} if why else {"asked": "kfd"}
        answer["foreign"] = foreign_of(holders, mine)
        return answer
    output = run_one({"name": "holders", "argv": HOLDERS, "deadline": HOLDERS_DEADLINE}, 65536)
    holders = holders_in(output["stdout"]) if output["rc"] == 0 else None
    answer = {"asked": "nvidia-smi"}
    if holders is None:
        # A hung or missing nvidia-smi must not count as free GPUs; open files can be read without the driver.
        holders = holders_by_file()
        problem = trouble_of(output) or "its answer was not understood"
        answer = {"asked": "open files", "why": "nvidia-smi: %s" % problem[:200]}
    answer["foreign"] = foreign_of(holders, mine)
    return answer


STATE_FORMAT = 1
FOREIGN_TRIES = 3
FOREIGN_PAUSE = 5.0  # seconds; a program of this burn-in may still be ending
CHILD_GRACE = 20.0  # seconds in addition to a step's deadline


def fresh_state(order, boot):
    return {
        "format": STATE_FORMAT,
        "campaign": order["campaign"],
        "boot": boot,
        "boots": 1,
        "go_t": time.time(),
        "jumps": 0.0,
        "segment": 0,
        "round": 0,
        "step": 0,
        "begun": False,  # whether the segment has begun
        "spent": 0.0,  # seconds of the segment
        "number": 0,  # of steps so far
        "failed": 0,
        "doing": None,  # the running step
        "holding": "",
        "kernel_at": None,
        "abort": None,
        "finished": None,
        "cost": {"cpu_s": 0.0, "tools_cpu_s": 0.0, "wall_s": 0.0},
    }


class Campaign:
    """Runs the order from the stored position on."""

    def __init__(self, spool, order, order_sha, kept):
        self.spool, self.order, self.order_sha = spool, order, order_sha
        state = spool.read_state()
        self.first = state is None or state.get("format") != STATE_FORMAT
        self.state = fresh_state(order, spool.boot) if self.first else state
        self.watch = Watch(spool, order, self.state, kept)

    def run(self):
        """Run the whole order and return how it ended."""
        try:
            self._arrive()
            self.watch.start_sampler()
            while self.state["segment"] < len(self.order["segments"]):
                self._segment(self.order["segments"][self.state["segment"]])
                self._next_segment()
            ended = "done"
        except Ending as ending:
            ended = ending.ended
        self._leave(ended)
        return ended

    def _arrive(self):
        """Record the start or return of the runner, with anything that was cut off."""
        state, during = self.state, self._position()
        if self.first:
            self.spool.event("started", campaign=self.order["campaign"], order_sha=self.order_sha)
        elif state["boot"] != self.spool.boot:
            state.update(boot=self.spool.boot, boots=state["boots"] + 1, kernel_at=0.0)
            self.spool.event("booted", during=during)
        else:
            self.spool.event("resumed", during=during)
        state.update(doing=None, holding="", abort=None, finished=None)
        self.watch.keep()
        if state["boots"] - 1 > self.order["abort"]["reboots"]:
            self.watch.abort("reboots", state["boots"] - 1, "node")

    def _position(self):
        """Return the position for people: the running step, or the segment."""
        state, segments = self.state, self.order["segments"]
        if state["segment"] >= len(segments):
            return None
        position = {"segment": segments[state["segment"]]["name"], "round": state["round"]}
        if state["doing"]:
            position.update(state["doing"])
        return position if state["begun"] else None

    def _leave(self, ended):
        """End all processes of the burn-in, and record how it ended, unless it only pauses."""
        watch, state = self.watch, self.state
        if ended == "stopped":
            self.spool.event("stop", during=self._position())
        elif ended == "interrupted":
            self.spool.event("interrupted", during=self._position())
        watch.end_sampler()
        watch.leftovers()
        for name, value in watch.cost.items():
            state["cost"][name] = round(state["cost"].get(name, 0.0) + value, 3)
        if ended != "interrupted":
            state.update(finished=ended, holding="")
            self.spool.event(
                "finished",
                ended=ended,
                steps=state["number"],
                failed=state["failed"],
                sampler_cpu_seconds=state["cost"]["cpu_s"],
                tools_cpu_seconds=state["cost"]["tools_cpu_s"],
                wall_seconds=state["cost"]["wall_s"],
            )
            self.spool.give_reserve()
        watch.keep()

    # -- segments

    def _next_segment(self):
        self.state.update(segment=self.state["segment"] + 1, round=0, step=0, begun=False, spent=0.0)
        self.watch.spent_from = None
        self.watch.keep()

    def _segment(self, segment):
        watch, state = self.watch, self.state
        if not state["begun"]:
            self._wait_for_turn(segment)
        loads = bool(segment["steps"])
        if loads and self._foreign(segment):
            self._end_segment(segment, "foreign")
            return
        again = {"again": True} if state["begun"] else {}
        state["begun"] = True
        self.spool.event("segment", **dict(self._of(segment), kind=segment["kind"], **again))
        watch.begin_spending()
        watch.keep()
        outcome = self._steps(segment) if loads else self._idle(segment)
        self._end_segment(segment, outcome)

    def _of(self, segment):
        return {"name": segment["name"], "index": self.state["segment"], "round": self.state["round"]}

    def _end_segment(self, segment, outcome):
        seconds = round(self.watch.spend(), 3)
        self.spool.event("segment_end", outcome=outcome, seconds=seconds, **self._of(segment))

    def _wait_for_turn(self, segment):
        """Wait until the controller's plan lets this node's segment begin."""
        wait = segment["start_after_s"] - self.watch.since_go()
        if wait > 0:
            self.spool.event("waiting", name=segment["name"], seconds=round(wait, 1))
            self.watch.wait(wait, lambda: self.watch.since_go() >= segment["start_after_s"])

    def _idle(self, segment):
        """Wait until the segment's time is over or, between nodes, until the controller releases it."""
        watch, release = self.watch, self.spool.file("release-%d" % self.state["segment"])
        outcome = ["done"]
        holds = segment["kind"] == "fleet"
        if holds:
            self.state["holding"] = segment["name"]
            watch.keep()
            self.spool.event("hold", name=segment["name"], index=self.state["segment"])

        def enough():
            if holds and os.path.exists(release):
                outcome[0] = "released"
            elif self._late(0.0):
                outcome[0] = "time"
            return outcome[0] != "done"

        watch.wait(max(0.0, segment["seconds"] - self.state["spent"]), enough)
        self.state["holding"] = ""
        return outcome[0]

    def _late(self, seconds):
        """Return whether `seconds` more would exceed this node's time."""
        end = self.order["end_by_s"]
        return end is not None and self.watch.since_go() + seconds > end

    def _steps(self, segment):
        """Run the steps in order, for the segment's rounds or time."""
        state = self.state
        while True:
            while state["step"] < len(segment["steps"]):
                if segment["seconds"] is not None and self.watch.spend() >= segment["seconds"]:
                    return "done"
                step = segment["steps"][state["step"]]
                if self._late(step["deadline"]):
                    self._end_segment(segment, "time")
                    raise Ending("time")
                self._step(segment, step)
            if segment["repeat"] is not None and state["round"] + 1 >= segment["repeat"]:
                return "done"
            state.update(round=state["round"] + 1, step=0)
            if self._foreign(segment):
                return "foreign"

    # -- steps

    def _step(self, segment, step):
        state, watch = self.state, self.watch
        if not watch.room.steps():
            self.spool.event("space", what="steps", stopped=True, room=watch.room.said())
            raise Ending("space")
        state["number"] += 1
        position = {"check": step["check"], "segment": segment["name"], "round": state["round"]}
        position["n"] = state["number"]
        state.update(doing=position, step=state["step"] + 1)
        watch.keep()
        self.spool.event("step", **position)
        name = "%06d-%s.json.gz" % (state["number"], step["check"])
        about = dict(position, boot_id_before=self.spool.boot)
        began = time.monotonic()
        limit = step["deadline"] + CHILD_GRACE
        work = guarded(lambda: run_step(self.spool, step, name, about, STEP_CAP))
        answer = watch.in_child(work, limit)
        seconds = round(time.monotonic() - began, 3)
        if answer is None:
            late = seconds >= limit
            why = "no end within %d s" % limit if late else "the process that ran it was killed"
            answer = {"raw": None, "why": why, "load_seconds": 0.0, "failed": [], "killed": []}
            if not late:
                self.spool.event("killed", program="step", signal=signal.SIGKILL, **position)
        elif "error" in answer:
            self.spool.event("error", text=answer["error"], **position)
            answer = {"raw": None, "why": "the step failed by itself", "load_seconds": 0.0}
        self._after(position, answer, seconds)

    def _after(self, place, answer, seconds):
        state = self.state
        for one in answer.pop("killed", ()):
            self.spool.event("killed", **dict(one, **place))
        self.spool.event("step_end", **dict(answer, seconds=seconds, **place))
        state["doing"] = None
        if answer.get("failed") or answer.get("raw") is None:
            state["failed"] += 1
            most = self.order["abort"]["failed_steps"]
            if most is not None and state["failed"] >= most:
                self.watch.abort("failed_steps", state["failed"], "node")
        self.watch.keep()
        self.watch.tick()

    def _foreign(self, segment):
        """Return whether a foreign program holds a GPU, with retries, since an own one may be ending."""
        for left in reversed(range(FOREIGN_TRIES)):
            ours, vendor = self.watch.ours(), self.order["vendor"]
            answer = self.watch.in_child(guarded(lambda: foreign_holders(ours, vendor)), 60.0)  # noqa: B023
            holders = (answer or {}).get("foreign") or []
            if not holders:
                self._say_unasked(segment, answer)
                return False
            if left:
                self.watch.wait(FOREIGN_PAUSE)
        for pid, name in holders[:8]:
            self.spool.event("foreign", pid=pid, name=name[:80], segment=segment["name"])
        return True

    def _say_unasked(self, segment, answer):
        """Record an event if the driver could not list the holders of the GPUs."""
        why = (answer or {"why": "nobody answered"}).get("why") or (answer or {}).get("error")
        if why:
            self.spool.event("unasked", what="who holds the GPUs", why=why, segment=segment["name"])
