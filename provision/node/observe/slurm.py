"""Slurm's configuration of this machine: its number of GPUs and its health programs.

scontrol gets both from slurmctld. `scontrol show node` has `Gres=gpu:h100:8(S:0-1),shard:64`; `scontrol show
config` has `HealthCheckProgram      = /path`, `(null)` for none, and Prolog and Epilog numbered
(`Prolog[0]`), because there may be several.
"""

import os

from provision.node.observe.files import ROOT, at
from provision.node.observe.probe import FAMILIES, Family, Probe, answered, attribute_of

NOTHING = "(null)"
PROGRAMS = {"prolog": "Prolog", "epilog": "Epilog"}
HEALTH_CHECK = {"health_check_program": "HealthCheckProgram", "health_check_interval": "HealthCheckInterval"}


def parse_gpus(names, output):
    import re  # imported here, as below, since most nodes need no such fact

    match = re.search(r"^ *Gres=(\S+)", output, re.MULTILINE)
    if not match:
        raise answered("scontrol", output)
    # If gres.conf has fewer GPUs than slurm.conf, Slurm drains the node; the lower number is the actual one.
    fewer = re.search(r"Reason=gres/gpu count reported lower than configured \((\d{1,6}) < \d+\)", output)
    if fewer and "INVALID_REG" in output:
        return dict.fromkeys(names, int(fewer.group(1)))
    # The sockets are in parentheses: gpu:8(S:0,1)
    counts = [
        re.fullmatch(r"gpu(?::[^:]+)?:(\d{1,6})", entry)
        for entry in re.sub(r"\([^()]*\)", "", match.group(1)).split(",")
    ]
    return dict.fromkeys(names, sum(int(count.group(1)) for count in counts if count))


def parse_config(names, output):
    pairs = [line.partition("=") for line in output.splitlines()]
    config = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    if HEALTH_CHECK["health_check_program"] not in config:
        raise answered("scontrol", output)
    return {name: configured(attribute_of(name), config) for name in names}


def configured(attribute, config):
    import re

    if attribute in PROGRAMS:
        key = PROGRAMS[attribute]
        several = [config[name] for name in config if re.fullmatch(key + r"(\[\d+\])?", name)]
        return [path for value in several if value != NOTHING for path in meant(value)]
    value = config.get(HEALTH_CHECK[attribute], NOTHING)
    if attribute == "health_check_interval":
        seconds = re.fullmatch(r"(\d{1,9}) sec", value)
        return int(seconds.group(1)) if seconds else None
    return None if value == NOTHING else value


def meant(pattern):
    """Return the files that a path in Slurm's configuration matches, since it may have wildcards."""
    import glob

    cut = len(ROOT[0])
    files = sorted(glob.glob(at(pattern)))
    return [path[cut:].decode("utf-8", "replace") for path in files] or [pattern]


def probes(names):
    config = [name for name in names if attribute_of(name) != "gpus"]
    gpus = [name for name in names if attribute_of(name) == "gpus"]
    host = os.uname().nodename.partition(".")[0]
    result = []
    if config:
        result.append(Probe(config, command=["scontrol", "show", "config"], parse=parse_config))
    if gpus:
        result.append(Probe(gpus, command=["scontrol", "show", "node", host], parse=parse_gpus))
    return result


FAMILIES["slurm"] = Family(("gpus", *HEALTH_CHECK, *PROGRAMS), probes, items=False)
