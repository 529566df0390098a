"""A thousand nodes on one machine in a few seconds, to test gpuprov at scale. Needs root.

Each node has its own address, at which a real sshd answers with a real host key, accepts a real key and runs
real programs. Sharing keeps the nodes light: one network namespace that owns all addresses, one sshd (hence
one host key, in every line of known_hosts), one root, which is this machine's own under an in-memory layer.
So they have no systemd, no boot and no silicon, and the neighbour table has one entry; a node of `gpuprov
lab` is closer to reality, and far heavier. `own` names a folder that each node has for itself; a login sees
its own node's folder there.

Bad nodes are spread among them: `dead` (packets vanish), `refused`, `hang` (accepts, then stays silent),
`banner` (not an SSH server), and after a successful login `garbage` (random bytes for an answer), `flood` (50
MB) and `stuck` (never answers). `delay` delays the traffic of good nodes by this many seconds in each
direction.

    python benchmarks/light_nodes.py --count 1000 --bad dead=20 --bad hang=10 --folder /tmp/light
    python benchmarks/light_nodes.py --count 200 -- gpuprov drift {inventory}

Nothing keeps running, not even after kill -9 (which leaves the folder of keys): all processes live in
namespaces whose first process (light_keeper.py) ends with this one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEEPER = Path(__file__).with_name("light_keeper.py")
OCTETS = range(60, 76)  # 10.N.0.0/16, none of them a lab's (lab/gpuprov_lab/network.py)
MOST = 60_000
PORTS = {"ssh": 22, "refused": 23, "hang": 2201, "banner": 2202, "delay": 2203}
KINDS = ("dead", "refused", "hang", "banner", "garbage", "flood", "stuck")
# No role can be as declared on a machine without systemd and silicon. The undeclared facts remain (firmware,
# kernel, boot), by which nodes are compared with each other.
VARIABLES: dict[str, Any] = {"gpuprov_roles": []}


@dataclass(frozen=True)
class LightFleet:
    """Running light nodes. `bad`: the bad nodes → their kind."""

    folder: Path
    names: tuple[str, ...]
    addresses: Mapping[str, str]
    bad: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.json"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        return self.folder / "key"

    def own(self, name: str) -> Path:
        """Return the path, on this machine, of the folder that a node has for itself."""
        return self.folder / "own" / self.addresses[name]

    @property
    def good(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.bad)

    def cpu(self) -> float:
        """Return the CPU seconds of all nodes so far, including ended processes (read it at rest)."""
        return sum(cpu_of(pid) for pid in below(self.pid))


@contextlib.contextmanager
def light_nodes(
    count: int,
    bad: Mapping[str, int] | None = None,
    *,
    delay: float = 0.0,
    variables: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    own: str = "",
) -> Iterator[LightFleet]:
    """Start `count` nodes, with as many bad ones of each kind as `bad` names.

    `variables` are added to those of the inventory. `own`: the path of a folder that each node has for
    itself. `folder` (default: a temporary one) receives the inventory, known_hosts and keys.
    """
    kinds = _spread(count, dict(bad or {}))
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="light-nodes-")))
        folder = folder.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        interface, octet = stack.enter_context(_own_network())
        names = tuple(f"n{number:05}" for number in range(1, count + 1))
        addresses = {
            name: f"10.{octet}.{1 + number // 250}.{1 + number % 250}" for number, name in enumerate(names)
        }
        fleet = LightFleet(folder, names, addresses, {names[at]: kind for at, kind in kinds.items()})
        _write_files(fleet, delay, {**VARIABLES, **(variables or {})})
        plan = _write_plan(fleet, octet, delay, own)
        with _keeper(plan, folder) as keeper:
            _plug(interface, octet, keeper.pid)
            message = keeper.stdout.readline() if keeper.stdout else ""
            if message.strip() != "ready":
                raise SystemExit(f"the light nodes did not start: see above, and {folder}/sshd.log")
            yield LightFleet(folder, names, addresses, fleet.bad, keeper.pid)


def _write_files(fleet: LightFleet, delay: float, variables: Mapping[str, Any]) -> None:
    """Write the keys, known_hosts and the inventory into the fleet's folder."""
    for name in ("host_key", "key"):
        fleet.folder.joinpath(name).unlink(missing_ok=True)
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(fleet.folder / name)]
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL, timeout=30)
    shared_key = " ".join((fleet.folder / "host_key.pub").read_text().split()[:2])
    hosts, lines = {}, []
    for name, address in fleet.addresses.items():
        port = _port(fleet.bad.get(name, ""), delay)
        place = address if port == PORTS["ssh"] else f"[{address}]:{port}"
        lines.append(f"{place} {shared_key}\n")
        hosts[name] = {"ansible_host": address} | ({"ansible_port": port} if port != PORTS["ssh"] else {})
    fleet.known_hosts.write_text("".join(lines))
    common = f"-F none -o UserKnownHostsFile={fleet.known_hosts} -o GlobalKnownHostsFile=/dev/null"
    shared = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(fleet.key),
        "ansible_ssh_common_args": f"{common} -o IdentityAgent=none",
        **variables,
    }
    fleet.inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}, indent=1))


