"""A scheduler's programs on this machine: where they are, and how one is run to its end, or ended.

Arguments are lists; no shell is involved. A command that hangs is killed with all that it started. Part of
the programs scheduler_command and health_result: what holds for those holds here. A node's own health program
imports it.
"""

import os
import signal
import subprocess

FOLDERS = (
    "/usr/sbin",
    "/usr/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/slurm/sbin",
    "/opt/slurm/bin",
)
LIMIT = 2 * 1024 * 1024  # bytes kept of what one command printed


def run(words, folders, seconds):
    """`status`, `out` and `err` of a command; `problem` when it could not be run to its end."""
    answer = {"status": None, "out": "", "err": "", "problem": ""}
    path = program(words[0], folders)
    if path is None:
        return dict(answer, problem="%s is not installed" % words[0])
    try:
        child = subprocess.Popen(
            [path, *list(words[1:])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(folders),
            start_new_session=True,
        )
    except OSError as error:
        return dict(answer, problem="%s could not be started: %s" % (words[0], error.strerror))
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(child)
        return dict(answer, problem="%s gave no answer within %g s" % (words[0], seconds))
    answer.update(status=child.returncode, out=text(out), err=text(err))
    return answer


def end(child):
    """Kill a command that hangs, with all that it started. What waits in the kernel is left behind, and so is
    what has a session of its own and keeps our pipes open."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=1)
    except (OSError, subprocess.TimeoutExpired):
        pass
    for pipe in (child.stdout, child.stderr):
        pipe.close()
    child.poll()


def environment(folders):
    """What a site says to Slurm's commands by itself (SLURM_CONF: where its configuration is), and no more:
    SQUEUE_FORMAT and the like would change what is printed."""
    kept = {"LC_ALL": "C", "PATH": ":".join(folders)}
    if os.environ.get("SLURM_CONF"):
        kept["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return kept


def text(said):
    return said[:LIMIT].decode("utf-8", "replace")


def program(name, folders):
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return None
