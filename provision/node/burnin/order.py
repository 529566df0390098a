"""Parser of the order, the work that a controller sends to this node; trusted only once validated."""

import json
import re

from provision.node.modules.gpuprov_run import misuse

ORDER_FORMAT = 1
CAMPAIGN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}\Z")
CHECK = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
VENDORS = ("nvidia", "amd")
GPU_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\Z")
KINDS = ("load", "soak", "cool_down", "fleet")
MONTH = 31 * 86400.0  # seconds; nothing takes longer
MOST_REBOOTS = 10
STEP_CAP = 2 * 1024 * 1024  # bytes kept of each stream of a program


class OrderError(Exception):
    """Why an order is invalid: one line that names the key."""


def read_order(text):
    """Parse the order and fill in every default. Raises OrderError."""
    try:
        order = json.loads(text)
    except ValueError as error:
        raise OrderError("order.json is not JSON: %s" % error) from None
    if not isinstance(order, dict):
        raise OrderError("order.json is not an object")
    if order.get("format") != ORDER_FORMAT:
        raise OrderError(
            "format is %.20r; this program knows %d: use one gpuprov throughout"
            % (order.get("format"), ORDER_FORMAT)
        )
    sample = number(order, "sample_seconds", "", 0.1, 3600.0, 5.0)
    return {
        "campaign": matching(order, "campaign", "", CAMPAIGN),
        "node": text_of(order, "node", "", 255),
        "vendor": vendor_of(order),
        "gpus": [gpu_address(one) for one in items(order, "gpus", "", 0, 1000, ())],
        "sample_seconds": sample,
        "sampler": sampler_of(mapping(order, "sampler", ""), sample),
        "abort": abort_of(mapping(order, "abort", "")),
        "kernel_lines": [pattern_of(one) for one in items(order, "kernel_lines", "", 0, 200, ())],
        "space_mib": number(order, "space_mib", "", 1, 10**7, 1024),
        "end_by_s": number(order, "end_by_s", "", 0, MONTH, None),
        "segments": [segment_of(*one) for one in enumerate(items(order, "segments", "", 1, 2000))],
    }


def vendor_of(order):
    """Return the GPU vendor; NVIDIA if the order names none."""
    vendor = order.get("vendor") or VENDORS[0]
    if vendor not in VENDORS:
        raise OrderError("vendor is %.40r; known: %s" % (vendor, ", ".join(VENDORS)))
    return vendor


def gpu_address(text):
    """Return a GPU's PCI address without its function; the position in the list is the GPU's number."""
    if not isinstance(text, str) or not GPU_ADDRESS.match(text):
        raise OrderError("gpus: %.40r is no PCI address" % (text,))
    return text


def sampler_of(given, sample):
    """Return the seconds between two samples of each source."""
    usual = {
        "gpu": sample,
        "errors": 10.0,
        "nvlink": max(60.0, sample),
        "ib": max(15.0, sample),
        "ipmi": max(120.0, sample),
        "kernel": 10.0,
    }
    return {name: number(given, name, "sampler: ", 0.1, 3600.0, every) for name, every in usual.items()}


def abort_of(given):
    xids = given.get("xids")
    if xids is not None and (
        not isinstance(xids, list) or not all(type(code) is int and 0 < code < 10000 for code in xids)
    ):
        raise OrderError("abort: xids is not a list of Xid codes")
    return {
        "gpu_celsius": number(given, "gpu_celsius", "abort: ", 20, 200, None),
        "xids": xids or [],
        "kernel": [pattern_of(one) for one in items(given, "kernel", "abort: ", 0, 100, ())],
        "failed_steps": whole(given, "failed_steps", "abort: ", 1, 10**6, None),
        "reboots": whole(given, "reboots", "abort: ", 0, 10**4, MOST_REBOOTS),
    }


def pattern_of(text):
    """Validate a pattern for lines of the kernel log."""
    try:
        re.compile(text)
    except (TypeError, re.error):
        raise OrderError("%.60r is no pattern of a kernel line" % (text,)) from None
    return text


