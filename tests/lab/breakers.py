"""Commands that make exactly one promised fact untrue on a node, one for each kind of fact.

A package's version and state are broken in dpkg's own database and not by installing another version: its
dependencies, files and libraries would move with it, and a test could not tell which of them was noticed.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from provision.desired.expectations import Expectation

_STATUS = "/var/lib/dpkg/status"

# A lab node is a container with this machine's clock, which tests can neither break nor repair.
NOT_ON_LAB_NODES = frozenset({"clock.keeper", "clock.state"})


def command(expectation: Expectation) -> str:
    """Return a command for a root shell. Raises LookupError for an unsupported kind of fact."""
    family, _, rest = expectation.fact.partition(".")
    item, _, attribute = rest.rpartition(".")
    known = BREAKERS.get((family, attribute)) or BREAKERS.get((family, ""))
    if known is None:
        raise LookupError(f"say in breakers.py how to break {expectation.fact}")
    return known(item or rest, expectation)


def _file_content(path: str, expectation: Expectation) -> str:
    quoted = shlex.quote(path)
    if expectation.operator == "equals" and expectation.value is None:
        return f"mkdir -p $(dirname {quoted}) && echo '# not wanted here' > {quoted}"
    if expectation.operator == "contains":
        without = f"grep -vF -- {shlex.quote(str(expectation.value))} {quoted} > /tmp/less"
        return f"{without}; cat /tmp/less > {quoted}"
    if expectation.operator == "matches":  # an alternative's file: the first line is its mode, manual or auto
        return f"sed -i '1s/^manual$/auto/' {quoted}"
    return f"echo '# changed by hand' >> {quoted}"


def _file_mode(path: str, expectation: Expectation) -> str:
    other = "0600" if expectation.value != "0600" else "0640"
    return f"chmod {other} {shlex.quote(path)}"


def _file_exists(path: str, expectation: Expectation) -> str:
    quoted = shlex.quote(path)
    return f"rm -rf {quoted}" if expectation.value else f"mkdir -p $(dirname {quoted}) && touch {quoted}"


def _in_dpkg(package: str, change: str) -> str:
    """Return a command that runs sed on one package's paragraph of dpkg's database."""
    return f"sed -i '/^Package: {package}$/,/^$/{{{change}}}' {_STATUS}"


def _there(package: str) -> str:
    """Return a command that adds a package without files to dpkg's database."""
    paragraph = (
        f"Package: {package}\\nStatus: install ok installed\\nMaintainer: nobody\\nArchitecture: all\\n"
        "Version: 1.0-1\\nDescription: not wanted here\\n"
    )
    return f"printf '\\n{paragraph}\\n' >> {_STATUS}; touch /var/lib/dpkg/info/{package}.list"


def _package_version(package: str, expectation: Expectation) -> str:
    if expectation.value is None:
        return _there(package)
    return _in_dpkg(package, "s/^Version: .*/Version: 0.0.1-1/")


def _package_status(package: str, expectation: Expectation) -> str:
    if expectation.operator == "one_of" and "absent" in expectation.value:
        return f"{_in_dpkg(package, 'd')}; {_there(package)}"
    return _in_dpkg(package, "s/^Status: \\([a-z]*\\) ok installed/Status: \\1 ok half-configured/")


def _package_held(package: str, expectation: Expectation) -> str:
    return f"apt-mark {'unhold' if expectation.value else 'hold'} {package}"


def _service_active(unit: str, expectation: Expectation) -> str:
    return f"systemctl {'stop' if expectation.value == 'active' else 'start'} {shlex.quote(unit)}"


def _service_enabled(unit: str, expectation: Expectation) -> str:
    return f"systemctl {'disable' if expectation.value == 'enabled' else 'enable'} {shlex.quote(unit)}"


def _module(name: str, expectation: Expectation) -> str:
    if expectation.value:
        return f"modprobe -r {name}"
    folder = f"/sys/module/{name.replace('-', '_')}"
    files = {"initstate": "live", "coresize": "3137536", "refcnt": "0"}
    return f"mkdir -p {folder}; " + "; ".join(
        f"echo {text} > {folder}/{file}" for file, text in files.items()
    )


