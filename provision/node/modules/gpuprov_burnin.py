#!/usr/bin/python
"""Ansible module that starts, watches, collects, stops and removes a burn-in on a node.

The burn-in itself is the program of provision/node/burnin/, which this module writes to the spool and starts
through systemd without waiting for it. Every call returns within seconds, with a result of bounded size.
"""

DOCUMENTATION = r"""
module: gpuprov_burnin
short_description: Start, watch, collect, stop and remove a burn-in
description:
  - A burn-in runs under the unit C(gpuprov-burnin.service); its spool is C(/var/lib/gpuprov/burnin/CAMPAIGN).
  - A refused start (another burn-in, a GPU in use, no space, an invalid order) is a result, not a failure.
options:
  state:
    description: The action. C(release) ends the wait of a fleet segment.
    type: str
    required: true
    choices: [start, status, collect, stop, release, remove]
  campaign:
    description: Name of the campaign; if empty, the newest campaign on the node.
    type: str
    default: ""
  order:
    description: With C(start), the order as JSON text, plain or packed (base64 of zlib).
    type: str
    default: ""
  runner:
    description: With C(start), the packed program.
    type: str
    default: ""
  offsets:
    description: With C(collect), how many bytes of each file the caller has, as JSON text, plain or packed.
    type: str
    default: ""
  limit:
    description: With C(collect), the maximum number of bytes per call, before compression.
    type: int
    default: 4194304
  segment:
    description: With C(release), the name of the waiting segment.
    type: str
    default: ""
  timeout:
    description: Timeout in seconds for starting or stopping the unit.
    type: float
    default: 90
author: the gpuprov authors
"""

EXAMPLES = r"""
- name: Show the progress of the newest burn-in
  gpuprov_burnin:
    state: status
"""

RETURN = r"""
gpuprov:
  description: The result, always with C(now), C(up) and C(boot), the node's clocks and its boot id.
  returned: always
  type: dict
"""

import base64  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import zlib  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

