"""Diagnosis of a node's driver stack: one line per cause, with the next step (pure).

Several drifts often have one cause. Each rule here recognises one cause by the facts that reveal it. A rule
without its facts reports nothing; the drift itself already reports the unknown fact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.desired import versions
from provision.desired.expectations import Expectation
from provision.node_names import fold
from provision.text import many, one_line

NODES = "{nodes}"  # placeholder in a next step for the command-line arguments of inventory and nodes
Arguments = Callable[[Iterable[str]], str]  # fills the placeholder: desired.inventory.arguments of the fleet
_LONGEST = 320  # maximum length of text from a node (compiler messages are the longest)

_BY_HAND = "on the node, correct or remove what is named: gpuprov changes no file of others"

# Observed on every node in addition to its roles' promises; read from files, except for one modinfo.
FACTS = frozenset(
    {"driver.loaded_version", "driver.userspace_version", "driver.installed_version", "driver.flavour"}
    | {"module.nouveau.loaded", "kernel.headers", "kernel.initramfs_stale"}
    | {"dkms.nvidia.built", "dkms.nvidia.failed", "secure_boot.enabled", "secure_boot.enrolled"}
    | {"fabric.manager_version", "fabric.manager_package"}
)


@dataclass(frozen=True)
class Diagnosis:
    """One cause on one node. `rule` is its stable id; `cause` and `next_step` are for people."""

    rule: str
    cause: str
    next_step: str

    def line(self, nodes: Iterable[str], arguments: Arguments) -> str:
        """Return the diagnosis in one line, with these nodes in the next step."""
        return f"{self.cause}; next: {self.next_step.replace(NODES, arguments(nodes))}"


@dataclass(frozen=True)
class _Seen:
    """A node's facts and promised values, with typed access for the rules."""

    facts: Mapping[str, Any]
    wanted: Mapping[str, Any] = field(default_factory=dict)

    def text(self, fact: str) -> str:
        value = self.facts.get(fact)
        return one_line(value, _LONGEST) if isinstance(value, str) else ""

    def texts(self, fact: str) -> list[str]:
        value = self.facts.get(fact)
        texts = value if isinstance(value, list) else []
        return [one_line(each, _LONGEST) for each in texts if isinstance(each, str)]

    def is_true(self, fact: str) -> bool:
        return self.facts.get(fact) is True

    def is_false(self, fact: str) -> bool:
        return self.facts.get(fact) is False

    @property
    def loaded(self) -> str:
        return self.text("driver.loaded_version")

    @property
    def boots(self) -> str:
        return self.text("kernel.boot_release") or self.text("kernel.release")

    @property
    def driver_wanted(self) -> str:
        return str(self.wanted.get("driver.loaded_version") or "")

    @property
    def has_dkms_package(self) -> bool:
        """Whether a package with the driver's DKMS sources is on the node, configured or not."""
        return any(
            "dkms" in fact and fact.endswith(".status") and value not in (None, "absent", "config-files")
            for fact, value in self.facts.items()
            if fact.startswith("package.")
        )


def diagnose(facts: Mapping[str, Any], expectations: Sequence[Expectation] = ()) -> list[Diagnosis]:
    """Return every cause that these facts reveal, the most fundamental first.

    Only causes in roles of the node count, since `gpuprov up` repairs no other."""
    roles = {each.role for each in expectations}
    promised = {each.fact: each.value for each in expectations if each.operator == "equals"}
    seen = _Seen(facts, promised)
    return [
        cause
        for rule, names in _RULES.items()
        if not roles.isdisjoint(names) and (cause := rule(seen)) is not None
    ]


def causes(
    nodes: Mapping[str, tuple[Mapping[str, Any], Sequence[Expectation]]],
) -> dict[Diagnosis, list[str]]:
    """Diagnose nodes by their facts and expectations; return each cause with its nodes."""
    alike: dict[Diagnosis, list[str]] = {}
    for name, (facts, expectations) in nodes.items():
        for cause in diagnose(facts, expectations):
            alike.setdefault(cause, []).append(name)
    return alike


