"""modprobe and rmmod for a node on the host's kernel, with simulated modules of NVIDIA and AMD."""

import os
import platform
import subprocess
import sys

import devices
import kernel_log
import surfaces
import xid
from amd import driver_log, sysfs
from module_file import Settings, find, information
from nvidia_smi import mig_files

# Modules without effect here, which the host's kernel may lack.
HARMLESS = ("ib_umad", "ib_uverbs", "rdma_ucm", "nvidia_peermem", "ib_core", "mlx5_core", "mlx5_ib")
NVIDIA = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
# The other entries are parts that AMD's package builds with amdgpu.
AMD = (
    "amdgpu",
    "amdkcl",
    "amdttm",
    "amd_sched",
    "amddrm_buddy",
    "amddrm_exec",
    "amddrm_ttm_helper",
    "amdxcp",
)
SIMULATED = (*HARMLESS, *NVIDIA, *AMD, "nouveau")
NO_DEVICE, BAD_FORMAT, NOT_PERMITTED = "No such device", "Exec format error", "Operation not permitted"
INVALID = "Invalid argument"


class RefusedError(Exception):
    """The module was not loaded; the text is the error of the system call."""


def modprobe(node, arguments: list) -> int:
    """Simulate the modules above, and pass everything else on to the real kmod."""
    flags = [word for word in arguments if word.startswith("-")]
    names = [word.replace("-", "_") for word in arguments if not word.startswith("-") and "=" not in word]
    every = "-a" in flags or "--all" in flags
    ours = names[:] if every or _removing(flags) else names[:1]
    other = {"-c", "--showconfig", "-V", "--version", "-h", "--help", "-R", "--resolve-alias"} & set(flags)
    if other or not ours or any(name not in SIMULATED for name in ours):
        return _kmod("modprobe", arguments)
    quiet = "-q" in flags or "--quiet" in flags
    if "-D" in flags or "--show-depends" in flags:
        return max(_show_depends(node, name) for name in ours)
    if "-n" in flags or "--dry-run" in flags or "--show" in flags:
        return 0 if all(_known(node, name) for name in ours) else 1
    if _removing(flags):
        return max(_remove(node, name, quiet) for name in ours)
    obeys = "-b" in flags or "--use-blacklist" in flags
    ignore = "-i" in flags or "--ignore-install" in flags
    return max(_insert(node, name, quiet, obeys, ignore) for name in ours)


def rmmod(node, arguments: list) -> int:
    """Run `rmmod NAME…` for simulated modules."""
    names = [word.replace("-", "_") for word in arguments if not word.startswith("-")]
    if not names or any(name not in SIMULATED for name in names):
        return _kmod("rmmod", arguments)
    status = 0
    for name in names:
        users = surfaces.holders(node.folder, name)
        if not node.loaded(name):
            message = f"Module {name} is not currently loaded"
        elif users:
            message = f"Module {name} is in use by: {' '.join(users)}"
        elif _busy(node, name):
            message = f"Module {name} is in use"
        elif not os.access(str(node.folder / "sys_module"), os.W_OK):
            message = f"could not remove '{name}': {NOT_PERMITTED}"
        else:
            _unload(node, name)
            continue
        print(f"rmmod: ERROR: {message}", file=sys.stderr)
        status = 1
    return status


def load(node, name: str) -> None:
    """Load a module with its dependencies. Raises RefusedError, or FileNotFoundError if it is missing."""
    if node.loaded(name):
        return
    path = find(node.root, name)
    if (
        path is None
        and name not in HARMLESS
        and not (name == "nouveau" and node.data.get("nouveau_in_kernel"))
    ):
        raise FileNotFoundError(name)
    facts = information(path) if path else {}
    if facts and facts.get("vermagic", "").split(" ")[0] not in ("", platform.release()):
        kernel_log.append(
            node.folder,
            [f"{name}: version magic '{facts['vermagic']}' should be '{platform.release()} SMP preempt'"],
        )
        raise RefusedError(BAD_FORMAT)
    if name == "nvidia_peermem" and path and "ib_core" not in facts.get("depends", ""):
        raise RefusedError(INVALID)  # built without OFED's peer memory interface
    depends = [
        one.replace("-", "_")
        for one in facts.get("depends", "").split(",")
        if one.replace("-", "_") in SIMULATED
    ]
    for other in depends:
        load(node, other)
    if name == "nvidia":
        _load_nvidia(node, facts)
    elif name == "nouveau":
        kernel_log.append(
            node.folder,
            [f"nouveau {gpu['address']}: NVIDIA {node.sku['architecture']}" for gpu in node.present()],
        )
    surfaces.load_module(node.folder, name, facts.get("version", ""), depends)
    devices.make(node, name)
    if name == "amdgpu" and node.vendor == "amd":
        kernel_log.append(node.folder, driver_log.at_loading(node, facts.get("version", "")))
        surfaces.write_all(node)
        xid.report(node, node.faults)
    if name == "nvidia":
        mig_files.write(node)
        xid.report(node, node.faults)


