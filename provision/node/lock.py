"""The program that takes, renews and releases the lock of a node; prints one framed line.

The controller sends this text, followed by a call of `main`, to `python3 -I -S -`, like the program that
observes. The lock is one small file in /run, which a reboot clears, with its holder and the time of the last
confirmation by the node's clock since boot, so that no wall clock matters. It is advisory and used by gpuprov
only. A burn-in needs no file: a running one is reported to anyone who requests the lock.

Any user can lock a file (flock) that they can open for reading. So the files that gpuprov locks are in a
private folder of root, within a folder that everyone may read.

Standard library only, Python 3.6 syntax. Ansible may template the text on its way: no two characters in it
may open a template.
"""

import os

LOCK_FOLDER = "/run/gpuprov"
BURNIN_UNIT = "gpuprov-burnin.service"  # as in provision/node/modules/gpuprov_burnin.py
BURNIN_UNIT_FILE = "/etc/systemd/system/" + BURNIN_UNIT
BURNIN_HOME = "/var/lib/gpuprov/burnin"
MARK = b"GPUPROV_RUN="  # in the environment of gpuprov's Ansible processes on a node (playbooks/up.yml)
WAIT = 10.0  # seconds for another controller with a request at the same moment
MOST = 20  # processes listed
ENDING = 8.0  # seconds for processes of the run to end after its lock is released


class LockError(Exception):
    """Why the lock cannot be read: one line."""


def main(request):
    import json
    import subprocess

    answer = {"state": "", "holder": None, "age": None, "busy": [], "time": 0.0, "problem": ""}
    try:
        answer.update(lock_operation(request))
        if answer["state"] == "released":
            answer["busy"] = still_running(request.get("ending", ENDING))
    except (LockError, OSError, ValueError, subprocess.SubprocessError) as error:
        answer["problem"] = str(error) or type(error).__name__
    body = json.dumps(answer)
    print("@gpuprov-facts 1 %d\n%s\n@gpuprov-end" % (len(body), body), flush=True)