def _driver(fact: str, _: Expectation) -> str:
    if fact == "loaded_version":
        return "sed -i '1s/ [0-9][0-9]*\\.[0-9.]* / 470.00.01 /' /proc/driver/nvidia/version"
    if fact == "flavour":
        return (
            "sed -i '1s/ Open Kernel Module for x86_64 / x86_64 Kernel Module /' /proc/driver/nvidia/version"
        )
    if fact == "installed_version":  # keeps the length, so that the ELF file stays intact
        change = r"s/version=[0-9]\([0-9.]*\)/version=9\1/"
        return f"sed -i '{change}' $(modinfo -n nvidia)"
    library = "/usr/lib/x86_64-linux-gnu"
    if fact == "broken_libraries":
        return (
            f": > $(readlink -f $(ls {library}/libcuda.so.1 /usr/lib64/libcuda.so.1 2>/dev/null | head -n1))"
        )
    return (
        f"cp {library}/libnvidia-ml.so.1 {library}/libnvidia-ml.so.470.1.1 && "
        f"ln -sfn libnvidia-ml.so.470.1.1 {library}/libnvidia-ml.so.1"
    )


def _sysctl(key: str, expectation: Expectation) -> str:
    other = "1" if str(expectation.value) != "1" else "0"
    return f"sysctl -w {shlex.quote(key)}={other}"


def _key(path: str, _: Expectation) -> str:
    return f"cat /usr/share/keyrings/debian-archive-keyring.gpg > {shlex.quote(path)}"


# A key without a known secret half, declared as revoked by the walk: version 4, from 2010, RSA. Its
# fingerprint is computed as in RFC 4880, 12.2.
_KEY = bytes([4, *(1262304000).to_bytes(4, "big"), 1, 2, 0, 0xC5, *range(1, 65), 0, 17, 1, 0, 1])
REVOKED = hashlib.sha1(b"\x99" + len(_KEY).to_bytes(2, "big") + _KEY).hexdigest().upper()  # noqa: S324


def _trusted_key(fingerprint: str, _: Expectation) -> str:
    assert fingerprint == REVOKED, "the secret half of a real key is not here: declare this one"
    packets = bytes([0x98, len(_KEY)]) + _KEY + bytes([0xB4, 7]) + b"Nobody."
    return f"echo {base64.b64encode(packets).decode()} | base64 -d > /etc/apt/trusted.gpg.d/nobody.gpg"


_FABRIC_MANAGER = "nvidia-fabric-\\{0,1\\}manager[-0-9]*"  # its name changes with the branch


def _fabric(fact: str, expectation: Expectation) -> str:
    if fact != "manager_held":
        return _in_dpkg(_FABRIC_MANAGER, "s/^Version: .*/Version: 0.0.1-1/")
    names = f"$(sed -n 's/^Package: \\({_FABRIC_MANAGER}\\)$/\\1/p' {_STATUS})"
    return f"apt-mark {'unhold' if expectation.value else 'hold'} {names}"


_KERNEL = {
    "headers": "rm -r /usr/src/linux-headers-$(uname -r)",
    "initramfs_stale": "touch -d 2020-01-01 /boot/initrd.img-$(uname -r)",
}

# Remains of an interrupted removal: a build log, and no sources to build again.
_FAILED_BUILDS = {
    "amdgpu": """
folder=/var/lib/dkms/amdgpu/6.10.5-2095006.24.04/build; mkdir -p $folder
echo "DKMS make.log for amdgpu/6.10.5-2095006.24.04 for kernel $(uname -r) (x86_64)" > $folder/make.log
echo "$folder/amd/amdkcl/kcl_drm.c:12:5: error: too few arguments" >> $folder/make.log
""",
    "nvidia": """
folder=/var/lib/dkms/nvidia/550.163.01/build; mkdir -p $folder
echo "DKMS (dkms-3.2.2) make.log for nvidia/550.163.01 for kernel $(uname -r) (x86_64)" > $folder/make.log
echo "$folder/nv-pci.c:237:12: error: too few arguments to function 'pci_resize_resource'" >> $folder/make.log
""",
}

