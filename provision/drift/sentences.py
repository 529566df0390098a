"""Differences as sentences that an engineer understands without a list of fact names (pure)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from provision.drift.drifts import Drift
from provision.text import value_text

_FEW = 6  # elements of a list that are printed
_REASON = 240  # characters of the reason why a fact is unread: it names the part and the remedy


@dataclass(frozen=True)
class _Words:
    """Wording of a fact, with \\1 for the item in its name.

    A value is followed by `verb` (`is installed`), a boolean fact uses `yes` or `no`; with neither, the value
    is the state of the subject."""

    subject: str
    verb: str = ""
    yes: str = ""
    no: str = ""


_SET, _INSTALLED, _FOUND = "is set", "is installed", "are found"
_GPUS = "of the GPUs"
_PORT = r"rdma\.(.+)"
_TABLE: Sequence[tuple[str, _Words]] = (
    (r"driver\.loaded_version", _Words("NVIDIA driver", "is loaded")),
    (r"driver\.installed_version", _Words("NVIDIA driver for the next boot", _INSTALLED)),
    (r"driver\.userspace_version", _Words("NVIDIA driver libraries", "are installed")),
    (r"driver\.flavour", _Words("NVIDIA kernel module", "is loaded")),
    (r"driver\.broken_libraries", _Words("driver libraries that no program can load", _FOUND)),
    (r"driver\.mismatch", _Words("NVIDIA module and library of two versions", _FOUND)),
    (r"dkms\.nvidia\.failed", _Words("failed DKMS builds of the NVIDIA module", _FOUND)),
    (r"amdgpu\.loaded_version", _Words("AMD GPU driver", "is loaded")),
    (r"amdgpu\.dkms_version", _Words("AMD's own GPU driver", "is loaded")),
    (r"amdgpu\.installed_version", _Words("AMD GPU driver for the next boot", _INSTALLED)),
    (r"amdgpu\.compute_partitions", _Words(f"compute partition {_GPUS}", _SET)),
    (r"amdgpu\.memory_partitions", _Words(f"memory partition {_GPUS}", _SET)),
    (r"amdgpu\.power_limits", _Words(f"power limit {_GPUS}, in watts,", _SET)),
    (r"dkms\.amdgpu\.failed", _Words("failed DKMS builds of the amdgpu module", _FOUND)),
    (r"group\.(.+)\.exists", _Words(r"group \1", yes="present", no="absent")),
    (r"group\.(.+)\.members", _Words(r"members of the group \1", _FOUND)),
    (r"kernel\.headers", _Words("kernel headers", "are installed")),
    (r"kernel\.initramfs_stale", _Words("initramfs", yes="out of date", no="up to date")),
    (
        r"secure_boot\.rejects_dkms",
        _Words("Secure Boot", yes="set to reject DKMS modules", no="not set to reject DKMS modules"),
    ),
    (r"module\.(.+)\.loaded", _Words(r"kernel module \1", yes="loaded", no="not loaded")),
    (r"package\.(.+)\.version", _Words(r"package \1", _INSTALLED)),
    (r"package\.(.+)\.status", _Words(r"package \1")),
    (r"package\.(.+)\.held", _Words(r"package \1", yes="held", no="not held")),
    (r"packages\.source_problems", _Words("errors in the package manager's sources", _FOUND)),
    (r"packages\.(.+)\.overruled_by", _Words(r"settings of others against driver \1", _FOUND)),
    (r"packages\.(.+)\.stream", _Words(r"stream of dnf's module \1", "is enabled")),
    (r"fabric\.manager_version", _Words("fabric manager", _INSTALLED)),
    (r"fabric\.manager_held", _Words("fabric manager", yes="held", no="not held")),
    (r"fabric\.imex_version", _Words("IMEX", _INSTALLED)),
    (r"fabric\.imex_held", _Words("IMEX", yes="held", no="not held")),
    (
        r"fabric\.manager_matches_driver",
        _Words("fabric manager", yes="of the driver's version", no="not of the driver's version"),
    ),
    (
        r"fabric\.imex_matches_driver",
        _Words("IMEX", yes="of the driver's version", no="not of the driver's version"),
    ),
    (r"file\.(.+)\.content", _Words(r"file \1")),
    (r"file\.(.+)\.exists", _Words(r"file \1", yes="present", no="absent")),
    (r"file\.(.+)\.mode", _Words(r"mode of \1", _SET)),
    (r"file\.(.+)\.owner", _Words(r"owner of \1", _SET)),
    (r"file\.(.+)\.target", _Words(r"target of the link \1", _SET)),
    (r"service\.(.+)\.(?:active|enabled)", _Words(r"service \1")),
    (r"pgp_key\.(.+)\.fingerprints", _Words(r"signing key in \1", _INSTALLED)),
    (r"pgp_key\.(.+)\.trusted_by", _Words(r"files with which apt trusts key \1 everywhere", _FOUND)),
    (r"certificate\.(.+)\.days_left", _Words(r"days until \1 expires", "are left")),
    (r"certificate\.(.+)\.issuer_key", _Words(r"key of the authority that signed \1", "is found")),
    (
        r"certificate\.(.+)\.key_fits",
        _Words(r"certificate \1", yes="of the key beside it", no="not of the key beside it"),
    ),
    (r"certificate\.(.+)\.names", _Words(r"names in the certificate \1", _FOUND)),
    (r"file\.(.+)\.sha256", _Words(r"SHA-256 of \1", "is found")),
    (r"tcp\.(.+)\.listening", _Words(r"TCP port \1", yes="listened on", no="not listened on")),
    (r"node_health\.result", _Words("health result of the node's own program")),
    (r"slurm\.gpus", _Words("GPUs that Slurm hands out", "are configured")),
    (r"slurm\.health_check_program", _Words("Slurm's HealthCheckProgram", "is configured")),
    (r"slurm\.health_check_interval", _Words("Slurm's HealthCheckInterval, in seconds,", "is configured")),
    (r"slurm\.prolog", _Words("Slurm's Prolog", "is configured")),
    (r"slurm\.epilog", _Words("Slurm's Epilog", "is configured")),
    (r"sysctl\.(.+)\.value", _Words(r"kernel parameter \1", _SET)),
    (r"clock\.keeper", _Words("service that keeps the clock", "is running")),
    (r"clock\.state", _Words("clock")),
    (r"cpu\.online", _Words("hardware threads", "are online")),
    (r"memory\.installed_gib", _Words("GiB of memory", "are installed")),
    (r"cpu\.governors", _Words("CPU frequency governor", _SET)),
    (r"memory\.numa_balancing", _Words("automatic NUMA balancing", yes="on", no="off")),
    (r"memory\.shm_bytes", _Words("bytes of /dev/shm", "are set")),
    (r"memory\.transparent_hugepage", _Words("transparent huge pages", "is set")),
    (r"limits\.session\.memlock", _Words("locked memory of logins", _SET)),
    (r"limits\.systemd\.memlock", _Words("locked memory of services, by default", _SET)),
    (r"limits\.(.+)\.memlock", _Words(r"locked memory of \1", _SET)),
    (r"mig\.devices", _Words(f"MIG devices {_GPUS}", "are set up")),
    (r"nvidia_smi\.mig\.mode\.current", _Words(f"MIG mode {_GPUS}", _SET)),
    (r"nvidia_smi\.ecc\.mode\.current", _Words(f"ECC mode {_GPUS}", _SET)),
    (r"nvidia_smi\.power\.limit", _Words(f"power limit {_GPUS}, in watts,", _SET)),
    (r"nvidia_smi\.clocks\.applications\.graphics", _Words(f"application clock {_GPUS}, in MHz,", _SET)),
    (r"nvidia_smi\.clocks\.applications\.memory", _Words(f"memory clock {_GPUS}, in MHz,", _SET)),
    (r"nvidia_smi\.compute_mode", _Words(f"compute mode {_GPUS}", _SET)),
    (r"(?:nvidia|amd)_smi\.silent", _Words("GPUs that do not answer the driver", _FOUND)),
    (r"nvidia_smi\.fabric\.state", _Words(f"NVLink fabric {_GPUS}")),
    (r"nvidia_smi\.fabric\.status", _Words(f"result of joining the NVLink fabric {_GPUS}")),
    (r"nvidia_smi\.without_cluster", _Words("GPUs in no NVLink cluster", _FOUND)),
    (r"nvidia_smi\.without_clique", _Words("GPUs in no NVLink clique", _FOUND)),
    (r"container\.cdi\.missing", _Words("GPU devices that the CDI specification lacks", _FOUND)),
    (r"container\.cdi\.stale", _Words("entries of the CDI specification that lead nowhere", _FOUND)),
    (r"amd_cdi\.missing", _Words("GPU devices that the CDI specification lacks", _FOUND)),
    (r"amd_cdi\.stale", _Words("entries of the CDI specification that lead nowhere", _FOUND)),
    (r"container\.dev_char\.missing", _Words("NVIDIA devices without a link in /dev/char", _FOUND)),
    (
        r"container_runtime\.all\.unconfigured",
        _Words("container runtimes without the NVIDIA runtime", _FOUND),
    ),
    (r"container_runtime\.all\.amd_unconfigured", _Words("container runtimes without AMD's runtime", _FOUND)),
    (r"container_runtime\.all\.(?:amd_)?without_cdi", _Words("container runtimes without CDI", _FOUND)),
    (r"container_runtime\.nvidia\.mode", _Words("mode of the NVIDIA container runtime", _SET)),
    (r"container_runtime\.(.+)\.amd_path", _Words(r"AMD's runtime of \1", _SET)),
    (r"container_runtime\.(.+)\.path", _Words(r"NVIDIA runtime of \1", _SET)),
    (r"container_runtime\.(.+)\.cdi", _Words(r"CDI in \1", yes="on", no="off")),
    (r"container_runtime\.(.+)\.runtime_type", _Words(r"type of the NVIDIA runtime in \1", _SET)),
    (r"container_runtime\.(.+)\.imported", _Words(r"drop-ins of \1", yes="read", no="not read")),
    (r"container_runtime\.(.+)\.keeps_runc", _Words(r"runc in \1", yes="kept", no="not kept")),
    (r"container_runtime\.(.+)\.installed", _Words(r"\1", yes="installed", no="not installed")),
    (
        r"container_runtime\.(.+)\.restart_required",
        _Words(r"\1", yes="running with older settings", no="not running with older settings"),
    ),
    (r"rdma\.peermem", _Words("nvidia-peermem on disk")),
    (
        r"rdma\.core_stale",
        _Words("RDMA core", yes="loaded in another version than on disk", no="loaded in the version on disk"),
    ),
    (_PORT + r"\.state", _Words(r"RDMA port \1")),
    (_PORT + r"\.link_layer", _Words(r"link layer of RDMA port \1", _SET)),
    (_PORT + r"\.rate", _Words(r"rate of RDMA port \1, in Gb/s,", _SET)),
    (_PORT + r"\.active_mtu", _Words(r"MTU of RDMA port \1", _SET)),
    (_PORT + r"\.netdev_mtu", _Words(r"MTU of the interface of RDMA port \1", _SET)),
    (_PORT + r"\.pfc", _Words(r"priorities with flow control of RDMA port \1", "are set")),
    (_PORT + r"\.pkeys", _Words(r"partition keys of RDMA port \1", "are set")),
    (_PORT + r"\.roce_trust", _Words(r"trusted field (DSCP or PCP) of RDMA port \1", _SET)),
    (_PORT + r"\.roce_ecn", _Words(r"priorities with congestion notifications of RDMA port \1", "are set")),
    (_PORT + r"\.roce_tos", _Words(r"RoCE type of service of RDMA port \1", _SET)),
    (_PORT + r"\.roce_v2_ipv4", _Words(r"RoCE v2 addresses of RDMA port \1", "are set")),
    (_PORT + r"\.traffic_class", _Words(r"traffic class of RDMA port \1", _SET)),
    (_PORT + r"\.sm_seen", _Words(r"subnet manager of RDMA port \1", yes="there", no="not there")),
    (r"pci\.acs_harmful", _Words("PCIe bridges that redirect GPU traffic (ACS)", _FOUND)),
    (r"gpu\.count", _Words("GPUs", _FOUND)),
    (r"gpu\.sku", _Words("GPU product", "is found")),
)


@functools.lru_cache(maxsize=4096)
def _words(fact: str) -> _Words | None:
    for pattern, words in _TABLE:  # compiled on demand, since most nodes have no drift
        if match := re.fullmatch(pattern, fact):
            item = match.group(1) if match.groups() else ""
            return _Words(words.subject.replace(r"\1", item), words.verb, words.yes, words.no)
    return None


def subject(fact: str) -> str:
    """Return the name of a fact's subject, such as `NVIDIA driver`, or the fact's name if it has none.

    >>> subject("module.nouveau.loaded")
    'kernel module nouveau'"""
    words = _words(fact)
    return words.subject if words else fact


def sentence(drift: Drift) -> str:
    """Describe a drift in one line: `NVIDIA driver: 570.1 is loaded, 580.126.09 is declared`."""
    fact, expectation = drift.expectation.fact, drift.expectation
    words = _words(fact) or _Words(fact)
    if drift.unknown:
        return unread(words.subject, drift.problem)
    if fact.startswith("file.") and fact.endswith(".content"):
        return f"{words.subject}{_content(drift)}"
    if words.yes and isinstance(expectation.value, bool):
        return f"{words.subject} {_yes_or_no(words, drift.found, expectation.value)}"
    if words.verb:
        declared = _wanted(expectation.operator, expectation.value, words.verb.split()[0])
        return f"{words.subject.rstrip(',')}: {_value(drift.found)} {words.verb}, {declared}"
    return f"{words.subject} is {_state(drift.found)}, {_must(expectation.operator, expectation.value)}"


def unread(what: str, problem: str) -> str:
    """Describe an unreadable fact: `clock could not be read: timed out`."""
    return f"{what} could not be read: {value_text(problem, _REASON)}"


def likeness(drift: Drift) -> tuple[Any, ...]:
    """Return a key equal for drifts with equal sentences; nodes declared alike share expectations."""
    value = drift.found if type(drift.found) is str else repr(drift.found)
    return (id(drift.expectation), drift.unknown, drift.problem, value)


def for_fleet() -> Callable[[Drift], str]:
    """Return a caching `sentence`, which words a drift shared by thousands of nodes once."""
    sentences: dict[tuple[Any, ...], str] = {}

    def one(drift: Drift) -> str:
        key = likeness(drift)
        if key not in sentences:
            sentences[key] = sentence(drift)
        return sentences[key]

    return one


def of_service(drifts: Sequence[Drift]) -> str:
    """Describe a service: `service x is inactive and disabled, must be active and enabled`."""
    states = dict.fromkeys(_state(drift.found) for drift in drifts)
    required = dict.fromkeys(
        _must(drift.expectation.operator, drift.expectation.value).removeprefix("must be ")
        for drift in drifts
    )
    name = subject(drifts[0].expectation.fact)
    return f"{name} is {' and '.join(states)}, must be {' and '.join(required)}"


def _yes_or_no(words: _Words, found: Any, wanted: bool) -> str:
    then = words.yes if wanted else words.no
    if not isinstance(found, bool):
        return f"is in no known state, must be {then}"
    now = words.yes if found else words.no
    if then == f"not {now}":
        return f"is {now}, must not be"
    return f"is {now}, must be" if now == f"not {then}" else f"is {now}, must be {then}"


def _content(drift: Drift) -> str:
    expected, found = drift.expectation.value, drift.found
    if found is None:
        return " is absent"
    if expected is None:
        return " must not exist"
    if drift.expectation.operator in ("template", "equals") and isinstance(expected, str):
        for number, (want, have) in enumerate(
            zip_longest(expected.splitlines(), str(found).splitlines()), start=1
        ):
            if want is None:
                return f": line {number} must not be there: {_quoted(have)}"
            if have is None:
                return f": line {number} is missing: {_quoted(want)}"
            if want != have:
                return f": line {number} is {_quoted(have)}, must be {_quoted(want)}"
        return " differs in its line ends"
    return f" is {value_text(found)}, {_must(drift.expectation.operator, expected)}"


def _quoted(line: str) -> str:
    text = value_text(line)
    return text if text.startswith('"') else f'"{text}"'


def _value(what: Any) -> str:
    """Format a value for a sentence: `none` if empty, a list as its elements, with repetitions counted."""
    if what is None or what == []:
        return "none"
    if isinstance(what, list):
        if len({value_text(each) for each in what}) < len(what):
            return _repeated(what)
        more = f" and {len(what) - _FEW} more" if len(what) > _FEW else ""
        return ", ".join(map(value_text, what[:_FEW])) + more
    return value_text(what)


def _repeated(what: Sequence[Any]) -> str:
    """Format a list with repetitions, the most frequent first: `350.00 (7 times), 300.00 (index 3)`.

    A unique element keeps its index in the list: for facts of GPUs, the GPU's index."""
    places: dict[str, list[int]] = {}
    for index, each in enumerate(what):
        places.setdefault(value_text(each), []).append(index)
    repeated = sorted(places.items(), key=lambda one: -len(one[1]))
    parts = [
        f"{value} (index {at[0]})" if len(at) == 1 else f"{value} ({len(at)} times)" for value, at in repeated
    ]
    more = f" and {len(parts) - _FEW} other values" if len(parts) > _FEW else ""
    return ", ".join(parts[:_FEW]) + more


def _state(what: Any) -> str:
    return "absent" if what is None else _value(what)


def _either(values: Sequence[Any]) -> str:
    return " or ".join(map(_value, values))


def _wanted(operator: str, value: Any, verb: str) -> str:
    """Return the declared value as it follows an observed one: `580.126.09 is declared`."""
    if value is None or value == []:
        return "none may be"
    phrases = {
        "at_least": f"at least {_value(value)} {verb} declared",
        "contains": f"{_value(value)} {verb} missing",
        "matches": f"{_value(value)} must match",
    }
    if operator == "one_of":
        return f"{_either(value)} {verb} declared"
    return phrases.get(operator, f"{_value(value)} {verb} declared")


def _must(operator: str, value: Any) -> str:
    """Return the declared value as it follows a state: `must be active`."""
    if operator == "one_of":
        return f"must be {_either(value)}"
    words = {
        "version": "must be version",
        "at_least": "must be at least",
        "contains": "must contain",
        "matches": "must match",
    }
    return f"{words.get(operator, 'must be')} {_state(value)}"
