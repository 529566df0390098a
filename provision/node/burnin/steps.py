"""One step: the programs of a check, run in a child of the runner, their answer stored."""

import json
import os
import signal
import traceback

from provision.node.burnin.kernel_lines import OUT_OF_MEMORY
from provision.node.burnin.processes import foreign_of, holders_by_file, holders_in
from provision.node.burnin.spool import full
from provision.node.modules.gpuprov_run import boot_id, kernel_lines, kernel_log_delta, run_all, run_one

HOLDERS_DEADLINE = 15.0  # seconds
HOLDERS = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]


def guarded(function):
    """A function for a Worker: answers with JSON, also when it fails."""

    def run():
        try:
            answer = function()
        except Exception:
            answer = {"error": traceback.format_exc(limit=-3)[-1000:]}
        return json.dumps(answer).encode()

    return run


def run_step(spool, step, name, about, cap):
    """Run the step's programs and store what they printed as raw/`name`; the summary of it."""
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
    """What an event says of a step: its programs' seconds, those that failed, and those somebody killed."""
    own = [output for output in outputs[:-1] if not output["beside"]]
    said = outputs[-1]["stdout"]
    memory = [line for line in said.splitlines() if OUT_OF_MEMORY.search(line)]
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
    """Why a program did not do what it should, in words; empty when it ended with 0."""
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


def foreign_holders(ours):
    """Who holds a GPU beside `ours` (process ids): {"foreign": [[pid, name]]}, and how that was asked."""
    output = run_one({"name": "holders", "argv": HOLDERS, "deadline": HOLDERS_DEADLINE}, 65536)
    holders = holders_in(output["stdout"]) if output["rc"] == 0 else None
    answer = {"asked": "nvidia-smi"}
    if holders is None:
        # A hung or missing nvidia-smi must not let us in: the files that processes have open need no driver.
        holders = holders_by_file()
        said = trouble_of(output) or "its answer was not understood"
        answer = {"asked": "open files", "why": "nvidia-smi: %s" % said[:200]}
    mine = {os.getpid(), *ours}
    answer["foreign"] = foreign_of(holders, mine)
    return answer
