"""The limits of locked memory that are in force, since a limit in a file proves nothing.

`limits.session.memlock` is the limit of this program's own session, `limits.systemd.memlock` systemd's
default for services, `limits.UNIT.memlock` that of a service: of its running main process, else the one that
it would be started with, or "absent" if there is no such unit. In KiB as text, or "unlimited".
"""

from provision.node.observe.files import ReadError, read_text
from provision.node.observe.probe import FAMILIES, Family, Probe, item_of, single, units_shown

LOCKED = "Max locked memory"
SHOWN = "--property=LoadState,MainPID,LimitMEMLOCKSoft"


def limit_text(text):
    """Convert bytes as printed by /proc and systemd to KiB: 8388608 -> 8192, infinity -> unlimited."""
    if text in ("infinity", "unlimited"):
        return "unlimited"
    if not text.isdigit():
        raise ReadError("the limit %r was not understood" % text)
    return str(int(text) // 1024)


def limit_of_process(process):
    """Return the soft limit of a process, which is the effective one; None if there is no such process."""
    for line in (read_text("/proc/%s/limits" % process) or "").splitlines():
        if line[: len(LOCKED)] == LOCKED:
            # Max locked memory         8388608              8388608              bytes
            return limit_text(line[len(LOCKED) :].split()[0])
    return None


def session_limit():
    limit = limit_of_process("self")
    if limit is None:
        raise ReadError("/proc/self/limits says nothing of locked memory")
    return limit


def parse_manager(names, output):
    (manager,) = units_shown(output, 1, "DefaultLimitMEMLOCKSoft")
    return dict.fromkeys(names, limit_text(manager["DefaultLimitMEMLOCKSoft"]))


def parse_limits(names, output):
    blocks = units_shown(output, len(names), "LimitMEMLOCKSoft")
    return {names[number]: limit_of_unit(block) for number, block in enumerate(blocks)}


def limit_of_unit(block):
    if block.get("LoadState") in ("not-found", "masked"):
        return "absent"
    process = block.get("MainPID", "0")
    running = limit_of_process(process) if process.isdigit() and process != "0" else None
    return running or limit_text(block["LimitMEMLOCKSoft"])


def limits_probes(names):
    probes = []
    units = []
    for name in names:
        if item_of(name) == "session":
            probes.append(single(name, session_limit))
        elif item_of(name) == "systemd":
            show = ["systemctl", "show", "--property=DefaultLimitMEMLOCKSoft"]
            probes.append(Probe([name], command=show, parse=parse_manager))
        else:
            units.append(name)
    if units:
        command = ["systemctl", "show", "--no-pager", SHOWN, "--", *[item_of(name) for name in units]]
        probes.append(Probe(units, command=command, parse=parse_limits))
    return probes


FAMILIES["limits"] = Family(("memlock",), limits_probes)
