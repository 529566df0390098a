"""The program that runs commands of a scheduler (`scontrol`, `squeue`), one after the other, and prints what
came of each in one framed line. It runs on the scheduler's host, or on the controller itself.

Arguments are lists; no shell is involved. A command that hangs is killed with all that it started. Standard
library only, Python 3.6 syntax. Ansible may template the text on its way: no two characters in it may open a
template.
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
SECONDS = 30  # for one command: longer than Slurm itself waits for its controller (MessageTimeout, 10)


def main(request):
    import binascii
    import json
    import zlib

    folders = request.get("folders") or FOLDERS
    done = []
    for words in request["commands"]:
        one = run(words, folders, request.get("seconds") or SECONDS)
        done.append(one)
        if one["problem"]:
            break  # it is not there, or hangs: the next would, too
    body = zlib.compress(json.dumps(done).encode("ascii"))
    body = json.dumps({"uid": os.geteuid(), "done": binascii.b2a_base64(body, newline=False).decode("ascii")})
    print("@gpuprov-facts 1 %d\n%s\n@gpuprov-end" % (len(body), body), flush=True)


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
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return dict(answer, problem="%s gave no answer within %g s" % (words[0], seconds))
    answer.update(status=child.returncode, out=text(out), err=text(err))
    return answer


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
