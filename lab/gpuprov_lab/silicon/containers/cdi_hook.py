"""nvidia-cdi-hook, which container runtimes run inside a container that is being created.

The runtime passes the container's state as JSON on standard input; the folder named by its `bundle` holds
config.json, which contains the path of the container's root file system.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def nvidia_cdi_hook(node, arguments: list) -> int:
    """Run nvidia-cdi-hook."""
    del node
    hooks = {"create-symlinks": _create_symlinks, "update-ldcache": _update_ldcache}
    if not arguments:
        return 0
    if arguments[0] in hooks:
        hooks[arguments[0]](_container_root(), arguments[1:])
    elif arguments[0] not in ("enable-cuda-compat", "disable-device-node-modification", "chmod"):
        print(f"Unsupported CDI hook: {arguments[0]}", file=sys.stderr)
    return 0


def _container_root() -> Path:
    state = json.loads(sys.stdin.read())
    root = json.loads((Path(state["bundle"]) / "config.json").read_text())["root"]["path"]
    return Path(state["bundle"]) / root


def _values(arguments: list, flag: str) -> list:
    return [arguments[number + 1] for number, word in enumerate(arguments[:-1]) if word == flag]


def _create_symlinks(root: Path, arguments: list) -> None:
    for link in _values(arguments, "--link"):
        target, _, path = link.partition("::")
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or place.exists():
            place.unlink()
        place.symlink_to(target)


def _update_ldcache(root: Path, arguments: list) -> None:
    """Run the host's ldconfig on the container's file system."""
    (root / "etc").mkdir(exist_ok=True)
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if os.access(program, os.X_OK):
            folders = [one for one in _values(arguments, "--folder") if (root / one.lstrip("/")).is_dir()]
            command = [program, "-r", str(root), "-C", "/etc/ld.so.cache", *folders]
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
            return
