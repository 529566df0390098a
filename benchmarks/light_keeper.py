"""The inside of `light_nodes`: process 1 of the namespaces in which the light nodes live.

light_nodes.py starts it with a plan (a JSON file) as its argument. It prints `ready` when every node listens,
and exits when its standard input is closed; the kernel then ends and removes everything in the namespaces,
whichever process died first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNK = 1 << 16
# Commands that the SSH servers of some bad nodes run instead of the requested ones.
COMMANDS = {
    "garbage": "head -c 2000 /dev/urandom",
    "flood": "head -c 50000000 /dev/zero",
    "stuck": "exec sleep 600",
}
CONFIG = """\
Port 22
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 10000
UseDNS no
PrintMotd no
PrintLastLog no
SetEnv PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/light
"""
# Start of every login if each node has its own folder: mounts the folder of the node's address for this login
# only. SSH_CONNECTION: the client's address and port, then the node's.
OWN = """\
#!/bin/sh
set -- $SSH_CONNECTION
export ADDRESS="$3"
exec unshare --mount --propagation private sh -c '
    mount --bind {folder}/own/"$ADDRESS" {own} && exec sh -c "$SSH_ORIGINAL_COMMAND"'
"""


MS_BIND, MS_REC = 4096, 16384
LIBC = ctypes.CDLL(None, use_errno=True)


def call(*words: str, stdin: str | None = None) -> None:
    subprocess.run(words, check=True, timeout=60, input=stdin, text=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2)."""
    words = [word.encode() for word in (source, target, kind)]
    if LIBC.mount(*words, ctypes.c_ulong(flags), data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def make_root(folder: str) -> str:
    """Mount this machine's root under an in-memory layer, which discards all changes at the end."""
    base = f"{folder}/root"
    mount("tmpfs", base, "tmpfs", data="size=512m,nr_inodes=0,mode=755")
    for part in ("up", "work", "all"):
        Path(base, part).mkdir(mode=0o755)
    root = f"{base}/all"
    layers = f"lowerdir=/,upperdir={base}/up,workdir={base}/work"
    mount("overlay", root, "overlay", data=layers)
    for part in ("dev", "sys"):
        mount(f"/{part}", f"{root}/{part}", flags=MS_BIND | MS_REC)
    mount("proc", f"{root}/proc", "proc")
    Path(root, "run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    Path(root, "light").mkdir()  # a home without the start files of this machine's root
    inside = Path(root + folder)  # if /tmp is a separate file system, the overlay does not include it
    inside.mkdir(parents=True, exist_ok=True)
    mount(folder, str(inside), flags=MS_BIND)
    return root


def make_network(plan: dict[str, Any]) -> None:
    """Make every address of the range local; packets to a dead node are silently dropped."""
    lines = ["link set lo up", f"route add local {plan['range']} dev lo table local"]
    lines += [f"route add blackhole {address}/32 table local" for address in plan["bad"].get("dead", ())]
    call("ip", "-batch", "-", stdin="\n".join(lines) + "\n")


def write_config(plan: dict[str, Any]) -> None:
    config = CONFIG.format(folder=plan["folder"])
    if plan["own"]:
        login = Path(plan["folder"], "login")
        login.write_text(OWN.format(folder=plan["folder"], own=plan["own"]))
        login.chmod(0o755)
        config += f"ForceCommand {login}\n"
    for kind, command in COMMANDS.items():
        if plan["bad"].get(kind):
            # A pattern list may be long but its lines may not, so each node gets its own block.
            config += "".join(
                f"Match LocalAddress {address}\n  ForceCommand {command}\n" for address in plan["bad"][kind]
            )
    Path(plan["folder"], "sshd_config").write_text(config)


def start_sshd(plan: dict[str, Any]) -> None:
    """Start one sshd for all nodes, which share a root."""
    folder = plan["folder"]
    root = make_root(folder)
    if plan["own"]:
        Path(root + plan["own"]).mkdir(mode=0o755, parents=True, exist_ok=True)
    listen = ["-D", "-e", "-f", f"{folder}/sshd_config", "-h", f"{folder}/host_key"]
    with Path(folder, "sshd.log").open("wb") as log:
        subprocess.Popen(
            ["chroot", root, plan["sshd"], *listen],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def wait_for_sshd(plan: dict[str, Any]) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 22)) == 0:
                return
        signal.sigtimedwait([], 0.05)
    raise SystemExit(Path(plan["folder"], "sshd.log").read_text() or "no sshd listens")


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(CHUNK):
            pass
    writer.close()


async def say_no_ssh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.org ESMTP ready\r\n\x00\xff\xfe garbage\r\n" * 20)
    await say_nothing(reader, writer)


def delayed(seconds: float, port: int = 22) -> Serve:
    """Return a server that forwards to the same address's SSH server, `seconds` late in each direction."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: float) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time() + first
        under_way: deque[bytes] = deque()  # the loop runs callbacks of the same moment in any order
        data = b"-"
        while data:
            data = b""
            with contextlib.suppress(OSError):
                data = await reader.read(CHUNK)
            last = max(last, loop.time() + seconds)
            under_way.append(data)
            loop.call_at(last, lambda: _arrived(writer, under_way.popleft()))

    serving: set[asyncio.Task[None] | None] = set()  # keeps each task referenced

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        serving.add(task)
        try:
            there, here = await asyncio.open_connection(writer.get_extra_info("sockname")[0], port)
            # The server speaks first, so its first data is delayed by the round trip of connecting, too.
            await asyncio.gather(carry(reader, here, 0.0), carry(there, writer, 2 * seconds))
        finally:
            serving.discard(task)

    return serve


def _arrived(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not data:
        writer.close()
    elif not writer.is_closing():
        writer.write(data)


def reap() -> None:
    """Reap orphans as process 1 must."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def keep(plan: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, reap)
    servers: dict[str, Serve] = {"hang": say_nothing, "banner": say_no_ssh}
    if plan["delay"]:
        servers["delay"] = delayed(plan["delay"])
    for kind, serve in servers.items():
        await asyncio.start_server(serve, "0.0.0.0", plan["ports"][kind], backlog=1024)  # noqa: S104
    print("ready", flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 64) else ended.set())
    await ended.wait()
    os._exit(0)  # the kernel ends the rest; open connections need no notice


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    plan = json.loads(Path(sys.argv[1]).read_text())
    make_network(plan)
    write_config(plan)
    start_sshd(plan)
    wait_for_sshd(plan)
    asyncio.run(keep(plan))


if __name__ == "__main__":
    main()
