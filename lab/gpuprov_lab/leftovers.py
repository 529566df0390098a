"""Search for a lab's leftovers on this host.

The search inspects the host, since the lab's own records may be lost or wrong. Names carry the lab
(namespaces, bridges' aliases), processes carry its folder in their arguments, and a node's processes are in
its network namespace.
"""

from __future__ import annotations

from pathlib import Path

from gpuprov_lab import cgroups, network, process
from gpuprov_lab.folders import mounts, remove_tree
from gpuprov_lab.places import PREFIX, STATE, LabPlace
from provision.errors import LabError

_PROPAGATE = [Path("/run/systemd/nspawn/propagate"), Path("/run/systemd/nspawn/unix-export")]
_OURS = ("supervisor.py", "server.py")
_FOLDERS = ("gpuprov_lab", "lab")  # of these programs; `lab` from when the lab was a part of gpuprov


def lab_process_kind(arguments: list[str], lab_folder: Path) -> str | None:
    """Return which of the lab's programs a command line is: `supervisor`, `server`, `nspawn`, or None.

    A shell, an editor or an ssh that merely mentions the folder is not a leftover.
    """
    inside = f"{lab_folder}/"
    if any(word.startswith(f"--directory={inside}") for word in arguments):
        return "nspawn"
    for name in _OURS:
        programs = tuple(f"/{folder}/{name}" for folder in _FOLDERS)
        if any(word.endswith(programs) for word in arguments) and any(
            word.startswith(inside) for word in arguments
        ):
            return name.removesuffix(".py")
    return None


def processes(lab: str) -> dict[int, str]:
    """Return pid -> kind of the lab's processes on the host, without those on nodes."""
    found = {}
    for pid, arguments in process.command_lines():
        kind = lab_process_kind(arguments, LabPlace(lab).folder)
        if kind:
            found[pid] = kind
    return found


def find(lab: str) -> list[str]:
    """List everything of `lab` that is on this host now, one line each; empty after `lab down`."""
    place = LabPlace(lab)
    spaces = network.namespaces(place.namespace_prefix)
    found = [f"process {pid} ({kind})" for pid, kind in sorted(processes(lab).items())]
    found += [f"process {pid} in {space}" for space in spaces for pid in network.namespace_pids(space)]
    found += [f"namespace {space}" for space in spaces]
    found += [f"control group {name}" for name in cgroups.find(place.namespace_prefix)]
    found += [f"bridge {name}" for name in network.bridges(lab)]
    found += [f"mount {point}" for point in mounts(place.folder)]
    found += [f"folder {path}" for path in _machine_folders(lab)]
    return found + ([f"folder {place.folder}"] if place.folder.exists() else [])


def labs_seen() -> list[str]:
    """Return the names of labs with any traces on this host, whether or not they have a folder."""
    names = {path.name for path in STATE.iterdir() if path.is_dir()} if STATE.is_dir() else set()
    names |= {space.split(".")[1] for space in network.namespaces(f"{PREFIX}.") if space.count(".") == 2}
    names |= set(network.bridge_labs())
    return sorted(names)


def remove(lab: str) -> None:
    """Remove everything of `lab` from this host: an orderly shutdown of nodes, then the rest by force.

    Works from any state, also after a killed controller, and when nothing is left. Raises LabError that names
    the remains when something cannot be removed.
    """
    place = LabPlace(lab)
    ours = processes(lab)
    process.stop_pids([pid for pid, kind in ours.items() if kind == "supervisor"], grace=25)
    # Only nodes with a killed supervisor still have an nspawn; TERM lets the node shut down.
    process.stop_pids([pid for pid, kind in processes(lab).items() if kind == "nspawn"], grace=15)
    spaces = network.namespaces(place.namespace_prefix)
    process.stop_pids([pid for space in spaces for pid in network.namespace_pids(space)], grace=1)
    groups = cgroups.find(place.namespace_prefix)
    process.stop_pids([pid for name in groups for pid in cgroups.members(name)], grace=1)
    process.stop_pids(list(processes(lab)), grace=5)
    for name in groups:
        cgroups.remove(name)
    for space in spaces:
        network.remove_namespace(space)
    for bridge in network.bridges(lab):
        network.remove_bridge(bridge)
    for folder in [*_machine_folders(lab), place.folder]:
        remove_tree(folder)
    left = find(lab)
    if left:
        raise LabError(
            f"lab {lab!r} is not wholly gone: {', '.join(left)}", f"gpuprov lab down --lab {lab}, again"
        )


def _machine_folders(lab: str) -> list[Path]:
    """Return the folders that systemd-nspawn leaves under /run for each machine."""
    return [
        path
        for folder in _PROPAGATE
        if folder.is_dir()
        for path in folder.glob(f"{LabPlace(lab).namespace_prefix}*")
    ]