HOME = "/var/lib/gpuprov/burnin"
UNIT = "gpuprov-burnin.service"
UNIT_FOLDER = "/etc/systemd/system"
WANTS = "multi-user.target.wants"
CAMPAIGN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
COLLECTED = re.compile(
    r"(events\.jsonl|order\.json|state\.json|raw/[\w.-]+\.json\.gz|telemetry/[\w.-]+\.csv)\Z"
)
WHOLE = ("state.json", "order.json")
PACKED = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}\Z")
LAST_EVENTS = 20
EVENT_BYTES = 65536
BOOTTIME = 7  # CLOCK_BOOTTIME; the time module names it only since Python 3.7
# OOMPolicy: a step that is killed for lack of memory must not end the whole unit. The runner may fail ten
# times an hour; a program stuck in the kernel delays a stop by at most two stop timeouts.
SERVICE = """\
[Unit]
Description=gpuprov burn-in {campaign}
Documentation=file:{spool}
ConditionPathExists={spool}/order.json
After=network.target nvidia-persistenced.service nvidia-fabricmanager.service
StartLimitIntervalSec=3600
StartLimitBurst=10

[Service]
Type=simple
ExecStart={python} -I -S {spool}/program burnin {spool}
WorkingDirectory=/
Restart=on-failure
RestartSec=2
KillMode=control-group
TimeoutStopSec=30
OOMPolicy=continue
LimitMEMLOCK=infinity
TasksMax=infinity
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "required": True,
                "choices": list(STATES),
            },
            "campaign": {"type": "str", "default": ""},
            "order": {"type": "str", "default": ""},
            "runner": {"type": "str", "default": ""},
            "offsets": {"type": "str", "default": ""},
            "limit": {"type": "int", "default": 4 * 1024 * 1024},
            "segment": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 90.0},
        },
        supports_check_mode=False,
    )
    options = dict(module.params)
    try:
        options["order"] = unpacked(options["order"])
        options["runner"] = unpacked(options["runner"])
        options["offsets"] = json.loads(unpacked(options["offsets"] or "{}").decode("utf-8"))
        if options["campaign"] and not CAMPAIGN.match(options["campaign"]):
            raise ValueError("campaign %.60r is no name of one" % options["campaign"])
        changed, answer = STATES[options["state"]](options)
    except (OSError, ValueError) as error:
        module.fail_json(msg="%s: %s" % (options["state"], error))
    answer.update(now=time.time(), up=time.clock_gettime(BOOTTIME), boot=boot_id())
    module.exit_json(changed=changed, gpuprov=answer)


# --- start ---


def start(wanted):
    data = wanted["order"]
    campaign = campaign_of(data)
    if not wanted["runner"]:
        raise ValueError("runner is empty: the program is missing")
    state = read_json(os.path.join(HOME, campaign, "state.json"))
    if runs():
        running = newest()
        if running == campaign:
            return False, {"started": True, "already": True, "campaign": campaign}
        return False, refused("the burn-in %s runs on this node" % running, running)
    if finished(state):
        return False, {"started": True, "already": True, "campaign": campaign}
    spool = os.path.join(HOME, campaign)
    resumed = os.path.exists(os.path.join(spool, "order.json"))
    make_home()
    os.makedirs(spool, mode=0o700, exist_ok=True)
    try:
        if not resumed:
            put(os.path.join(spool, "order.json"), data)
        put(os.path.join(spool, "program"), wanted["runner"])
        why = check(spool)
    except OSError as error:
        why = "the spool cannot be written: %s" % error
    if why:
        if not resumed:
            shutil.rmtree(spool, ignore_errors=True)
        return False, refused(why)
    forget(os.path.join(spool, "stop"))
    why = start_unit(campaign, spool, wanted["timeout"])
    if why:
        run(["systemctl", "stop", UNIT], wanted["timeout"])
        remove_unit()
        return True, refused(why)
    answer = {"started": True, "campaign": campaign}
    return True, dict(answer, resumed=True) if resumed else answer


def unpacked(value):
    """Return a parameter as bytes, unpacking base64 of zlib (in which Ansible finds no template)."""
    if not PACKED.match(value):
        return value.encode("utf-8")
    try:
        return zlib.decompress(base64.b64decode(value))
    except (ValueError, zlib.error) as error:
        raise ValueError("a parameter cannot be unpacked: %s" % error) from None


def campaign_of(data):
    """Return the campaign named in an order. Raises ValueError."""
    order = json.loads(data.decode("utf-8"))
    campaign = order.get("campaign") if isinstance(order, dict) else None
    if not isinstance(campaign, str) or not CAMPAIGN.match(campaign):
        raise ValueError("order has no campaign, or one that is no name")
    return campaign


def refused(why, running=""):
    return {"started": False, "refused": why, "running": running}


def make_home():
    """Create the folder of all spools; raise ValueError if an existing one is not root's alone to write."""
    os.makedirs(os.path.dirname(HOME), mode=0o755, exist_ok=True)
    try:
        os.mkdir(HOME, 0o700)
    except OSError:
        info = os.lstat(HOME)
        if os.path.islink(HOME) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise ValueError("%s is not a folder of root alone" % HOME) from None


def check(spool):
    """Return why the program would refuse to start; empty if it would start."""
    program = os.path.join(spool, "program")
    code, output = run([sys.executable, "-I", "-S", program, "burnin", spool, "check"], 120)
    try:
        return json.loads(output.splitlines()[-1])["refused"]
    except (ValueError, KeyError, IndexError):
        return "the program cannot run here: status %s, %s" % (code, output[-300:])


def start_unit(campaign, spool, seconds):
    """Install and start the unit. Returns why that failed, or an empty string."""
    text = SERVICE.format(campaign=campaign, spool=spool, python=sys.executable)
    path = os.path.join(UNIT_FOLDER, UNIT)
    put(path, text.encode("ascii"), 0o644)
    os.makedirs(os.path.join(UNIT_FOLDER, WANTS), mode=0o755, exist_ok=True)
    forget(os.path.join(UNIT_FOLDER, WANTS, UNIT))
    os.symlink(path, os.path.join(UNIT_FOLDER, WANTS, UNIT))
    before = size_of(os.path.join(spool, "events.jsonl"))
    for words in (["daemon-reload"], ["reset-failed", UNIT], ["start", UNIT]):
        code, output = run(["systemctl", *words], seconds)
        if code != 0 and words[0] != "reset-failed":
            return "systemctl %s: %s" % (words[0], output[-300:])
    until = time.time() + min(seconds, 30.0)
    while time.time() < until:
        if size_of(os.path.join(spool, "events.jsonl")) > before:
            return ""
        time.sleep(0.2)
    return "the unit started, but the program said nothing: journalctl -u %s" % UNIT


# --- status and collect ---