_SECURE_BOOT = """
mount -t tmpfs none /sys/firmware; mkdir -p /sys/firmware/efi/efivars /var/lib/dkms
printf '\\006\\000\\000\\000\\001' > /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
printf '0\\202\\001\\012a certificate' > /var/lib/dkms/mok.pub
"""

# slurmctld restarts for this, and afterwards reports that it is up.
RECONFIGURE = "scontrol reconfigure; until scontrol ping | grep -q 'is UP'; do sleep 0.2; done"
_SLURM = "/etc/slurm/slurm.conf"
_SLURM_LINES = {
    "slurm.health_check_program": "HealthCheckProgram=/bin/true",
    "slurm.health_check_interval": "HealthCheckInterval=77",
    "slurm.prolog": "Prolog=/bin/true",
    "slurm.epilog": "Epilog=/bin/true",
}


def _slurm(_: str, expectation: Expectation) -> str:
    """Return a command that changes a line of the site's slurm.conf and makes slurmctld read it."""
    if expectation.fact == "slurm.gpus":
        return f"sed -i 's/ Gres=gpu:8 / Gres=gpu:7 /' {_SLURM}; {RECONFIGURE}"
    line = _SLURM_LINES[expectation.fact]
    other = f"sed 's|^{line.partition('=')[0]}=.*|{line}|' /etc/slurm/gpuprov.conf > /etc/slurm/other.conf"
    return f"{other}; sed -i 's/^Include gpuprov.conf/Include other.conf/' {_SLURM}; {RECONFIGURE}"


_SLURM_REPAIR = (
    "sed -i -e 's/^Include other.conf/Include gpuprov.conf/' -e 's/ Gres=gpu:7 / Gres=gpu:8 /' "
    f"{_SLURM}; {RECONFIGURE}"
)


@dataclass(frozen=True)
class ByAPerson:
    """A repair that `up` leaves to a user: the resulting status, the message, and the user's `repair`."""

    status: str
    said: str
    repair: str


BY_A_PERSON = {
    "secure_boot.rejects_dkms": ByAPerson(
        "failed", "mokutil --import", "umount /sys/firmware; rm /var/lib/dkms/mok.pub"
    ),
    "packages.source_problems": ByAPerson(
        "not as declared",
        " cannot read its ",
        "rm -f /etc/apt/sources.list.d/site.list /etc/yum.repos.d/site.repo",
    ),
    "packages.580.126.09.overruled_by": ByAPerson(
        "not as declared",
        "kept from the declared driver",
        "rm -f /etc/apt/preferences.d/site; sed -i /^excludepkgs=/d /etc/dnf/dnf.conf; true",
    ),
    **{
        fact: ByAPerson("not as declared", "scontrol reconfigure", _SLURM_REPAIR)
        for fact in ("slurm.gpus", *_SLURM_LINES)
    },
}

_NOT_JOINED = {("nvlink", "nvidia_smi.fabric.state"), ("nvlink", "nvidia_smi.fabric.status")}

# Facts that share a cause: the broken fact -> (role, fact) that must then also be reported.
TOGETHER = {
    **{
        f"file./etc/modprobe.d/{name}.conf.content": {("nvidia_driver", "kernel.initramfs_stale")}
        for name in ("blacklist-nouveau", "gpuprov-nvidia")
    },
    "file./etc/modprobe.d/gpuprov-amdgpu.conf.content": {("amdgpu_driver", "kernel.initramfs_stale")},
    **{f"group.{name}.exists": {("amdgpu_driver", f"group.{name}.members")} for name in ("render", "video")},
    "fabric.manager_version": {("nvlink", "fabric.manager_matches_driver")},
    "fabric.manager_matches_driver": {("nvlink", "fabric.manager_version")},
    **dict.fromkeys(("service.nvidia-fabricmanager.active", "driver.userspace_version"), _NOT_JOINED),
    # A GPU that has not joined has no result either.
    **dict.fromkeys(("nvidia_smi.fabric.state", "nvidia_smi.fabric.status"), _NOT_JOINED),
    "driver.loaded_version": {
        ("nvlink", "fabric.manager_matches_driver"),
        *_NOT_JOINED,
    },
    "service.prometheus-node-exporter.service.active": {("gpu_metrics", "tcp.9100.listening")},
    "service.nvidia-dcgm.service.active": {
        ("gpu_metrics", "service.nvidia-dcgm-exporter.service.active"),
        ("gpu_metrics", "tcp.9400.listening"),
    },
    "service.nvidia-dcgm-exporter.service.active": {("gpu_metrics", "tcp.9400.listening")},
}


