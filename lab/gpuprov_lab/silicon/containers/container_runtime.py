"""nvidia-container-runtime, which adds the requested GPUs to a container, then becomes runc or crun.

Since toolkit 1.18 its mode `auto` generates a CDI specification on the fly and applies the edits of the
devices in NVIDIA_VISIBLE_DEVICES to the container's config.json.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import devices

from containers import cdi_spec, nvidia_ctk


def nvidia_container_runtime(node, arguments: list) -> int:
    """Run nvidia-container-runtime, which is replaced by the low-level runtime unless it fails."""
    bundle = _bundle(arguments)
    if "create" in arguments or "run" in arguments:
        config = Path(bundle) / "config.json"
        try:
            settings = json.loads(config.read_text())
            if _add_gpus(node, settings):
                config.write_text(json.dumps(settings))
        except (OSError, ValueError, LookupError) as error:
            print(f"nvidia-container-runtime: {error}", file=sys.stderr)
            return 1
    for name in _low_level(node):
        program = shutil.which(name)
        if program:
            os.execv(program, [program, *arguments])  # noqa: S606
    print("no low-level runtime found from candidates [runc crun]", file=sys.stderr)
    return 1


def _bundle(arguments: list) -> str:
    for number, word in enumerate(arguments[:-1]):
        if word in ("--bundle", "-b"):
            return arguments[number + 1]
        if word.startswith("--bundle="):
            return word.partition("=")[2]
    return "."


def _low_level(node) -> list:
    config = node.root / nvidia_ctk.CONFIG.lstrip("/")
    found = re.search(r"^runtimes = \[(.*)\]$", config.read_text(), re.MULTILINE) if config.exists() else None
    return re.findall(r'"([^"]+)"', found.group(1)) if found else ["runc", "crun"]


def _add_gpus(node, settings: dict) -> bool:
    """Apply the devices that the container's environment names; False if it names none."""
    environment = settings["process"].get("env", [])
    requested = [one.partition("=")[2] for one in environment if one.startswith("NVIDIA_VISIBLE_DEVICES=")]
    if not requested or requested[-1] in ("", "void", "none"):
        return False
    spec = cdi_spec.build(node, os.environ.get("SILICON_VERSION") or "1.19.1")
    known = {one["name"]: one["containerEdits"] for one in spec["devices"]}
    _apply(settings, spec["containerEdits"])
    for name in requested[-1].split(","):
        if name not in known:
            raise LookupError(f"unresolvable CDI devices runtime.nvidia.com/gpu={name}")
        _apply(settings, known[name])
    return True


def _apply(settings: dict, edits: dict) -> None:
    settings["process"].setdefault("env", []).extend(edits.get("env", []))
    linux = settings.setdefault("linux", {})
    allowed = linux.setdefault("resources", {}).setdefault("devices", [])
    for one in edits.get("deviceNodes", []):
        major, minor, mode, group = devices.numbers(one["path"])
        entry = {"type": "c", "major": major, "minor": minor}
        linux.setdefault("devices", []).append({"path": one["path"], "fileMode": mode, "gid": group, **entry})
        allowed.append({"allow": True, "access": "rwm", **entry})
    for one in edits.get("mounts", []):
        mount = {"destination": one["containerPath"], "source": one["hostPath"], "type": "bind"}
        settings.setdefault("mounts", []).append({**mount, "options": one["options"]})
    for one in edits.get("hooks", []):
        hook = {key: one[key] for key in ("path", "args", "env")}
        settings.setdefault("hooks", {}).setdefault(one["hookName"], []).append(hook)
    groups = settings["process"].setdefault("user", {}).setdefault("additionalGids", [])
    groups.extend(one for one in edits.get("additionalGids", []) if one not in groups)
