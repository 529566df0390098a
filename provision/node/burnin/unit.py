"""What keeps the program alive and alone on its node: the systemd unit, and the lock."""

import fcntl
import os
import subprocess

from provision.node.burnin.processes import UNIT, in_unit

UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_LINK = "/etc/systemd/system/multi-user.target.wants/" + UNIT


def take_lock(folder):
    """The lock of this node's burn-in: a handle on its folder; None when another program has it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def remove_unit():
    """Take the unit away: nothing starts again at the next boot. By hand there is none of ours."""
    if not in_unit():
        return
    for path in (UNIT_LINK, UNIT_FILE):
        try:
            os.unlink(path)
        except OSError:
            continue
    systemctl(["daemon-reload"])


def systemctl(words, seconds=30.0):
    """(status, what it printed); (None, why) when it could not be asked."""
    try:
        done = subprocess.run(
            ["systemctl", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()