_LISTENERS = {"9100": "prometheus-node-exporter.service", "9400": "nvidia-dcgm-exporter.service"}


def _deaf(port: str, _: Expectation) -> str:
    """Return a command that makes a running service listen nowhere, as if hung; a restart repairs it."""
    unit = _LISTENERS[port]
    folder = f"/run/systemd/system/{unit}.d"
    dropin = "[Service]\\nType=exec\\nExecStart=\\nExecStart=/bin/sleep infinity\\n"
    return (
        f"mkdir -p {folder} && printf '{dropin}' > {folder}/99-deaf.conf && systemctl daemon-reload && "
        f"systemctl restart {unit} && rm -r {folder} && systemctl daemon-reload"
    )


def _locked_memory(subject: str, _: Expectation) -> str:
    if subject == "session":
        return "printf '* - memlock 64\\nroot - memlock 64\\n' > /etc/security/limits.d/99-other.conf"
    if subject == "systemd":  # the file is unchanged, but systemd has read a different one
        file = "/etc/systemd/system.conf.d/90-gpuprov-rdma.conf"
        return (
            f"cp -p {file} /tmp/kept && sed -i 's/=.*/=64K/' {file} && systemctl daemon-reexec && "
            f"cp -p /tmp/kept {file}"
        )
    unit = f"/run/systemd/system/{subject}"
    return (
        f"printf '[Service]\\nType=exec\\nExecStart=/bin/sleep infinity\\n' > {unit} && "
        f"systemctl daemon-reload && systemctl start {subject} && "
        f"prlimit --pid $(systemctl show --property=MainPID --value {subject}) --memlock=65536:"
    )


def _kernel_file(path: str, text: str) -> str:
    """Return a command that overlays a kernel file with other text, for this node only."""
    return f"echo {text} > /run/broken && mount --bind /run/broken {path}"


def _governors(_item: str, _: Expectation) -> str:
    folder = "/sys/devices/system/cpu/cpufreq"
    policy = f"{folder}/policy0"
    return f"mount -t tmpfs none {folder} && mkdir {policy} && echo powersave > {policy}/scaling_governor"


# In the specification, a device ends with its permissions, and the list of mounts comes last.
_CDI = {
    "cdi.missing": r"sed -i '/path: .dev.nvidia7$/,/permissions:/d' /var/run/cdi/nvidia.yaml",
    "cdi.stale": "echo '        - hostPath: /usr/lib/libgone.so.1' >> /var/run/cdi/nvidia.yaml",
    "dev_char.missing": "rm /dev/char/195:0",
}


# AMD's specification is JSON: this code changes the device files of each device.
_AMD_CDI = """python3 -c '
import json
path = "/etc/cdi/amd.json"
text = json.load(open(path))
for device in text["devices"]:
    nodes = device["containerEdits"]["deviceNodes"]
    device["containerEdits"]["deviceNodes"] = {change}
json.dump(text, open(path, "w"))
'"""
_AMD_CDI_CHANGES = {
    "missing": '[one for one in nodes if one["path"] != "/dev/dri/renderD135"]',
    "stale": '[*nodes, {"path": "/dev/dri/card99"}]',
}


def _amd_cdi(_: str, expectation: Expectation) -> str:
    return _AMD_CDI.replace("{change}", _AMD_CDI_CHANGES[expectation.fact.partition(".")[2]])


def _runtime_mode(_: str, __: Expectation) -> str:
    return """sed -i 's/^mode = "auto"$/mode = "legacy"/' /etc/nvidia-container-runtime/config.toml"""


