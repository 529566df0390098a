"""Scheduler programs on this machine: their paths, and how to run one and end it if it hangs.

Arguments are lists; no shell is involved. A command that hangs is killed with all its children. This is part
of the programs scheduler_command and health_result, and their rules apply here. The node's health program
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
LIMIT = 2 * 1024 * 1024  # bytes kept of one command's output


def run(words, folders, seconds):
    """Run a command: `status`, `out` and `err`; `problem` if it could not be run to its end."""
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
    """Kill a hung command and its process group; leave processes stuck in the kernel behind.

    The same holds for processes in a separate session, which may keep the pipes open."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=1)
    except (OSError, subprocess.TimeoutExpired):
        pass
    for pipe in (child.stdout, child.stderr):
        pipe.close()
    child.poll()


def environment(folders):
    """Return PATH and the site's SLURM_CONF only: SQUEUE_FORMAT and the like would change the output."""
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
