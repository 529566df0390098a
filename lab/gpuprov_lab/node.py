"""One lab node: its disk, its boot, its power, and access to it."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from gpuprov_lab import cgroups, network, process, silicon_state
from gpuprov_lab.command import attempt, call
from gpuprov_lab.layer import write_file
from gpuprov_lab.places import SILICON, NodePlace
from gpuprov_lab.record import LabRecord, NodeRecord
from gpuprov_lab.trees import USER
from provision.errors import LabError

SUPERVISOR = Path(__file__).with_name("supervisor.py")
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
BOOT_SECONDS = 120
# A container runtime writes below /proc/sys, and makes system calls that no other service needs.
CONTAINER_ENVIRONMENT = ("SYSTEMD_NSPAWN_API_VFS_WRITABLE=1", "SYSTEMD_SECCOMP=0")
# Container runtimes keep images as overlays, which cannot lie on the overlay that is a node's disk.
CONTAINER_FOLDERS = ("docker", "containers", "containerd")


def prepare(lab: LabRecord, node: NodeRecord, image: Sequence[Path] = ()) -> None:
    """Create the node's empty disk, identity and simulated silicon unless it has them.

    `image`: disks of nodes of the same kind (NodePlace.disk), newest first, as the initial content in place
    of the bare release; those nodes have to stay off as long as this one exists.
    """
    place = lab.node_place(node)
    if (place.folder / "prepared").exists():
        return
    shutil.rmtree(place.folder, ignore_errors=True)
    for name in ("work", "root"):
        (place.folder / name).mkdir(parents=True)
    write_file(place.disk, "etc/hostname", f"{node.name}\n")
    write_file(place.disk, "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    write_file(place.disk, HOST_KEY, "", 0o600)
    (place.disk / HOST_KEY).unlink()
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", node.name, "-f", place.disk / HOST_KEY)
    silicon_state.create(place, node.sku, lab.seed * 1000 + node.index, lab.speed, node.network)
    if image:
        place.image.write_text(json.dumps([str(disk) for disk in image]))
    (place.folder / "prepared").touch()


def power_on(lab: LabRecord, node: NodeRecord, layer: Path, tree: Path) -> bool:
    """Start the node's supervisor unless it runs; True if it was started. Does not wait for the boot."""
    place = lab.node_place(node)
    if process.running(place.pidfile):
        return False
    network.ensure_namespace(place.namespace, lab.octet, node.index)
    write_file(place.disk, "etc/hosts", _hosts(lab))
    root = place.folder / "root"
    image = json.loads(place.image.read_text()) if place.image.exists() else []
    lower = ":".join([*image, str(layer), str(tree)])
    mounts = [[lower, str(place.disk), str(place.folder / "work"), str(root)]]
    place.boot_plan.write_text(
        json.dumps(
            {
                "mounts": mounts,
                "cgroup": str(cgroups.folder(place.namespace)),
                "nspawn": nspawn(lab, node, root),
            },
            indent=2,
        )
    )
    with place.boot_log.open("a") as log:
        log.write(f"--- power on {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    # The node's mounts exist in this namespace only; "slave" propagates deleted network namespaces to it.
    apart = ["unshare", "--mount", "--propagation", "slave"]
    process.start(
        [*apart, sys.executable, "-I", str(SUPERVISOR), str(place.folder)], place.pidfile, place.boot_log
    )
    return True


def power_off(lab: LabRecord, node: NodeRecord) -> None:
    """Shut the node down and pull its cable; its disk stays as is."""
    process.stop(lab.node_place(node).pidfile, grace=25)
    network.plug(lab.octet, node.index, False)


def nspawn(lab: LabRecord, node: NodeRecord, root: Path) -> list[str]:
    """Return the command that boots the node in its namespace with its simulated silicon."""
    place = lab.node_place(node)
    # nspawn gives the node a cgroup v1 host's layout by default; Debian 13's systemd needs v2.
    unified = ["env", "UNIFIED_CGROUP_HIERARCHY=1", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1"]
    return [
        *unified,
        *(CONTAINER_ENVIRONMENT if node.containers else ()),
        *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe"),
        *("--kill-signal=SIGRTMIN+3", "--link-journal=no", "--resolv-conf=off", "--timezone=off"),
        *(f"--directory={root}", f"--machine={place.namespace}", f"--hostname={node.name}"),
        f"--network-namespace-path={network.NAMESPACES / place.namespace}",
        f"--bind-ro={SILICON}:/usr/lib/silicon",
        f"--bind={place.silicon}:/var/lib/silicon",
        f"--bind={place.silicon / 'sys_pci'}:/sys/bus/pci/devices",
        f"--bind={place.silicon / 'sys_module'}:/sys/module",
        *(_for_containers(place) if node.containers else ()),
    ]


def _for_containers(place: NodePlace) -> list[str]:
    """Return the extra options for container runtimes: all capabilities, and disks that are not overlays."""
    folders = {f"/var/lib/{name}": place.folder / "volumes" / name for name in CONTAINER_FOLDERS}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return ["--capability=all", *(f"--bind={folder}:{inside}" for inside, folder in folders.items())]


def host_key_line(lab: LabRecord, node: NodeRecord) -> str:
    """Return the node's line for known_hosts, read from its disk, so that no key is trusted on first use."""
    key = (lab.node_place(node).disk / f"{HOST_KEY}.pub").read_text().split()
    return f"{lab.address(node)},{node.name} {key[0]} {key[1]}\n"


def ssh(lab: LabRecord, node: NodeRecord, command: Sequence[str] = (), quiet: bool = True) -> list[str]:
    """Return the ssh command line that runs `command` on the node, or a login shell without one."""
    options = {
        "UserKnownHostsFile": str(lab.place.known_hosts),
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "ConnectTimeout": "15",
        **({"BatchMode": "yes", "LogLevel": "ERROR"} if quiet else {}),
    }
    words = [f"-o{key}={value}" for key, value in options.items()]
    return [
        *("ssh", "-F", "/dev/null", "-i", str(lab.place.key)),
        *words,
        f"{USER}@{lab.address(node)}",
        *command,
    ]


def answers(address: str, seconds: float = 0.3) -> bool:
    """Whether an SSH server answers at `address`."""
    try:
        with socket.create_connection((address, 22), timeout=seconds) as connection:
            connection.settimeout(2)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_ready(
    lab: LabRecord, node: NodeRecord, give_up: threading.Event | None = None, seconds: float = BOOT_SECONDS
) -> str:
    """Wait until the node has booted and accepts logins; returns systemd's state (`running`, `degraded`).

    Raises LabError that names the boot log if it takes longer than `seconds`, or if the node died.
    """
    place, address = lab.node_place(node), lab.address(node)
    deadline = time.monotonic() + seconds
    state = "no SSH server answered"
    while time.monotonic() < deadline and not (give_up and give_up.is_set()):
        if not process.running(place.pidfile):
            raise LabError(f"{node.name} died while booting: {boot_log_tail(place)}", f"see {place.boot_log}")
        if not answers(address):
            time.sleep(0.1)
            continue
        left = max(5.0, deadline - time.monotonic())
        done = attempt(*ssh(lab, node, ["systemctl is-system-running --wait"]), timeout=left)
        if done.stdout.strip() in {"running", "degraded"}:
            return done.stdout.strip()
        state = f"{done.stderr.strip()} {done.stdout.strip()}".strip() or f"ssh ended with {done.returncode}"
        time.sleep(0.2)  # until pam_nologin admits users, or systemd can report its state
    raise LabError(f"{node.name} was not ready within {seconds:.0f} s: {state}", f"see {place.boot_log}")


def boot_log_tail(place: NodePlace) -> str:
    """Return the last lines of the node's console, or a note that there are none."""
    try:
        lines = place.boot_log.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    return " / ".join(lines[-4:]) or "its boot log is empty"


def remote_text(words: Sequence[str]) -> str:
    """Join `words` for the node's shell: a single word is shell code, several words are quoted."""
    return words[0] if len(words) == 1 else shlex.join(words)


def _hosts(lab: LabRecord) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return "\n".join([*lines, *(f"{lab.address(node)} {node.name}" for node in lab.nodes)]) + "\n"