def status(wanted):
    campaign, spool = spool_of(wanted)
    if not spool:
        return False, {"campaign": "", "alive": False, "finished": False}
    state = read_json(os.path.join(spool, "state.json"))
    order = read_json(os.path.join(spool, "order.json"))
    names = [segment.get("name") for segment in order.get("segments") or () if isinstance(segment, dict)]
    return False, {
        "campaign": campaign,
        "alive": alive(campaign),
        "finished": finished(state),
        "state": state,
        "holding": state.get("holding") or "",
        "events": last_events(os.path.join(spool, "events.jsonl")),
        "order": {"segments": names},
    }


def collect(wanted):
    campaign, spool = spool_of(wanted)
    if not spool:
        return False, {"campaign": "", "alive": False, "finished": False, "parts": [], "more": False}
    # Read the state before the files: the result may then claim less than the files hold, never more.
    answer = {"campaign": campaign, "alive": alive(campaign)}
    answer["finished"] = finished(read_json(os.path.join(spool, "state.json")))
    parts, left, more = [], max(1, wanted["limit"]), False
    for name in collectable(spool):
        path = os.path.join(spool, name)
        size, offset = size_of(path), offset_of(wanted["offsets"], name)
        if offset > size or (name in WHOLE and offset != size):
            offset = 0  # replaced since the last call
        if offset == size:
            continue
        if left <= 0:
            more = True
            break
        with open(path, "rb") as source:
            source.seek(offset)
            data = source.read(left if name not in WHOLE else -1)
        left -= len(data)
        more = more or offset + len(data) < size
        packed = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
        # Ansible masks secrets in results; they have at least 3 letters, so pairs of letters never match.
        packed = " ".join(packed[at : at + 2] for at in range(0, len(packed), 2))
        parts.append({"file": name, "offset": offset, "size": size, "data": packed})
    return False, dict(answer, parts=parts, more=more)


def offset_of(offsets, name):
    value = offsets.get(name, 0)
    return value if type(value) is int and value > 0 else 0


def collectable(spool):
    """Return the files to collect, with order, state and events before the measurements."""
    paths = []
    for folder, _, names in os.walk(spool):
        below = os.path.relpath(folder, spool)
        paths += [name if below == "." else below + "/" + name for name in names]
    rank = {"order.json": 0, "state.json": 1, "events.jsonl": 2}
    return sorted(
        (name for name in paths if COLLECTED.match(name)), key=lambda name: (rank.get(name, 3), name)
    )


def last_events(path):
    try:
        with open(path, "rb") as source:
            source.seek(max(0, size_of(path) - EVENT_BYTES))
            lines = source.read().split(b"\n")
    except OSError:
        return []
    events = []
    for line in lines[-LAST_EVENTS - 2 :]:
        try:
            events.append(json.loads(line.decode("utf-8", "replace")))
        except ValueError:
            continue  # a partial first line, or the empty string after the last newline
    return events[-LAST_EVENTS:]


# --- stop, release, remove ---


def stop(wanted):
    campaign, spool = spool_of(wanted)
    if not spool:
        return False, {"campaign": "", "stopped": True, "left": []}
    if runs() and newest_running() not in ("", campaign):  # never stop the unit of another campaign
        return False, {"campaign": campaign, "stopped": True, "left": []}
    if not finished(read_json(os.path.join(spool, "state.json"))):
        put(os.path.join(spool, "stop"), b"")
    run(["systemctl", "stop", UNIT], wanted["timeout"])
    left = []
    if runs():
        run(["systemctl", "kill", "--kill-who=all", "--signal=SIGKILL", UNIT], 30)
        time.sleep(1.0)
        left = members()
    remove_unit()
    run(["systemctl", "reset-failed", UNIT], 30)
    note_stop(spool)
    return True, {"campaign": campaign, "stopped": not left, "left": left}


def note_stop(spool):
    """Record the stop if the program could not, because it had failed before or did not end."""
    state = read_json(os.path.join(spool, "state.json"))
    if state.get("finished"):
        return
    event = {"t": time.time(), "up": time.clock_gettime(BOOTTIME), "boot": boot_id(), "event": "stop"}
    line = json.dumps(dict(event, by="the module: the program did not run")) + "\n"
    with open(os.path.join(spool, "events.jsonl"), "ab") as events:
        events.write((line if ends_whole(events.name) else "\n" + line).encode("ascii"))
    if state:
        put(os.path.join(spool, "state.json"), json.dumps(dict(state, finished="stopped")).encode("utf-8"))


def ends_whole(path):
    """Return whether a file is empty or ends with a newline."""
    with open(path, "rb") as source:
        size = source.seek(0, 2)
        source.seek(max(0, size - 1))
        return source.read(1) in (b"", b"\n")


