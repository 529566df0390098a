"""The program that reads a node's newest health result, and the state of the node in its scheduler.

It prints one framed line or, for a follower, one for each change of the result. The controller sends this
text, followed by a call of `main`, to `python3 -I -S -`, like the program that observes. It changes nothing.
The result is the file that the node's health program writes; it is read only if root alone can have written
it. The controller judges its content.

Standard library only, Python 3.6 syntax. Ansible may template the text on its way: no two characters in it
may open a template.
"""

import errno
import os
import stat

from provision.node.scheduler_programs import FOLDERS, program, run

HEALTH_FOLDER = "/run/gpuprov"
HEALTH_FILE = "health.json"
HEALTH_LIMIT = 256 * 1024  # bytes
BOOTTIME = 7  # CLOCK_BOOTTIME of <linux/time.h>, which has no name in Python 3.6
LOOK = 0.5  # seconds between two checks of the result, for a follower
ALIVE = 15.0  # seconds without a line after which a sign of life is printed
AGAIN = 60.0  # seconds after which an unchanged result is printed again, since it ages
SLURM_SECONDS = 5
SLURM_LIMIT = 16 * 1024  # characters kept of scontrol's output


class ResultError(Exception):
    """Why there is no trustworthy result: `absent`, `refused` or `unreadable`, and the details."""


def main(request):
    if request.get("follow"):
        follow(request)
    else:
        print(framed(request))


def follow(request):
    """Print the result now, on each change, and every AGAIN seconds, until the reader is gone."""
    import select
    import signal
    import sys
    import time

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    reader = select.poll()
    reader.register(1, 0)  # reports only a hang-up: sshd sends no signal to a program without a terminal
    path = os.path.join(request.get("folder", HEALTH_FOLDER), HEALTH_FILE)
    while True:
        # Checked before the file is read, so that a change in between is noticed the next time.
        current = version(path)
        print(framed(request), flush=True)
        last_line = answered = time.monotonic()
        while version(path) == current and time.monotonic() - answered < AGAIN:
            if reader.poll(LOOK * 1000):
                sys.exit()
            if time.monotonic() - last_line >= ALIVE:
                last_line = time.monotonic()
                print("@gpuprov-alive", flush=True)


def version(path):
    """Return a key that differs between versions of a file; the health program renames each into place."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_uid, status.st_mode


def framed(request):
    import json
    import time

    answer = {"uid": os.geteuid(), "problem": "", "detail": "", "health": "", "written": None, "slurm": None}
    try:
        text, answer["written"] = health_text(request.get("folder", HEALTH_FOLDER), request.get("owner", 0))
        answer["health"] = encoded(text, request.get("bytes"))
    except ResultError as error:
        answer["problem"], answer["detail"] = error.args
    if request.get("scheduler"):
        answer["slurm"] = slurm(request.get("slurm", FOLDERS))
    with open("/proc/sys/kernel/random/boot_id") as file:
        answer["boot_id"] = file.read(64).strip()
    answer["uptime"] = time.clock_gettime(BOOTTIME)
    body = json.dumps(answer)
    return "@gpuprov-facts 1 %d\n%s\n@gpuprov-end" % (len(body), body)


def health_text(place, owner):
    """Return the bytes of the result, and when it was written by the node's wall clock (for people only)."""
    path = os.path.join(place, HEALTH_FILE)
    with Opened(place, os.O_DIRECTORY) as folder:
        trusted(place, os.fstat(folder), owner)
        # O_NONBLOCK: a pipe in its place must not block.
        with Opened(path, os.O_NONBLOCK, HEALTH_FILE, folder) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise ResultError("refused", "%s is not a regular file" % path)
            trusted(path, status, owner)
            text = b""
            while len(text) <= HEALTH_LIMIT:
                more = os.read(file, HEALTH_LIMIT + 1 - len(text))
                if not more:
                    return text, status.st_mtime
                text += more
    raise ResultError("refused", "%s is larger than %d KiB" % (path, HEALTH_LIMIT // 1024))


class Opened:
    """A file or a folder, opened for reading, and not through a symbolic link."""

    def __init__(self, path, flags, name=None, folder=None):
        try:
            self.number = os.open(
                name or path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder
            )
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise ResultError("absent", "") from None
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                kind = "not a folder" if flags & os.O_DIRECTORY else "a symbolic link"
                raise ResultError("refused", "%s is %s" % (path, kind)) from None
            why = os.strerror(error.errno).lower()
            raise ResultError("unreadable", "%s: %s" % (path, why)) from None

    def __enter__(self):
        return self.number

    def __exit__(self, *_):
        os.close(self.number)


def trusted(path, found, owner):
    if found.st_uid != owner:
        raise ResultError("refused", "%s belongs to uid %d, not to root" % (path, found.st_uid))
    if found.st_mode & 0o022:
        raise ResultError("refused", "%s can be written to by others than root" % path)


def encoded(text, limit):
    """Return the bytes as short ASCII text; findings are repetitive and compress well."""
    import binascii
    import zlib

    body = binascii.b2a_base64(zlib.compress(text), newline=False).decode("ascii")
    if limit and len(body) > limit:
        raise ResultError("refused", "it is too large to come through Ansible (%d KiB)" % (len(body) // 1024))
    return body


def slurm(folders):
    """Return Slurm's `name` of this node, scontrol's `text` and a `problem`; None without slurmd."""
    if program("slurmd", folders) is None:
        return None
    name = os.uname().nodename.partition(".")[0]
    done = run(["scontrol", "show", "node", name], folders, SLURM_SECONDS)
    answer = {"name": name, "text": (done["out"] + done["err"])[:SLURM_LIMIT], "problem": done["problem"]}
    if done["status"]:
        answer["problem"] = "scontrol ended with status %d" % done["status"]
    return answer
