"""Readers of each family of facts: testinfra's modules, or `host.run` if it has none.

Only fact names (docs/facts.md) and the definition of a GPU on the PCI bus are shared with the program that
gpuprov sends to nodes. If both would read the same file in the same way, another source is used here.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from typing import Any

from provision.node.observe.vendors import part_of

# Each is read by the method of its name.
_FAMILIES = frozenset(
    {"package", "file", "service", "module", "sysctl", "driver", "nvidia_smi", "kernel", "gpu"}
    | {"secure_boot", "pgp_key"}
)
_VERSION = re.compile(r"^\d+(?:\.\d+)+$")


class Unreadable(Exception):  # noqa: N818 - not an error: the test is skipped with this text
    """A fact has no independent reader; the text is the reason."""


class Reader:
    """Reader of one node's facts; caches output of programs that list many facts, so use it only once."""

    def __init__(self, host: Any) -> None:
        """Store testinfra's `host`."""
        self.host = host

    def read(self, fact: str) -> Any:
        """Read a fact as docs/facts.md describes it. Raises Unreadable."""
        family, _, rest = fact.partition(".")
        if family not in _FAMILIES:
            raise Unreadable(f"testinfra has no way of its own to read {family} facts")
        return getattr(self, family)(rest)

    # --- packages

    def package(self, rest: str) -> Any:
        name, _, attribute = rest.rpartition(".")
        if attribute == "held":
            return name in self._held
        if attribute not in ("version", "status"):
            raise Unreadable(f"unknown attribute {attribute}")
        if self._has_dpkg:
            result = self.host.run("dpkg-query -f '${db:Status-Status}' -W %s", name)
            status = result.stdout.strip() if result.rc == 0 else "not-installed"
            if attribute == "status":
                return "absent" if status == "not-installed" else status
            if status in ("not-installed", "config-files"):
                return None
            return self.host.package(name).version
        package = self.host.package(name)
        if attribute == "status":
            return "installed" if package.is_installed else "absent"
        if not package.is_installed:
            return None
        epoch = self.host.check_output("rpm -q --queryformat='%%{EPOCH}' %s", name)
        before = "" if epoch in ("(none)", "0") else f"{epoch}:"
        return f"{before}{package.version}-{package.release}"

    @functools.cached_property
    def _has_dpkg(self) -> bool:
        return bool(self.host.file("/var/lib/dpkg/status").exists)

    @functools.cached_property
    def _held(self) -> frozenset[str]:
        if not self._has_dpkg:
            raise Unreadable("only dnf can tell what its versionlock means for a package")
        return frozenset(self.host.check_output("apt-mark showhold").split())

    # --- files

    def file(self, rest: str) -> Any:
        path, _, attribute = rest.rpartition(".")
        file = self.host.file(path)
        if attribute == "target":
            return self.host.check_output("readlink %s", path) if file.is_symlink else None
        if attribute == "exists":
            return bool(file.exists)
        if not file.exists:
            return None
        if attribute == "content":
            return file.content.decode("utf-8", "replace")
        if attribute == "sha256":
            return file.sha256sum
        if attribute in ("mode", "owner"):
            # testinfra's mode and user describe the link itself, the fact its target.
            real = self.host.file(self.host.check_output("readlink -f %s", path))
            return f"{real.mode:04o}" if attribute == "mode" else f"{real.user}:{real.group}"
        raise Unreadable(f"unknown attribute {attribute}")

    # --- services, modules, parameters

    def service(self, rest: str) -> Any:
        unit, _, attribute = rest.rpartition(".")
        exists = self.host.run("systemctl cat %s", unit).rc == 0
        if not exists:
            return None
        service = self.host.service(unit)
        if attribute == "active":
            state = self.host.run("systemctl is-active %s", unit).stdout.strip()
            # testinfra and systemctl must agree; `activating` is not running.
            return state if service.is_running == (state == "active") else f"{state}, but testinfra disagrees"
        if attribute == "enabled":
            return self.host.run("systemctl is-enabled %s", unit).stdout.strip() or None
        raise Unreadable(f"unknown attribute {attribute}")

    def module(self, rest: str) -> Any:
        name = rest.rpartition(".")[0].replace("-", "_")
        return name in self._modules

    @functools.cached_property
    def _modules(self) -> frozenset[str]:
        lines = self.host.check_output("lsmod").splitlines()[1:]
        return frozenset(line.split()[0] for line in lines if line.strip())

    def sysctl(self, rest: str) -> Any:
        return str(self.host.sysctl(rest.rpartition(".")[0]))

    # --- the driver

    def driver(self, rest: str) -> Any:
        if rest == "loaded_version":
            version = self.host.file("/sys/module/nvidia/version")
            return version.content_string.strip() if version.exists else None
        if rest == "installed_version":
            for name in ("nvidia", "nvidia-current", "nvidia-current-open"):
                result = self.host.run("modinfo -F version %s", name)
                if result.rc == 0:
                    return result.stdout.strip()
            return None
        if rest == "userspace_version":
            return self._library
        if rest == "flavour":
            version = self.host.file("/proc/driver/nvidia/version")
            if not version.exists:
                return None
            return "open" if "Open Kernel Module" in version.content_string else "proprietary"
        if rest == "mismatch":
            loaded, library = self.driver("loaded_version"), self._library
            differ = loaded is not None and library is not None and loaded != library
            return f"module {loaded}, library {library}" if differ else None
        raise Unreadable(f"unknown attribute {rest}")

    @functools.cached_property
    def _library(self) -> str | None:
        for line in self.host.check_output("ldconfig -p").splitlines():
            if line.strip().startswith("libnvidia-ml.so.1 "):
                real = self.host.check_output("readlink -f %s", line.rpartition(" => ")[2].strip())
                version = real.rpartition("libnvidia-ml.so.")[2]
                return version if _VERSION.match(version) else None
        return None

    def nvidia_smi(self, rest: str) -> Any:
        result = self.host.run("nvidia-smi --query-gpu=%s --format=csv,noheader,nounits", rest)
        if result.rc != 0:
            raise Unreadable(f"nvidia-smi ended with {result.rc}")
        lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
        # Drivers 535 to 580 print the last word of the field before its value: `state  Completed`.
        label = f"{rest.rpartition('.')[2]} " if rest.startswith("fabric.") else ""
        return [line.removeprefix(label).strip() for line in lines]

    # --- the machine

    def kernel(self, rest: str) -> Any:
        if rest == "release":
            return self.host.check_output("uname -r")
        raise Unreadable(f"kernel.{rest} is computed by gpuprov, and no tool prints it")

    def gpu(self, rest: str) -> Any:
        if rest != "count":
            raise Unreadable(f"gpu.{rest} is computed by gpuprov, and no tool prints it")
        return len(self.pci_functions("gpu"))

    def pci_functions(self, part: str) -> list[str]:
        """Return PCI ids (10de:2330) of all functions that are a `gpu` or a `switch`, in address order.

        Virtual functions of a GPU are left out."""
        script = (
            "cd /sys/bus/pci/devices && for d in *; do test -e $d/class && test ! -e $d/physfn && "
            "echo $d $(cat $d/class $d/vendor $d/device); done; true"
        )
        rows = [line.split() for line in self.host.check_output(script).splitlines()]
        numbers = [
            (address, kind, *(number.removeprefix("0x") for number in (vendor, device)))
            for address, kind, vendor, device in (row for row in rows if len(row) == 4)
        ]
        return [
            f"{vendor}:{device}"
            for _, kind, vendor, device in sorted(numbers)
            if part_of(vendor, device, kind) == part
        ]

    def secure_boot(self, rest: str) -> Any:
        if rest != "enabled" or not self.host.exists("mokutil"):
            raise Unreadable("no other tool than mokutil prints it, and the node has none")
        result = self.host.run("mokutil --sb-state")
        return None if result.rc != 0 else "SecureBoot enabled" in result.stdout

    def pgp_key(self, rest: str) -> Any:
        path, _, attribute = rest.rpartition(".")
        if attribute != "fingerprints":
            raise Unreadable(f"pgp_key.*.{attribute} is computed by gpuprov, and no tool prints it")
        file = self.host.file(path)
        if not file.exists:
            return None
        try:
            with tempfile.TemporaryDirectory(prefix="gpuprov-gpg-") as home:
                done = subprocess.run(
                    ["gpg", "--batch", "--no-options", "--homedir", home, "--with-colons", "--show-keys"],
                    input=file.content,
                    capture_output=True,
                    timeout=30,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as why:
            raise Unreadable(f"gpg cannot be started on this machine: {why}") from None
        fingerprints, primary = [], False
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            words = line.split(":")
            if words[0] in ("pub", "sub"):
                primary = words[0] == "pub"
            elif words[0] == "fpr" and primary:
                fingerprints.append(words[9])
                primary = False
        return fingerprints