def _load_nvidia(node, facts: dict) -> None:
    version = facts.get("version", "0")
    flavour = "proprietary" if facts.get("license") == "NVIDIA" else "open"
    gpus = node.present()
    head = [
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
    ]
    refused = []
    if node.loaded("nouveau") and "modeset=0" not in Settings(node.root).options.get("nouveau", []):
        refused = [
            f"NVRM: The NVIDIA probe routine was not called for {len(gpus)} device(s).",
            "NVRM: This can occur when a driver such as: ",
            "NVRM: nouveau, rivafb, nvidiafb or rivatv ",
            "NVRM: was loaded and obtained ownership of the NVIDIA device(s).",
            "NVRM: Try unloading the conflicting kernel module (and/or reconfigure your kernel without the "
            "conflicting "
            "driver(s)), then try loading the NVIDIA kernel module again.",
            "NVRM: No NVIDIA devices probed.",
        ]
    elif not gpus:
        refused = ["NVRM: No NVIDIA GPU found."]
    elif int(version.split(".")[0]) < node.sku["driver"] or (
        flavour == "proprietary" and node.sku.get("open_only")
    ):
        why = _unsupported(node, gpus[0], version, flavour)
        refused = [*why, "NVRM: None of the NVIDIA devices were initialized."]
    if refused:
        kernel_log.append(node.folder, [*head, *refused])
        raise RefusedError(NO_DEVICE)
    probes = [f"nvidia {gpu['address']}: enabling device (0140 -> 0142)" for gpu in gpus]
    surfaces.write_driver(node, version, flavour)
    banner = (
        surfaces.version_text(version, flavour).splitlines()[0].replace("NVRM version: ", "NVRM: loading ", 1)
    )
    kernel_log.append(node.folder, [*head, *probes, banner])


def _unsupported(node, gpu, version: str, flavour: str) -> list:
    bus, device = gpu["address"], node.sku["device"]
    if flavour == "proprietary" and node.sku.get("open_only"):
        why = ["NVRM: installed in this system requires use of the NVIDIA open kernel modules."]
    else:
        why = [
            "NVRM: installed in this system is not supported by the",
            f"NVRM: NVIDIA {version} driver release.",
        ]
    return [f"NVRM: The NVIDIA GPU {bus} (PCI ID: 10de:{device})", *why]


def _insert(node, name: str, quiet: bool, obeys_blacklist: bool, ignore_install: bool) -> int:
    settings = Settings(node.root)
    if obeys_blacklist and name in settings.blacklisted:
        return 0
    if name in settings.install and not ignore_install:
        status = subprocess.call(["/bin/sh", "-c", settings.install[name]])
        if status:
            print(
                "modprobe: ERROR: ../libkmod/libkmod-module.c:1084 command_do() Error running install "
                f"command '{settings.install[name]}' for module {name}: retcode {status}",
                file=sys.stderr,
            )
            print(f"modprobe: ERROR: could not insert '{name}': Invalid argument", file=sys.stderr)
        return 1 if status else 0
    try:
        if not node.loaded(name) and not os.access(str(node.folder / "sys_module"), os.W_OK):
            raise RefusedError(NOT_PERMITTED)
        load(node, name)
    except FileNotFoundError as missing:
        if not quiet:
            where = f"/lib/modules/{platform.release()}"
            print(f"modprobe: FATAL: Module {missing} not found in directory {where}", file=sys.stderr)
        return 1
    except RefusedError as reason:
        print(f"modprobe: ERROR: could not insert '{name}': {reason}", file=sys.stderr)
        return 1
    return 0


def _remove(node, name: str, quiet: bool) -> int:
    if not node.loaded(name):
        if _known(node, name):
            return 0
        if not quiet:
            print(f"modprobe: FATAL: Module {name} not found.", file=sys.stderr)
        return 1
    if surfaces.holders(node.folder, name) or _busy(node, name):
        print(f"modprobe: FATAL: Module {name} is in use.", file=sys.stderr)
        return 1
    if not os.access(str(node.folder / "sys_module"), os.W_OK):
        print(f"modprobe: ERROR: could not remove '{name}': {NOT_PERMITTED}", file=sys.stderr)
        return 1
    below = [one for one in SIMULATED if node.loaded(one) and name in surfaces.holders(node.folder, one)]
    _unload(node, name)
    for other in below:
        if not surfaces.holders(node.folder, other) and not _busy(node, other):
            _unload(node, other)
    return 0


def _unload(node, name: str) -> None:
    if name == "amdgpu" and node.vendor == "amd":
        sysfs.keep_memory_modes(node)
    surfaces.unload_module(node.folder, name)
    if name == "amdgpu" and node.vendor == "amd":
        surfaces.write_all(node)


def _show_depends(node, name: str) -> int:
    path = find(node.root, name)
    if path is None:
        print(
            f"modprobe: FATAL: Module {name} not found in directory /lib/modules/{platform.release()}",
            file=sys.stderr,
        )
        return 1
    for other in [one for one in information(path).get("depends", "").split(",") if one]:
        _show_depends(node, other)
    print(f"insmod {path} ")
    return 0


def _known(node, name: str) -> bool:
    return (
        name in HARMLESS
        or find(node.root, name) is not None
        or (name == "nouveau" and node.data.get("nouveau_in_kernel", False))
    )


def _busy(node, name: str) -> bool:
    """Whether a program has the module's devices open."""
    daemons = ("persistenced", "fabricmanager.ready")
    return name in ("nvidia", "nvidia_uvm") and (
        bool(node.loads()) or any(node.running(one) for one in daemons)
    )


def _removing(flags: list) -> bool:
    return "-r" in flags or "--remove" in flags


def _kmod(tool: str, arguments: list) -> int:
    for program in ("/bin/kmod", "/usr/bin/kmod"):
        if os.access(program, os.X_OK):
            os.execv(program, [tool, *arguments])  # noqa: S606 (kmod is told by its name what to be)
    print(f"{tool}: kmod is missing", file=sys.stderr)
    return 1