def members():
    """Return the processes still in the unit's cgroup, as `4711 nvidia-smi (D)`."""
    processes = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open("/proc/%d/cgroup" % pid) as source:
                inside = any(line.rstrip().endswith("/" + UNIT) for line in source)
            with open("/proc/%d/stat" % pid, "rb") as source:
                head, _, rest = source.read(4096).decode("utf-8", "replace").rpartition(")")
        except OSError:
            continue
        if inside:
            processes.append("%d %s (%s)" % (pid, head.partition("(")[2], rest.split()[0]))
    return processes


def release(wanted):
    campaign = wanted["campaign"] or newest()
    spool = os.path.join(HOME, campaign)
    state = read_json(os.path.join(spool, "state.json")) if campaign else {}
    held = bool(wanted["segment"]) and state.get("holding") == wanted["segment"]
    if held:
        put(os.path.join(spool, "release-%d" % int(state["segment"])), b"")
    return held, {"campaign": campaign, "released": held, "holding": state.get("holding") or ""}


def remove(wanted):
    campaign = wanted["campaign"]
    if not campaign:
        raise ValueError("which campaign? none is removed without its name")
    spool = os.path.join(HOME, campaign)
    if not os.path.isdir(spool):
        return False, {"campaign": campaign, "removed": False}
    if alive(campaign):
        raise ValueError("the burn-in %s runs: stop it first" % campaign)
    if newest_running() == campaign:
        remove_unit()  # it was waiting for the next boot
    shutil.rmtree(spool)
    for folder in (HOME, os.path.dirname(HOME)):
        try:
            os.rmdir(folder)
        except OSError:
            break  # another campaign's spool is in it
    return True, {"campaign": campaign, "removed": True}


# --- shared by the states above ---


def spool_of(wanted):
    """Return (requested campaign, its spool); the spool is empty if it does not exist."""
    campaign = wanted["campaign"] or newest()
    spool = os.path.join(HOME, campaign)
    return campaign, spool if campaign and os.path.isdir(spool) else ""


def runs():
    """Return whether the unit is running, starting or stopping."""
    _, output = run(["systemctl", "show", "--property=ActiveState", UNIT], 30)
    return output.partition("=")[2] in ("active", "activating", "deactivating", "reloading")


def newest_running():
    """Return the campaign of the installed unit; empty if no unit is installed."""
    try:
        with open(os.path.join(UNIT_FOLDER, UNIT)) as source:
            match = re.search(r"^Description=gpuprov burn-in (\S+)$", source.read(65536), re.MULTILINE)
    except OSError:
        return ""
    return match.group(1) if match else ""


def alive(campaign):
    return runs() and newest_running() in ("", campaign)


def newest():
    """Return the campaign of the installed unit, else the newest campaign; empty without any."""
    try:
        names = [name for name in os.listdir(HOME) if CAMPAIGN.match(name)]
    except OSError:
        names = []
    running = newest_running()
    if running in names:
        return running
    spools = [(stat_of(os.path.join(HOME, name, "order.json"))[1], name) for name in names]
    return max(spools)[1] if spools else ""


def size_of(path):
    return stat_of(path)[0]


def stat_of(path):
    """Return (size, modification time) of a file; zeros if it does not exist."""
    try:
        info = os.stat(path)
    except OSError:
        return 0, 0.0
    return info.st_size, info.st_mtime


def finished(state):
    """Return whether the burn-in has ended for good; a stopped one may be resumed."""
    return state.get("finished") not in (None, "stopped")


def remove_unit():
    gone = [forget(os.path.join(UNIT_FOLDER, name)) for name in (os.path.join(WANTS, UNIT), UNIT)]
    if any(gone):
        run(["systemctl", "daemon-reload"], 60)


def forget(path):
    """Remove a file and return whether it existed."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def put(path, data, mode=0o600):
    """Write a file atomically."""
    beside = path + ".new"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(handle, "wb") as target:
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
        os.rename(beside, path)
    except OSError:
        forget(beside)
        raise


def read_json(path):
    try:
        with open(path, encoding="utf-8") as source:
            document = json.load(source)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def run(argv, seconds):
    """Return a command's (exit status, output); (None, reason) if it did not start or end in time."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id") as source:
            return source.read().strip()
    except OSError:
        return ""


STATES = {
    "start": start,
    "status": status,
    "collect": collect,
    "stop": stop,
    "release": release,
    "remove": remove,
}


if __name__ == "__main__":
    main()
