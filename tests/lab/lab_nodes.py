"""Real nodes for tests: a running lab, its nodes, and operations on them."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

from gpuprov_lab import fleet, node, silicon_state
from gpuprov_lab.command import attempt, locked
from gpuprov_lab.places import LOCKS
from gpuprov_lab.record import LabRecord, NodeRecord
from gpuprov_lab.spec import NodeSpec
from provision.errors import LabError
from provision.terminal import Progress

SPEED = 100.0  # simulated seconds per real second
HOLD_DPKG = (
    "import fcntl, time; lock = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(lock, fcntl.LOCK_EX);"
    "print('held', flush=True); time.sleep(300)"
)
# Each lab has its own network: its server's address is in apt's sources and in the names of apt's lists.
MOVE = """
grep -rlF {old} /etc/apt | xargs -r sed -i 's/{old}/{new}/g'
for list in /var/lib/apt/lists/{old}*; do mv "$list" "/var/lib/apt/lists/{new}${{list#*{old}}}"; done
rm -f /var/cache/apt/*.bin
"""


class LabNode:
    """One running node, with the operations that tests need."""

    def __init__(self, record: LabRecord, member: NodeRecord) -> None:
        self._record = record
        self._member = member
        self.name = member.name
        self.sku = member.sku
        self.release = member.release
        self.address = record.address(member)
        self.place = record.node_place(member)

    def run(
        self, command: str, check: bool = True, timeout: float = 120, said: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the node as `ops` (sudo needs no password); `said` is its input."""
        done = attempt(*node.ssh(self._record, self._member, [command]), timeout=timeout, stdin=said)
        if check and done.returncode != 0:
            pytest.fail(f"{self.name}: {command!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def testinfra(self, keep: int = 0) -> Host:
        """Return the node as a testinfra host with sudo. `keep`: seconds to share one connection.
        By default each command opens its own, so that a reboot breaks none."""
        folder = self.place.folder.parent.parent
        options = [f"UserKnownHostsFile={folder / 'known_hosts'}", "StrictHostKeyChecking=yes"]
        if keep:
            options.append(f"ControlPath={folder}/ssh-{self.name}")
        return testinfra.get_host(
            f"ssh://ops@{self.address}",
            ssh_identity_file=str(folder / "id_ed25519"),
            ssh_extra_args=" ".join(f"-o {option}" for option in options),
            controlpersist=keep,
            sudo=True,
        )

    def as_root(
        self, command: str, timeout: float = 120, said: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the node as root."""
        return self.run(f"sudo sh -c {shlex.quote(command)}", timeout=timeout, said=said)

    def hold_dpkg(self) -> None:
        """Make another program hold dpkg's lock until `release_dpkg`."""
        self.run(f"echo {shlex.quote(HOLD_DPKG)} > /tmp/hold.py; rm -f /tmp/held")
        self.run(
            "sudo setsid python3 /tmp/hold.py </dev/null > /tmp/held 2>&1 &"
            " until grep -qx held /tmp/held; do sleep 0.1; done"
        )

    def release_dpkg(self) -> None:
        self.run("sudo pkill -f /tmp/hold.py", check=False)

    def fault(self, fault: str, **parameters: object) -> None:
        silicon_state.set_fault(self.place, fault, [f"{key}={value}" for key, value in parameters.items()])

    def heal(self, fault: str | None = None) -> None:
        silicon_state.clear_fault(self.place, fault)

    def power_off(self) -> None:
        fleet.power(self._record.name, self.name, on=False)

    def power_on(self) -> None:
        fleet.power(self._record.name, self.name, on=True)

    def reboot(self) -> None:
        """Reboot and wait until the node is back."""
        before = self.boot_id()
        self.run("sudo systemctl reboot", check=False)
        for _ in range(60):
            node.wait_ready(self._record, self._member)
            with contextlib.suppress(LabError):
                if self.boot_id() != before:
                    return
        pytest.fail(f"{self.name} is still in the boot {before}")

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id", check=False).stdout.strip()


class Lab:
    """A running lab."""

    def __init__(self, record: LabRecord, inventory: Path) -> None:
        self.record = record
        self.name = record.name
        self.inventory = inventory

    @property
    def nodes(self) -> list[LabNode]:
        return [LabNode(self.record, member) for member in self.record.nodes]

    def node(self, name: str) -> LabNode:
        return LabNode(self.record, self.record.node(name))


@dataclass(frozen=True)
class Image:
    """Disks written by nodes that are off for good; other nodes may start from them."""

    disks: tuple[Path, ...]  # newest first
    server: str  # address of their lab's server, as in their package sources


@contextlib.contextmanager
def running_lab(
    prefix: str,
    wanted: tuple[NodeSpec, ...],
    inventory: Path,
    speed: float = SPEED,
    images: Mapping[str, Image] | None = None,
) -> Iterator[Lab]:
    """Run a fresh lab that no other session uses, after removing a killed session's remains.
    `speed`: simulated seconds per real second. `images`: initial disks by node name; other nodes are bare."""
    images = images or {}
    with contextlib.ExitStack() as stack:
        for number in range(1, 20):
            name = f"{prefix}{number}"
            with contextlib.suppress(LabError):
                stack.enter_context(locked(LOCKS / f"session-{name}.lock", name))
                break
        stack.callback(fleet.down, name, lambda _: None)
        yield boot(name, wanted, inventory, speed, images)


def boot(
    name: str, wanted: tuple[NodeSpec, ...], inventory: Path, speed: float, images: Mapping[str, Image]
) -> Lab:
    """Create the lab of that name from scratch."""
    images = {node.name: images[node.name] for node in wanted if node.name in images}
    disks = {node: image.disks for node, image in images.items()}
    with Progress("lab", total=len(wanted), stream=io.StringIO()) as progress:
        record = fleet.up(name, wanted, inventory, progress, speed=speed, fresh=True, images=disks)
    lab = Lab(record, inventory)
    with ThreadPoolExecutor(max_workers=4) as threads:
        for moved in [
            threads.submit(lab.node(node).as_root, MOVE.format(old=image.server, new=record.bridge_address))
            for node, image in images.items()
        ]:
            moved.result()
    return lab