_OVERRULING = """if [ -d /etc/apt/preferences.d ]
then printf 'Package: *nvidia*\\nPin: version 570.*\\nPin-Priority: 1002\\n' > /etc/apt/preferences.d/site
else echo 'excludepkgs=nvidia-open' >> /etc/dnf/dnf.conf
fi"""

BREAKERS: dict[tuple[str, str], Callable[[str, Expectation], str]] = {
    ("file", "content"): _file_content,
    ("file", "sha256"): lambda path, _: f"echo '# changed by hand' >> {shlex.quote(path)}",
    ("file", "mode"): _file_mode,
    ("file", "owner"): lambda path, _: f"chown nobody {shlex.quote(path)}",
    ("file", "exists"): _file_exists,
    ("file", "target"): lambda path, _: f"ln -sfn /nowhere {shlex.quote(path)}",
    ("package", "version"): _package_version,
    ("package", "status"): _package_status,
    ("package", "held"): _package_held,
    ("service", "active"): _service_active,
    ("service", "enabled"): _service_enabled,
    ("module", "loaded"): _module,
    ("driver", ""): _driver,
    ("sysctl", "value"): _sysctl,
    ("packages", "source_problems"): lambda _, __: (
        "if test -d /etc/yum.repos.d; then echo site > /etc/yum.repos.d/site.repo; "
        "else echo deb > /etc/apt/sources.list.d/site.list; fi"
    ),
    ("packages", "overruled_by"): lambda _, __: _OVERRULING,
    ("packages", "stream"): lambda module, _: (
        f"sed -i 's/^stream=.*/stream=570-dkms/' /etc/dnf/modules.d/{module}.module"
    ),
    ("pgp_key", "fingerprints"): _key,
    ("pgp_key", "trusted_by"): _trusted_key,
    ("dkms", "failed"): lambda module, _: _FAILED_BUILDS[module],
    ("amdgpu", "loaded_version"): lambda _, __: "echo 6.1.1 > /sys/module/amdgpu/version",
    ("amdgpu", "compute_partitions"): lambda _, __: (
        "echo DPX > $(ls /sys/bus/pci/devices/*/current_compute_partition | head -n1)"
    ),
    ("amdgpu", "power_limits"): lambda _, __: (
        "echo 500000000 > $(ls /sys/bus/pci/devices/*/hwmon/hwmon*/power1_cap | tail -n1)"
    ),
    # Keep the length, so that the ELF file stays intact.
    ("amdgpu", "installed_version"): lambda _, __: (
        r"sed -i 's/version=[0-9]\([0-9.]*\)/version=9\1/' $(modinfo -n amdgpu)"
    ),
    ("group", "exists"): lambda name, _: f"sed -i '/^{name}:/d' /etc/group",
    ("group", "members"): lambda name, _: f"sed -i 's/^\\({name}:.*:\\).*/\\1/' /etc/group",
    ("kernel", ""): lambda fact, _: _KERNEL[fact],
    ("secure_boot", ""): lambda _, __: _SECURE_BOOT,
    ("fabric", ""): _fabric,
    # fabric manager runs, but the GPUs have not joined
    **dict.fromkeys(
        (("nvidia_smi", "state"), ("nvidia_smi", "status")),
        lambda _, __: "rm -f /var/lib/silicon/run/fabricmanager.ready",
    ),
    ("container", ""): lambda _, expectation: _CDI[expectation.fact.partition(".")[2]],
    ("container_runtime", "mode"): _runtime_mode,
    ("amd_cdi", ""): _amd_cdi,
    ("limits", "memlock"): _locked_memory,
    ("cpu", "governors"): _governors,
    ("tcp", "listening"): _deaf,
    # The result is written only once an hour there (test_expectation_walk_in_service.py).
    ("node_health", "result"): lambda _, __: "rm /run/gpuprov/health.json",
    ("slurm", ""): _slurm,
    ("memory", "numa_balancing"): lambda _, __: _kernel_file("/proc/sys/kernel/numa_balancing", "1"),
}