def lines(found: Mapping[Diagnosis, Sequence[str]], arguments: Arguments) -> list[str]:
    """Return one line for each cause, preceded by its nodes."""
    return [f"{fold(names)}  {each.line(names, arguments)}" for each, names in found.items()]


def section(found: Mapping[Diagnosis, Sequence[str]], arguments: Arguments) -> list[str]:
    """Return the diagnosis section of plan, up and drift with its heading; empty without a cause."""
    rows = [f"  {line}" for line in lines(found, arguments)]
    return ["cause and next step", *rows, ""] if rows else []


def _nouveau(seen: _Seen) -> Diagnosis | None:
    if not seen.is_true("module.nouveau.loaded"):
        return None
    stale = seen.is_true("kernel.initramfs_stale")
    why = "its initramfs is older than the file that keeps nouveau away" if stale else "it came first at boot"
    return Diagnosis(
        "nouveau-loaded",
        f"nouveau is loaded and holds the GPUs, so the NVIDIA driver cannot have them ({why})",
        f"gpuprov up {NODES} (blacklists nouveau, rebuilds the initramfs and reboots)",
    )


def _secure_boot(seen: _Seen) -> Diagnosis | None:
    if seen.loaded or not seen.is_true("secure_boot.enabled") or not seen.is_false("secure_boot.enrolled"):
        return None
    return Diagnosis(
        "secure-boot-key",
        "Secure Boot is on and the key that signs DKMS modules is not enrolled: the kernel refuses the "
        "driver",
        "on the node `mokutil --import` the key DKMS signs with (/var/lib/dkms/mok.pub; Ubuntu "
        "/var/lib/shim-signed/mok/MOK.der), reboot, and choose Enroll MOK at the console; it cannot be done "
        "over SSH",
    )


def _sources(seen: _Seen) -> Diagnosis | None:
    problems = seen.texts("packages.source_problems")
    reads = "dnf cannot read its repositories" if seen.text("os.family") == "redhat" else ""
    cause = f"{reads or 'apt cannot read its sources'}: {problems[0]}" if problems else ""
    following = (
        f"gpuprov up {NODES} removes older sources of NVIDIA's and AMD's own; for any other, {_BY_HAND}"
    )
    return Diagnosis("package-sources", cause, following) if cause else None


def _overruled(seen: _Seen) -> Diagnosis | None:
    facts = [fact for fact in seen.facts if fact.startswith("packages.") and fact.endswith(".overruled_by")]
    settings = [text for fact in facts for text in seen.texts(fact)]
    cause = f"the package manager is kept from the declared driver by {settings[0]}" if settings else ""
    return Diagnosis("driver-overruled", cause, _BY_HAND) if cause else None


def _dkms(seen: _Seen) -> Diagnosis | None:
    failed = seen.texts("dkms.nvidia.failed")
    kernels = (seen.boots, seen.text("kernel.release"))
    # The kernel of the next boot matters most; a failure for a third kernel is still reported.
    chosen = next((each for kernel in kernels for each in failed if each.startswith(f"{kernel}: ")), "")
    message = chosen or next(iter(failed), "")
    if not message:
        return None
    kernel, _, error = message.partition(": ")
    half = sorted(
        fact.split(".")[1]
        for fact, value in seen.facts.items()
        if fact.startswith("package.") and fact.endswith(".status") and value == "half-configured"
    )
    left = f", which left {', '.join(half)} half-configured" if half else ""
    return Diagnosis(
        "dkms-build-failed",
        f"DKMS could not build the driver for kernel {kernel}{left}: {error}",
        "choose a driver that builds on this kernel (nvidia_driver_version, nvidia_driver_flavour or "
        f"nvidia_driver_source), then gpuprov up {NODES}",
    )


def _headers(seen: _Seen) -> Diagnosis | None:
    built, headers = seen.texts("dkms.nvidia.built"), seen.facts.get("kernel.headers")
    if not isinstance(headers, list) or not seen.boots or seen.boots in headers or seen.boots in built:
        return None
    if not built and not seen.has_dkms_package:
        return None  # the module does not come from DKMS here, or not yet
    running = "" if seen.boots == seen.text("kernel.release") else ", which the next boot uses,"
    return Diagnosis(
        "headers-missing",
        f"the headers of kernel {seen.boots}{running} are not installed: DKMS cannot build the driver",
        f"gpuprov up {NODES} (installs them, and with them the module)",
    )