def _port(kind: str, delay: float) -> int:
    return PORTS.get(kind, PORTS["delay"] if delay and not kind else PORTS["ssh"])


def _write_plan(fleet: LightFleet, octet: int, delay: float, own: str) -> Path:
    """Write the keeper's plan."""
    for name in fleet.names if own else ():
        fleet.own(name).mkdir(mode=0o755, parents=True, exist_ok=True)
    bad: dict[str, list[str]] = {}
    for name, kind in fleet.bad.items():
        bad.setdefault(kind, []).append(fleet.addresses[name])
    sshd = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")
    if sshd is None:
        raise SystemExit("there is no sshd: apt install openssh-server")
    plan = {"folder": str(fleet.folder), "range": f"10.{octet}.0.0/16", "sshd": sshd, "ports": PORTS}
    path = fleet.folder / "plan.json"
    path.write_text(json.dumps({**plan, "bad": bad, "delay": delay, "own": own}))
    return path


def _spread(count: int, bad: dict[str, int]) -> dict[int, str]:
    """Return the index of each bad node → its kind, evenly spread, the kinds in turns."""
    unknown = set(bad) - set(KINDS)
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: no kind of bad node; there are {', '.join(KINDS)}")
    rows = [[kind] * bad.get(kind, 0) for kind in KINDS]
    turns = [row[turn] for turn in range(max(map(len, rows))) for row in rows if turn < len(row)]
    if not 0 < count <= MOST or len(turns) > count:
        raise SystemExit(f"{len(turns)} bad nodes of {count}: between 1 and {MOST} nodes there are")
    return {(2 * at + 1) * count // (2 * len(turns)): kind for at, kind in enumerate(turns)}


@contextlib.contextmanager
def _own_network() -> Iterator[tuple[str, int]]:
    """Reserve an unused network by creating its interface."""
    if os.geteuid() != 0:
        raise SystemExit("light nodes live in namespaces, which needs root: sudo")
    for octet in OCTETS:
        interface = f"light{octet}"
        made = ["ip", "link", "add", interface, "type", "veth", "peer", "name", f"{interface}in"]
        route = _ip("-4", "route", "show", "root", f"10.{octet}.0.0/16", "table", "all")
        if not route and subprocess.run(made, capture_output=True, timeout=30).returncode == 0:
            break
    else:
        raise SystemExit(f"no free network between 10.{OCTETS[0]}.0.0/16 and 10.{OCTETS[-1]}.0.0/16")
    try:
        yield interface, octet
    finally:
        subprocess.run(["ip", "link", "delete", interface], capture_output=True, timeout=30)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout


def _plug(interface: str, octet: int, pid: int) -> None:
    """Route to the nodes through a single neighbour to spare this machine's neighbour table."""
    here, there = f"10.{octet}.255.253", f"10.{octet}.255.254"
    _ip("link", "set", f"{interface}in", "netns", str(pid))
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip"]
    for words in (
        ["ip", "address", "add", f"{here}/30", "dev", interface],
        ["ip", "link", "set", interface, "up"],
        [*inside, "address", "add", f"{there}/30", "dev", f"{interface}in"],
        [*inside, "link", "set", f"{interface}in", "up"],
        ["ip", "route", "add", f"10.{octet}.0.0/16", "via", there],
    ):
        subprocess.run(words, check=True, timeout=30)


@contextlib.contextmanager
def _keeper(plan: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    (folder / "root").mkdir(exist_ok=True)
    apart = ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--propagation", "private"]
    words = [*apart, "--fork", "--kill-child", "--mount-proc", sys.executable, "-I", "-S"]
    keeper = subprocess.Popen(
        [*words, str(KEEPER), str(plan)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        # The namespace must exist before the interface is moved into it.
        own = Path("/proc/self/ns/net").readlink()
        for _ in range(200):
            if keeper.poll() is not None or Path(f"/proc/{keeper.pid}/ns/net").readlink() != own:
                break
            time.sleep(0.01)
        yield keeper
    finally:
        if keeper.stdin:
            keeper.stdin.close()
        try:
            keeper.wait(timeout=10)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait(timeout=10)
        if keeper.stdout:
            keeper.stdout.close()


def below(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            found += map(int, children)
    return found


def cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _kind_and_number(text: str) -> tuple[str, int]:
    kind, _, number = text.partition("=")
    if kind not in KINDS or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"must be KIND=NUMBER with one of {', '.join(KINDS)}")
    return kind, int(number)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--bad", type=_kind_and_number, action="append", default=[], metavar="KIND=NUMBER")
    parser.add_argument("--delay", type=float, default=0.0, metavar="S", help="in each direction")
    parser.add_argument("--folder", type=Path, help="for the inventory, known_hosts and keys")
    parser.add_argument(
        "command", nargs="*", help="what to run ({inventory} is put in); else wait for Ctrl-C"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    with light_nodes(
        options.count,
        dict(options.bad),
        delay=options.delay,
        folder=options.folder,
    ) as fleet:
        print(f"{options.count} nodes after {time.monotonic() - began:.1f} s: {fleet.inventory}", flush=True)
        words = [word.replace("{inventory}", str(fleet.inventory)) for word in options.command]
        try:
            if words:
                return subprocess.run(words, check=False).returncode
            signal.pause()
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