def segment_of(place, segment):
    where = "segment %d: " % (place + 1)
    if not isinstance(segment, dict):
        raise OrderError(where + "is not an object")
    where = "segment %s: " % matching(segment, "name", where, SEGMENT)
    kind = segment.get("kind")
    if kind not in KINDS:
        raise OrderError("%skind is %.40r; known: %s" % (where, kind, ", ".join(KINDS)))
    loads = kind in ("load", "soak")
    minutes = number(segment, "minutes", where, 0.0001, MONTH / 60, None)
    repeat = whole(segment, "repeat", where, 1, 10**6, None)
    if minutes is None and not loads:
        raise OrderError(where + "minutes is missing")
    steps = items(segment, "steps", where, 1 if loads else 0, 500, ())
    if steps and not loads:
        raise OrderError("%sa segment of kind %s has no steps" % (where, kind))
    return {
        "name": segment["name"],
        "kind": kind,
        "seconds": None if minutes is None else minutes * 60,
        "repeat": repeat if repeat or minutes else 1,
        "start_after_s": number(segment, "start_after_s", where, 0, MONTH, 0) or 0,
        "steps": [step_of(where, *one) for one in enumerate(steps)],
    }


def step_of(where, place, step):
    where += "step %d: " % (place + 1)
    if not isinstance(step, dict):
        raise OrderError(where + "is not an object")
    check = matching(step, "check", where, CHECK)
    commands = [command_of(where, one) for one in items(step, "commands", where, 1, 50)]
    problem = misuse(commands)
    if problem:
        raise OrderError(where + problem)
    # As in Ansible's task: two graces for each program, and the kernel log before and after.
    most = 70.0 + sum(
        15.0 + (0.0 if one["beside"] else one["deadline"] + one["retry_for"]) for one in commands
    )
    return {
        "check": check,
        "commands": commands,
        "deadline": number(step, "deadline", where, 0.1, MONTH, None) or most,
    }


def command_of(where, command):
    """Parse one program into parameters of the module gpuprov_run."""
    if not isinstance(command, dict):
        raise OrderError(where + "a command is not an object")
    where += "command %s: " % text_of(command, "name", where, 100)
    argv = items(command, "argv", where, 1, 2000)
    if not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise OrderError(where + "argv is not a list of words")
    env = mapping(command, "env", where)
    if not all(isinstance(value, (str, int, float)) for value in env.values()):
        raise OrderError(where + "env has a value that is no text")
    keep = items(command, "keep", where, 0, 100) if command.get("keep") else []
    if not all(isinstance(word, str) for word in keep):
        raise OrderError(where + "keep is not a list of words")
    return {
        "name": command["name"],
        "argv": argv,
        "deadline": number(command, "deadline", where, 0.1, MONTH),
        "cwd": text_of(command, "cwd", where, 4096, "") or None,
        "env": env,
        "beside": text_of(command, "beside", where, 100, ""),
        "port": whole(command, "port", where, 0, 65535, 0),
        "retry_on": text_of(command, "retry_on", where, 1000, ""),
        "retry_for": number(command, "retry_for", where, 0, MONTH, 0.0) or 0.0,
        "keep": keep,
    }


NEEDED = object()


def lacking(given, key, where, default):
    """Return whether the key has no value. Raises OrderError if it must have one."""
    if given.get(key) is not None:
        return False
    if default is NEEDED:
        raise OrderError("%s%s is missing" % (where, key))
    return True


def number(given, key, where, least, most, default=NEEDED):
    if lacking(given, key, where, default):
        return default
    value = given[key]
    # NaN fails every comparison; True is an int.
    if type(value) not in (int, float) or not least <= value <= most:
        raise OrderError("%s%s is %.40r, not a number from %g to %g" % (where, key, value, least, most))
    return value


def whole(given, key, where, least, most, default=NEEDED):
    value = number(given, key, where, least, most, default)
    if value is not default and type(value) is not int:
        raise OrderError("%s%s is %.40r, not a whole number" % (where, key, value))
    return value


def text_of(given, key, where, most, default=NEEDED):
    if lacking(given, key, where, default):
        return default
    value = given[key]
    if not isinstance(value, str) or "\0" in value or len(value) > most:
        raise OrderError("%s%s is %.40r, not a text of up to %d letters" % (where, key, value, most))
    return value


def matching(given, key, where, pattern):
    value = text_of(given, key, where, 255)
    if not pattern.match(value):
        raise OrderError("%s%s is %.60r, which is no such name" % (where, key, value))
    return value


def mapping(given, key, where):
    if lacking(given, key, where, None):
        return {}
    if not isinstance(given[key], dict):
        raise OrderError("%s%s is not an object" % (where, key))
    return given[key]


def items(given, key, where, least, most, default=NEEDED):
    if lacking(given, key, where, default):
        return default
    value = given[key]
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise OrderError("%s%s is not a list of %d to %d entries" % (where, key, least, most))
    return value
