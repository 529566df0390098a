"""Two virtual machines with working RDMA devices: Debian's kernel does RoCE in software (rdma_rxe).

A lab node shares this machine's kernel and cannot load a kernel module for itself; so these machines boot
their own, under QEMU's emulation, which needs no hardware: results are real but slow. Everything is created
again and removed at the end; the next session removes the remains of a killed one.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab import host, leftovers, mirror, network, trees
from gpuprov_lab.command import attempt, call, environment, waiting_lock
from gpuprov_lab.folders import remove_tree
from gpuprov_lab.places import CACHE, LOCKS, make_root_only
from provision.errors import LabError

NAMES = ("vm-1", "vm-2")
DEVICE = "rxe0"
SUITE = "trixie"
PACKAGES = (
    *("linux-image-amd64", "kmod", "iproute2", "nftables", "procps", "pciutils", "openssh-server", "python3"),
    *("rdma-core", "ibverbs-utils", "infiniband-diags", "perftest"),
)
FOLDER = CACHE / "soft-roce"
BRIDGE = "gproce"
OCTETS = range(network.FIRST_OCTET, 110)  # reserved for labs, which take the lowest free one
BOOT_SECONDS = 240  # 18 s on two idle cores
# A RoCE packet carries 4096 bytes if the interface's MTU allows it.
MTU = 9000
# Under emulation, newer processors' checksum instructions take twice as long as a table.
CPU = "qemu64"

# Only the modules that the disk needs, for an image that is quick to build.
INITRAMFS = """\
set -e
mkdir -p "$1/etc/initramfs-tools/conf.d"
printf 'MODULES=list\\nCOMPRESS=lz4\\nRESUME=none\\n' > "$1/etc/initramfs-tools/conf.d/vm"
printf 'virtio_pci\\nvirtio_blk\\next4\\n' > "$1/etc/initramfs-tools/modules"
"""
# The host key is generated here, and its public part printed on the console, to which nothing else writes.
INIT = f"""\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $folder; done
for word in $(cat /proc/cmdline); do
    case $word in vm.name=*) name=${{word#*=}} ;; vm.address=*) address=${{word#*=}} ;; esac
done
hostname "$name"
modprobe virtio_net
ip link set lo up
ip link set eth0 mtu {MTU}
ip address add "$address" dev eth0
ip link set eth0 up
modprobe rdma_rxe
modprobe ib_uverbs
rdma link add {DEVICE} type rxe netdev eth0
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f /run/host_key
echo "HOST-KEY $(cut -d' ' -f1,2 /run/host_key.pub)" > /dev/console
/usr/sbin/sshd -D -e -h /run/host_key -o UsePAM=no -o PasswordAuthentication=no &
while :; do sleep 1; done
"""


def say(words: str) -> None:
    sys.stderr.write(f"soft-roce: {words}\n")


class Stages:
    """Prints the duration of each stage and the machine's load during it."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            busy = f"load {os.getloadavg()[0]:.1f}"
            say(f"{name}: {now - began:.0f} s, {now - self.began:.0f} s in all ({busy})")


class Machine:
    """One virtual machine."""

    def __init__(self, name: str, number: int, octet: int, key: Path) -> None:
        self.name = name
        self.tap = f"{BRIDGE}{number}"
        self.address = network.node_address(octet, number)
        self.mac = f"52:54:00:{octet:02x}:00:{number:02x}"
        self.console = FOLDER / f"{name}.console"
        self.key = key
        self.known_hosts = key.with_name("known_hosts")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the virtual machine, which dies with this process."""
        words = f"init=/vm-init vm.name={self.name} vm.address={self.address}/16"
        disk = f"file={FOLDER}/disk.img,format=raw,if=virtio,snapshot=on"
        argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-machine", "q35"),
            *("-accel", "tcg,tb-size=256", "-cpu", CPU, "-m", "768", "-nodefaults", "-no-reboot"),
            *("-display", "none", "-serial", f"file:{self.console}"),
            *("-kernel", f"{FOLDER}/vmlinuz", "-initrd", f"{FOLDER}/initrd.img"),
            *("-append", f"root=/dev/vda ro console=ttyS0 quiet mitigations=off {words}", "-drive", disk),
            *("-netdev", f"tap,id=net,ifname={self.tap},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=net,mac={self.mac}", "-device", "virtio-rng-pci"),
        ]
        with (FOLDER / f"{self.name}.qemu").open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment({"TMPDIR": str(FOLDER)}),  # for the writes to its disk
                start_new_session=True,  # keeps Ctrl-C from reaching QEMU
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(15)

    def host_key(self) -> str:
        """Return the public key from the console; "" before it is printed."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        match = re.search(r"^HOST-KEY (ssh-ed25519 \S+)\s*$", text, re.MULTILINE)
        return match[1] if match else ""

    def run(self, command: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the machine as root over ssh."""
        words = ("ssh", "-F", "/dev/null", "-i", str(self.key), *ssh_options(self.known_hosts))
        done = attempt(*words, f"root@{self.address}", command, timeout=timeout)
        if check and done.returncode:
            pytest.fail(f"{self.name}: {command!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def last_words(self) -> str:
        files = (self.console, FOLDER / f"{self.name}.qemu")
        return "\n".join(file.read_text(errors="replace")[-1500:] for file in files if file.exists())


def ssh_options(known_hosts: Path) -> list[str]:
    chosen = {
        **{"UserKnownHostsFile": known_hosts, "StrictHostKeyChecking": "yes", "IdentitiesOnly": "yes"},
        **{"BatchMode": "yes", "ConnectTimeout": 15, "LogLevel": "ERROR"},
    }
    return [f"-o{key}={value}" for key, value in chosen.items()]


@contextlib.contextmanager
def two_machines() -> Iterator[Sequence[Machine]]:
    """Build the disk, boot both machines, and remove everything at the end. Raises LabError."""
    host.require_root()
    host.install_missing(say)
    stages = Stages()
    with waiting_lock(LOCKS / "soft-roce.lock"), contextlib.ExitStack() as undo:
        _remove()
        undo.callback(_remove)
        undo.callback(_stop_cache)
        make_root_only(FOLDER)
        with stages.stage("Debian tree"):
            _build_tree()
        with stages.stage("disk"):
            key = _build_disk()
        octet = network.free_octet(OCTETS)
        machines = [Machine(name, number, octet, key) for number, name in enumerate(NAMES, 1)]
        for machine in machines:
            undo.callback(machine.stop)
        with stages.stage("boot of both"):
            _connect(octet, machines)
            _boot(machines)
        with stages.stage("tests"):
            yield machines


def _stop_cache() -> None:
    """Stop the package cache if no lab uses it."""
    with waiting_lock(LOCKS / ".shared"):
        if not leftovers.labs_seen():
            mirror.stop_cache()


def _remove() -> None:
    """Remove the remains of this session, or of a killed one (its machines died with it)."""
    for name in (*(f"{BRIDGE}{number}" for number in range(1, len(NAMES) + 1)), BRIDGE):
        if (Path("/sys/class/net") / name).exists():
            attempt("ip", "link", "delete", name)
    remove_tree(FOLDER)


def _build_tree() -> None:
    """Install Debian with a kernel, through the package cache that all labs share."""
    hook = FOLDER / "initramfs.sh"
    hook.write_text(INITRAMFS)
    temporary = FOLDER / "tmp"
    temporary.mkdir()
    options = [f"--aptopt={option.rstrip(';')}" for option in trees.trust_options()]
    argv = [
        *("mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}", *options),
        *("--dpkgopt=force-unsafe-io", '--aptopt=Acquire::Languages "none"'),
        *(f'--essential-hook=sh {hook} "$1"', SUITE, str(FOLDER / "tree")),
    ]
    fix = f"set {mirror.VARIABLE} to a Debian mirror this host reaches"
    source = mirror.debian_mirror()
    for last in (False, True):
        where = []
        if source is not None:
            cache = f"http://127.0.0.1:{mirror.ensure_cache(source)}/debian"
            where = [f"deb [signed-by={host.KEYRING}] {cache} {SUITE} main"]
        try:
            call(*argv, *where, timeout=600, extra={"TMPDIR": str(temporary)}, fix=fix)
            return
        except LabError:
            if last:
                raise
            remove_tree(FOLDER / "tree")  # the last lab on this machine may just have stopped the cache


def _build_disk() -> Path:
    """Write the tree to a file system with ssh access; returns the private key."""
    tree, key = FOLDER / "tree", FOLDER / "id_ed25519"
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "soft-roce", "-f", key)
    folder = tree / "root/.ssh"
    make_root_only(folder)
    (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    (tree / "vm-init").write_text(INIT)
    (tree / "vm-init").chmod(0o755)
    for secret in (tree / "etc/ssh").glob("ssh_host_*"):
        secret.unlink()
    for name in ("vmlinuz", "initrd.img"):
        (found,) = (tree / "boot").glob(f"{name}-*")
        found.rename(FOLDER / name)
    disk = FOLDER / "disk.img"
    call("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, disk, "1G", timeout=300)
    remove_tree(tree)
    return key


def _connect(octet: int, machines: Sequence[Machine]) -> None:
    call("ip", "link", "add", BRIDGE, "type", "bridge")
    call("ip", "address", "add", f"{network.bridge_address(octet)}/16", "dev", BRIDGE)
    call("ip", "link", "set", BRIDGE, "up")
    for machine in machines:
        call("ip", "tuntap", "add", machine.tap, "mode", "tap")
        call("ip", "link", "set", machine.tap, "mtu", str(MTU), "master", BRIDGE, "up")
    call("ip", "link", "set", BRIDGE, "mtu", str(MTU))


def _boot(machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.start()
    deadline = time.monotonic() + BOOT_SECONDS
    for machine in machines:
        while not (key := machine.host_key()):
            ended = machine.process is None or machine.process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise LabError(f"{machine.name} has not booted: {machine.last_words()}", "see its console")
            time.sleep(0.2)
        with machine.known_hosts.open("a") as file:
            file.write(f"{machine.address} {key}\n")
    for machine in machines:
        while machine.run("true", check=False).returncode and time.monotonic() < deadline:
            time.sleep(0.5)
        machine.run("true")


def inventory(machines: Sequence[Machine], path: Path, **variables: Any) -> Path:
    """Write an ordinary inventory of both machines with host key checking."""
    (first, *_) = machines
    common = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(first.key),
        "ansible_ssh_common_args": " ".join(ssh_options(first.known_hosts)),
        "ansible_python_interpreter": "/usr/bin/python3",
        **variables,
    }
    hosts = {machine.name: {"ansible_host": machine.address} for machine in machines}
    path.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}))
    return path
