"""amd-ctk and amd-container-runtime of AMD's container toolkit.
amd-ctk: version, cdi generate, list and validate, gpu list, runtime configure, gpu-tracker init.
amd-container-runtime gives a container the GPUs of AMD_VISIBLE_DEVICES and becomes runc. Forms:
ROCm/container-toolkit 1.3.0 (cmd/amd-ctk, internal/amdgpu, internal/cdi, internal/oci), which prints errors
to standard output. Only in the lab, the specification also mounts the substitutes of the hardware behind the
device files.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import devices
from containers.cdi_spec import OPTIONS, SIMULATED

from amd import readings

SPECIFICATION = "/etc/cdi/amd.json"
DAEMON = "/etc/docker/daemon.json"
NO_DRIVER = "amdgpu driver unavailable: stat /sys/module/amdgpu/drivers/: no such file or directory"


class RefusedError(Exception):
    """An error that ends the program with status 1; its text is printed."""


def amd_ctk(node, arguments: list) -> int:
    """Run amd-ctk."""
    words = [word for word in arguments if word not in ("--debug", "-d")]
    commands = {
        ("cdi", "generate"): _generate,
        ("cdi", "list"): _list,
        ("cdi", "validate"): _validate,
        ("gpu", "list"): _gpu_list,
        ("runtime", "configure"): _configure,
        ("gpu-tracker", "init"): _tracker,
    }
    if words == ["version"]:
        release = (os.environ.get("SILICON_VERSION") or "1.3.0").partition("~")[0]
        print(f"Version: v{release}\nBuild Date: 2026-05-20T10:11:12+0000\nGitCommit: {'0' * 40}")
        return 0
    command = commands.get(tuple(words[:2]))
    if command is None:
        print(f"No help topic for '{' '.join(words[:1])}'")
        return 3
    try:
        command(node, _flags(words[2:]))
    except RefusedError as why:
        print(why)
        return 1
    return 0


def _flags(words: list) -> dict:
    """Parse --output=PATH, --output PATH and --remove -> {"output": "PATH", "remove": ""}."""
    found = {}
    for number, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = words[number + 1] if number + 1 < len(words) else ""
            found[name] = value if equals or after.startswith("-") else after
    return found


def _gpus(node, doing: str) -> list:
    """Return the card and the render node of each GPU that the driver accepted."""
    if not node.loaded("amdgpu"):
        raise RefusedError(f"{doing}: {NO_DRIVER}")
    return [
        [f"/dev/dri/card{gpu['slot']}", f"/dev/dri/renderD{128 + gpu['slot']}"]
        for gpu in readings.answering(node)
    ]


def _node(path: str) -> dict:
    major, minor, mode, group = devices.numbers(path) or (0, 0, 0, 0)
    entry = {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": mode}
    known = {key: value for key, value in entry.items() if value}
    return {**known, "permissions": "rwm", "uid": 0, "gid": group}


def build(node) -> dict:
    """Build the specification. Raises RefusedError without a driver."""
    kfd = _node("/dev/kfd")
    nodes = [[_node(path) for path in paths] for paths in _gpus(node, "getting GPUs")]
    named = [(str(number), [*own, kfd]) for number, own in enumerate(nodes)]
    named.append(("all", [one for own in nodes for one in own] + [kfd]))
    return {
        "cdiVersion": "0.6.0",
        "kind": "amd.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": own}} for name, own in named],
        "containerEdits": {
            "mounts": [
                {"hostPath": path, "containerPath": path, "options": list(OPTIONS)} for path in SIMULATED
            ]
        },
    }


def _generate(node, flags: dict) -> None:
    output = flags.get("output") or SPECIFICATION
    try:
        text = json.dumps(build(node), indent=2) + "\n"
    except RefusedError as why:
        raise RefusedError(f"failed to generate CDI spec: {why}") from None
    path = node.root / output.lstrip("/")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        said = f"creating CDI spec file {output}: open {output}: {(error.strerror or '').lower()}"
        raise RefusedError(f"failed to write CDI spec: {said}") from None
    print(f"Generated CDI spec: {output}")


def _validate(node, flags: dict) -> None:
    place = flags.get("path") or SPECIFICATION
    print(f"Validating CDI spec: {place}")
    try:
        saved = json.loads((node.root / place.lstrip("/")).read_text())
        same = saved == build(node)
    except OSError as error:
        message = f"opening CDI spec file {place}: open {place}: {(error.strerror or '').lower()}"
        raise RefusedError(f"failed to validate CDI spec: {message}") from None
    except ValueError as error:
        raise RefusedError(f"failed to validate CDI spec: decoding CDI spec file {place}: {error}") from None
    except RefusedError as why:
        raise RefusedError(f"failed to validate CDI spec: {why}") from None
    print("CDI spec is valid" if same else "CDI spec is invalid\nPlease regenerate CDI spec")


def _found(count: int) -> None:
    print(f"Found {count} AMD GPU {'device' if count == 1 else 'devices'}")


def _list(node, flags: dict) -> None:
    del flags
    gpus = _gpus(node, "failed to list AMD devices")
    _found(len(gpus))
    for number, paths in enumerate(gpus):
        if number == 0:
            print("amd.com/gpu=all")
        print(f"amd.com/gpu={number}\n  {paths[1]}")


def _gpu_list(node, flags: dict) -> None:
    del flags
    gpus = _gpus(node, "failed to list AMD devices")
    _found(len(gpus))
    print("-" * 75 + f"\n{'GPU Id':<10}{'UUID':<25}{'DRM Devices':<40}\n" + "-" * 75)
    for number, (gpu, paths) in enumerate(zip(readings.answering(node), gpus)):  # noqa: B905 - Python 3.6
        unique = readings.identity(node, gpu)["unique_id"].lstrip("0").upper()
        print(f"{number:<10}{'0x' + unique:<25}{paths[1]:<40}")


def _tracker(node, flags: dict) -> None:
    del flags
    if not node.privileged():
        raise RefusedError("Permission denied: Not running as root")
    gpus = {str(n): {"DrmDevices": paths} for n, paths in enumerate(_gpus(node, "getting AMD GPU info"))}
    place = node.root / "var/log"
    place.mkdir(parents=True, exist_ok=True)
    (place / "gpu-tracker.json").write_text(json.dumps({"enabled": False, "gpusInfo": gpus}))


def _configure(node, flags: dict) -> None:
    """Configure Docker; `features` is replaced as a whole, and --remove deletes all of /etc/cdi."""
    if flags.get("runtime", "docker") != "docker":
        raise RefusedError(f"unsupported runtime engine: {flags['runtime']}")
    shown = flags.get("config-path") or DAEMON
    path = node.root / shown.lstrip("/")
    settings = {}
    if path.exists():
        print(f"Loading configuration from: {shown}")
        try:
            settings = json.loads(path.read_text())
        except ValueError as error:
            message = f"error decoding configuration file: {shown} | err: {error}"
            raise RefusedError(f"failed to init config for runtime engine: docker | err: {message}") from None
    if "remove" in flags:
        shutil.rmtree(str(node.root / "etc/cdi"), ignore_errors=True)
        if "runtimes" not in settings:
            return
        settings["runtimes"].pop("amd", None)
        settings.pop("features", None)
        if settings.get("default-runtime") == "amd":
            del settings["default-runtime"]
        if not settings["runtimes"]:
            del settings["runtimes"]
    else:
        settings.setdefault("runtimes", {})["amd"] = {"args": [], "path": "amd-container-runtime"}
        settings["features"] = {"cdi": True}
        if {"set-as-default", "amd-set-as-default"} & set(flags):
            settings["default-runtime"] = "amd"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings, indent=4, sort_keys=True))
    print(f"Updated the config file: {shown}\nPlease restart docker daemon")


# --- amd-container-runtime


def amd_container_runtime(node, arguments: list) -> int:
    """Run amd-container-runtime, which is replaced by runc unless it fails."""
    log = node.root / "var/log/amd-container-runtime.log"
    if "create" in arguments:
        try:
            _give(node, Path(_bundle(arguments)) / "config.json")
        except (OSError, ValueError, LookupError, RefusedError) as error:
            with log.open("a") as stream:
                stream.write(f'level=ERROR msg="Failed to run container runtime" error="{error}"\n')
            return 1
    program = shutil.which("runc")
    if program is None:
        print("unable to find runc in PATH", file=sys.stderr)
        return 1
    return os.execv(program, ["runc", *arguments])  # noqa: S606


def _bundle(arguments: list) -> str:
    for number, word in enumerate(arguments[:-1]):
        name, equals, value = word.partition("=")
        if name in ("-b", "-bundle", "--b", "--bundle"):
            return value if equals else arguments[number + 1]
    return "."


def _give(node, config: Path) -> None:
    settings = json.loads(config.read_text())
    environment = settings["process"].get("env", [])
    requested = [one.partition("=")[2] for one in environment if one.startswith("AMD_VISIBLE_DEVICES=")]
    if not requested:
        return
    gpus = _gpus(node, "getting AMD GPU info")
    paths = [path for number in _numbers(requested[-1], len(gpus)) for path in gpus[number]] + ["/dev/kfd"]
    linux = settings.setdefault("linux", {})
    for path in paths:
        major, minor, mode, group = devices.numbers(path)
        entry = {"type": "c", "major": major, "minor": minor}
        linux.setdefault("devices", []).append(
            {"path": path, "fileMode": mode, "uid": 0, "gid": group, **entry}
        )
        allowed = linux.setdefault("resources", {}).setdefault("devices", [])
        allowed.append({"allow": True, "access": "rwm", **entry})
    for path in SIMULATED:
        mount = {"destination": path, "source": path, "type": "bind", "options": list(OPTIONS)}
        settings.setdefault("mounts", []).append(mount)
    config.write_text(json.dumps(settings))


def _numbers(text: str, count: int) -> list:
    """Parse `all`, `0,2` and `0-3` to indices."""
    if text.lower() == "all":
        return list(range(count))
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    if not found <= set(range(count)):
        raise LookupError("invalid GPUs: " + text)
    return sorted(found)