def lock_operation(request):
    import fcntl
    import time

    folder = private_folder(request.get("folder", LOCK_FOLDER))
    guard = os.open(os.path.join(folder, "guard"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        wait_for(lambda: fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB), WAIT)
        path = os.path.join(folder, "lock")
        held = read_lock(path)
        now = time.monotonic()
        age = None if held is None else now - held["confirmed"]
        state = decide(request, held, age)
        if request["op"] == "take" and state in ("taken", "mine") and not request.get("force"):
            burnin = burning(request)
            if burnin is not None and burnin["run"] not in {request["run"], *request.get("before", ())}:
                return {"state": "held", "holder": burnin, "age": 0.0, "busy": [], "time": time.time()}
        if state in ("taken", "mine") and request["op"] != "release":
            write_lock(path, request, held if state == "mine" else None, now)
        if state == "mine" and request["op"] == "release":
            os.unlink(path)
            state = "released"
        busy = processes() if request["op"] == "take" else []
        return {"state": state, "holder": told(held), "age": age, "busy": busy, "time": time.time()}
    finally:
        os.close(guard)


def decide(request, held, age):
    """Return taken (free, expired, forced), mine, twin (mine by another node name), held or not ours."""
    if request["op"] == "release":
        return "mine" if held is not None and held["run"] == request["run"] else "not ours"
    if held is None:
        return "taken"
    if held["run"] == request["run"]:
        return "mine" if held["node"] == request["node"] else "twin"
    if held["run"] in request.get("before", ()):
        return "taken"
    # A clock since boot that went back: the file is from another boot.
    if age < 0 or age > held["lease"]:
        return "taken"
    if request["op"] == "take" and request.get("force"):
        return "taken"
    return "held"


def private_folder(folder):
    """Create `folder`, readable for all, and in it a private folder of root, which is returned.

    The modes are set each time, since the first program may have created them under another umask."""
    import stat

    private = os.path.join(folder, "private")
    for path, mode in ((folder, 0o755), (private, 0o700)):
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            pass
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise LockError("%s is not a folder that root alone may change" % path)
        os.chmod(path, mode)
    return private


def wait_for(action, seconds):
    import time

    end = time.monotonic() + seconds
    while True:
        try:
            return action()
        except (BlockingIOError, PermissionError):
            if time.monotonic() > end:
                raise LockError("another program keeps the guard for more than %d s" % seconds) from None
            time.sleep(0.1)


def read_lock(path):
    """Return the stored lock; None if there is no valid one."""
    import json

    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        text = os.read(file, 65536).decode("utf-8", "replace")
    finally:
        os.close(file)
    try:
        held = json.loads(text)
        held["confirmed"] = float(held["confirmed"])
        held["lease"] = float(held["lease"])
        if not all(isinstance(held[name], str) for name in ("run", "node", "who", "since")):
            return None
    except (ValueError, TypeError, KeyError):
        return None
    return held


def told(held):
    if held is None:
        return None
    return dict(
        {name: held[name] for name in ("run", "node", "who", "since")}, verb=str(held.get("verb", "up"))
    )


def burning(request):
    """Return a running burn-in in the form of a lock's holder; None without one."""
    import json
    import re
    import subprocess

    root = request.get("root", "")
    try:
        with open(root + BURNIN_UNIT_FILE) as file:
            match = re.search(r"^Description=gpuprov burn-in ([\w.-]+)$", file.read(65536), re.MULTILINE)
    except OSError:
        return None
    if not match:
        return None
    words = ["systemctl", "show", "--property=ActiveState", BURNIN_UNIT]
    state = subprocess.check_output(words, stderr=subprocess.DEVNULL, timeout=30).decode("ascii", "replace")
    if state.strip().partition("=")[2] not in ("active", "activating", "deactivating", "reloading"):
        return None
    about = {}
    try:
        with open("%s%s/%s/order.json" % (root, BURNIN_HOME, match.group(1))) as file:
            about = dict(json.load(file)["about"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it burns in, even if its origin is unknown
    holder = {"run": match.group(1), "node": request["node"], "verb": "burnin"}
    who, since = about.get("who") or "somebody", about.get("since") or "some time"
    return dict(holder, who=str(who), since=str(since))


def write_lock(path, request, before, now):
    import json

    fresh = {name: request[name] for name in ("run", "node", "who", "since", "lease", "verb")}
    if before is not None:
        fresh["since"] = before["since"]
    fresh["confirmed"] = now
    beside = path + ".new"
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(file, json.dumps(fresh).encode())
    finally:
        os.close(file)
    os.rename(beside, path)


def still_running(seconds):
    """Return processes that still run after these seconds; interrupted runs end once their lock is gone."""
    import time

    end = time.monotonic() + seconds
    while True:
        running = processes()
        if not running or time.monotonic() > end:
            return running
        time.sleep(0.2)


def real_user(pid):
    with open("/proc/%s/status" % pid) as file:
        return next((int(line.split()[1]) for line in file if line.startswith("Uid:")), None)


def processes():
    """Return processes of an earlier run's Ansible on this node: `1234 apt-get`, sorted by pid.

    Its tasks run as root or as the login user. Any other user may set the mark in an environment as well,
    also in that of a setuid program, which then runs as root."""
    import stat

    trusted = {0, os.geteuid(), int(os.environ.get("SUDO_UID", "0"))}
    running = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                environment = file.read(1 << 20)
            if any(entry.startswith(MARK) for entry in environment.split(b"\0")):
                if real_user(name) not in trusted or os.stat("/proc/%s/exe" % name).st_mode & stat.S_ISUID:
                    continue
                with open("/proc/%s/comm" % name) as file:
                    running.append((int(name), file.read(64).strip()))
        except OSError:
            continue  # it has ended meanwhile
    return ["%d %s" % entry for entry in sorted(running)[:MOST]]