def _split(seen: _Seen) -> Diagnosis | None:
    library, on_disk = seen.text("driver.userspace_version"), seen.text("driver.installed_version")
    if not seen.loaded or not library or library == seen.loaded:
        return None
    cause = f"the library is {library} and the module in memory {seen.loaded}"
    cause += ': every program fails with "Driver/library version mismatch"'
    if library == on_disk:
        cause += " (an upgrade replaced the files and nothing reloaded the module)"
        following = f"drain and reboot; gpuprov up {NODES} does it within its wave"
    else:
        cause += f" (the module on disk is {on_disk or 'absent'}: an upgrade took only a part)"
        following = f"gpuprov up {NODES} (brings every part to {seen.driver_wanted or 'one version'})"
    return Diagnosis("library-module-split", cause, following)


def _reboot_pending(seen: _Seen) -> Diagnosis | None:
    on_disk = seen.text("driver.installed_version")
    library = seen.text("driver.userspace_version")
    if not seen.loaded or not on_disk or on_disk == seen.loaded or (library and library != seen.loaded):
        return None
    return Diagnosis(
        "reboot-pending",
        f"the module on disk is {on_disk} and in memory is {seen.loaded}: the next boot changes the driver",
        f"gpuprov up {NODES} (makes them one, and reboots within its wave if that is needed)",
    )


def _fabric_manager(seen: _Seen) -> Diagnosis | None:
    driver = seen.loaded or seen.text("driver.installed_version")
    version = versions.upstream(seen.text("fabric.manager_version"))
    if not driver or not version or version == driver:
        return None
    package = seen.text("fabric.manager_package") or "its package"
    both = f" (brings both to {seen.driver_wanted})" if seen.driver_wanted else ""
    return Diagnosis(
        "fabric-manager-mismatch",
        f"fabric manager is {version} ({package}) and the driver {driver}: it refuses to start the fabric, "
        "and CUDA programs end with error 802",
        f"gpuprov up {NODES}{both}",
    )


def _fabric_not_ready(seen: _Seen) -> Diagnosis | None:
    states = seen.texts("nvidia_smi.fabric.state")
    waiting = [state for state in states if state in ("In Progress", "Not Started")]
    failed = [one for one in seen.texts("nvidia_smi.fabric.status") if one not in ("Success", "N/A", "[N/A]")]
    if waiting:
        what = f"the NVLink fabric of {len(waiting)} of {len(states)} GPUs is {waiting[0]!r}"
    elif failed:
        what = f"{many(len(failed), 'GPU')} failed to join the NVLink fabric: {failed[0]!r}"
    elif seen.wanted.get("service.nvidia-fabricmanager.active") == "active" and seen.text(
        "service.nvidia-fabricmanager.active"
    ) not in ("active", ""):
        what = f"fabric manager is {seen.text('service.nvidia-fabricmanager.active')}"
    else:
        return None
    if _fabric_manager(seen) is not None:  # that mismatch is the cause
        return None
    return Diagnosis(
        "fabric-not-ready",
        f'{what}: CUDA programs end with error 802 "system not yet initialized"',
        "read /var/log/fabricmanager.log and `journalctl -u nvidia-fabricmanager` on the node, "
        f"then gpuprov up {NODES}",
    )


# Each rule with the roles that have the promises it explains.
_RULES: Mapping[Callable[[_Seen], Diagnosis | None], tuple[str, ...]] = {
    **dict.fromkeys((_nouveau, _secure_boot, _dkms, _headers, _split, _reboot_pending), ("nvidia_driver",)),
    _sources: ("nvidia_repository", "amd_repository"),
    _overruled: ("nvidia_driver",),
    **dict.fromkeys((_fabric_manager, _fabric_not_ready), ("nvlink",)),
}
