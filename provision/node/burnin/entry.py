"""Entry point of `python3 -I -S program burnin SPOOL [check]`."""

import hashlib
import json
import os
import subprocess
import traceback

from provision.node.burnin.campaign import Campaign, foreign_holders
from provision.node.burnin.order import OrderError, read_order
from provision.node.burnin.processes import UNIT, in_unit, locked
from provision.node.burnin.spool import MEBI, Spool

UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_LINK = "/etc/systemd/system/multi-user.target.wants/" + UNIT


def take_lock(folder, seconds=0.0):
    """Return a handle with the lock of this node's burn-in; None if another holds it for `seconds`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if locked(handle, seconds):
        return handle
    os.close(handle)
    return None


def remove_unit():
    """Remove the unit, so that nothing starts at the next boot; does nothing outside the unit."""
    if not in_unit():
        return
    for path in (UNIT_LINK, UNIT_FILE):
        try:
            os.unlink(path)
        except OSError:
            continue
    systemctl(["daemon-reload"])


def systemctl(words, seconds=30.0):
    """Run systemctl and return (status, output), or (None, reason) if it did not start or end in time."""
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


ORDER_MOST = 16 * 1024 * 1024  # bytes
LOCK_PATIENCE = 15.0  # seconds; the previous runner may still be ending


def burnin(arguments):
    """Run the campaign of the given spool, or print a refusal for `check`; return the exit status."""
    os.umask(0o077)
    spool = Spool(os.path.abspath(arguments[0]))
    if arguments[1:] == ["check"]:
        print(json.dumps({"refused": refusal(spool)}))
        return 0
    try:
        return run_campaign(spool)
    except Exception:
        spool.event("error", text=traceback.format_exc()[-2000:])
        return 1


def run_campaign(spool):
    order, sha = order_of(spool)
    lock = take_lock(os.path.dirname(spool.path), LOCK_PATIENCE)
    if lock is None:
        spool.event("refused", why="another burn-in runs on this node")
        return 0
    spool.prepare()
    state = spool.read_state() or {}
    if state.get("finished") and (state["finished"] != "stopped" or os.path.exists(spool.file("stop"))):
        remove_unit()  # a crash came between the last event and this
        return 0
    ended = Campaign(spool, order, sha, [lock]).run()
    if ended == "interrupted":
        # After an interrupt by systemd (shutdown) it continues at the next boot; otherwise at once.
        return (
            0 if systemctl(["show", "-p", "ActiveState", UNIT], 5.0)[1] == "ActiveState=deactivating" else 1
        )
    remove_unit()
    return 0


def order_of(spool):
    """Return (the order, the SHA-256 of its file). Raises OrderError."""
    try:
        with open(spool.file("order.json"), "rb") as source:
            data = source.read(ORDER_MOST + 1)
    except OSError as error:
        raise OrderError("order.json cannot be read: %s" % error.strerror) from None
    if len(data) > ORDER_MOST:
        raise OrderError("order.json is larger than %d MiB" % (ORDER_MOST // MEBI))
    order = read_order(data.decode("utf-8", "replace"))
    if order["campaign"] != os.path.basename(spool.path):
        raise OrderError("campaign is %s, its folder is %s" % (order["campaign"], spool.path))
    return order, hashlib.sha256(data).hexdigest()


def refusal(spool):
    """Return why this campaign cannot begin here now, in one line; empty if it can."""
    try:
        order, _ = order_of(spool)
    except OrderError as error:
        return "the order is not understood: %s" % error
    lock = take_lock(os.path.dirname(spool.path))
    if lock is None:
        return "another burn-in runs on this node"
    os.close(lock)
    free = spool.free() / MEBI
    if free < order["space_mib"]:
        return "%.0f MiB are free for the spool, %.0f MiB are needed" % (free, order["space_mib"])
    if any(segment["steps"] for segment in order["segments"]):
        holders = foreign_holders((), order["vendor"])["foreign"]
        if holders:
            return "a GPU is in use: " + ", ".join(
                "%s (pid %d)" % (name[:80], pid) for pid, name in holders[:8]
            )
    return ""
