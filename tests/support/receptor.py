"""A mesh for tests: the real Receptor if installed, and a stand-in for its control socket.

The stand-in answers with the texts of Receptor 1.5.5 (Debian 13), recorded from its control socket, and runs
units as commands of this machine, as Receptor's command workers do (pkg/workceptor/command.go): standard
input from a file, standard output and error into one, and to cancel, SIGINT followed by SIGKILL ten seconds
later.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import socketserver
import string
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.remote.workers import leftovers, mesh, register
from provision.remote.workers.control import Control, ControlError
from tests.support.processes import until
from tests.support.sshd import free_port

CONTROLLER = "controller"
WORK_TYPE = "gpuprov-worker"
TLS_CLIENT = "mesh"


def forget() -> None:
    """Clear this process's knowledge of meshes and its register of units, as in a new process."""
    mesh._meshes.clear()
    register._current.clear()
    leftovers._swept.clear()


@dataclass
class StoodUnit:
    """One unit of the stand-in."""

    id: str
    worker: str
    params: dict[str, str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    state: str = "Pending"
    detail: str = "Waiting for Input Data"
    started: bool = False
    cancelled: bool = False
    frozen: bool = False  # its worker is cut off: its state no longer changes

    def size(self) -> int:
        file = self.folder / "stdout"
        return file.stat().st_size if file.exists() else 0

    def look(self) -> None:
        if self.process is None or self.frozen or (status := self.process.poll()) is None:
            return
        if self.state in ("Running", "Pending"):
            self.state = "Succeeded" if status == 0 else "Failed"
            self.detail = (
                f"exit status {status}" if status >= 0 else f"signal: {_SIGNALS.get(-status, -status)}"
            )

    def record(self) -> dict[str, Any]:
        self.look()
        numbers = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 3, "Canceled": 4}
        extra = {
            "RemoteNode": self.worker,
            "RemoteWorkType": WORK_TYPE,
            "RemoteParams": self.params,
            "RemoteUnitID": self.id if self.started else "",
            "RemoteStarted": self.started,
            "LocalCancelled": self.cancelled,
            "LocalReleased": False,
            "SignWork": True,
            "TLSClient": TLS_CLIENT,
            "Expiration": "2026-11-26T02:56:59.752409579Z",
        }
        return {
            "Detail": self.detail,
            "ExtraData": extra,
            "State": numbers[self.state],
            "StateName": self.state,
            "StdoutSize": self.size(),
            "WorkType": "remote",
        }


_SIGNALS: dict[int, str] = {
    signal.SIGKILL: "killed",
    signal.SIGINT: "interrupt",
    signal.SIGTERM: "terminated",
}


class StandIn:
    """A Receptor that answers on a socket.
    `commands`: worker → the command of its units; a worker without one is known, and its units output `said`.
    `refusals`: worker → the text that refuses its submissions. `asked`: every received command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = str(folder / "receptor.sock")
        self.commands: dict[str, Path] = {}
        self.said: dict[str, Callable[[bytes], bytes]] = {}
        self.refusals: dict[str, str] = {}
        self.routes: set[str] = set()
        self.adverts: list[dict[str, Any]] = []
        self.units: dict[str, StoodUnit] = {}
        self.every: list[StoodUnit] = []
        self.asked: list[str] = []
        self.generation = 0  # number of restarts
        self.hanging: set[str] = set()  # units that have printed something but neither continue nor end
        self.start()

    def add(
        self, name: str, command: Path | None = None, said: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.routes.add(name)
        if command is not None:
            self.commands[name] = command
        if said is not None:
            self.said[name] = said

    def worker_socket(self, _name: str) -> str:
        return self.socket

    def start(self) -> None:
        stands = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    stands._session(self.rfile, self.wfile, self.connection)

        self.server = socketserver.ThreadingUnixStreamServer(self.socket, Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop like `systemctl stop receptor`: units continue."""
        self.server.shutdown()
        self.server.server_close()
        Path(self.socket).unlink(missing_ok=True)

    def restart(self) -> None:
        """Break all connections and stay away for a second."""
        self.generation += 1
        self.stop()
        time.sleep(1)
        self.start()

    def end(self) -> None:
        for unit in self.every:
            if unit.process is not None and unit.process.poll() is None:
                unit.process.kill()
                unit.process.wait()
        with contextlib.suppress(OSError):
            self.stop()

    def cut(self, name: str) -> None:
        """Remove the mesh's route to this worker; its units continue."""
        self.routes.discard(name)
        for unit in self.units.values():
            unit.frozen = unit.frozen or unit.worker == name

    def pids(self) -> list[int]:
        return [unit.process.pid for unit in self.every if unit.process and unit.process.poll() is None]

    def _session(self, said: Any, answer: Any, connection: socket.socket) -> None:
        answer.write(f"Receptor Control, node {CONTROLLER}\n".encode())
        while line := said.readline():
            text = line.decode().strip()
            self.asked.append(text)
            try:
                done = self._command(text, said, answer, connection)
            except LookupError as error:
                answer.write(f"ERROR: {error.args[0]}\n".encode())
                continue
            if done is None:
                return
            answer.write(json.dumps(done, separators=(",", ":")).encode() + b"\n")

    def _command(self, text: str, said: Any, answer: Any, connection: socket.socket) -> dict[str, Any] | None:
        words: dict[str, Any] = json.loads(text) if text.startswith("{") else {}
        command = words.get("command") or text.partition(" ")[0]
        if command == "status":
            return {
                "Advertisements": self.adverts,
                "NodeID": CONTROLLER,
                "RoutingTable": {name: name for name in self.routes} | {CONTROLLER: CONTROLLER},
                "Version": "1.5.5",
            }
        if command != "work":
            raise LookupError(f"Unknown command, {command}")
        if words.get("subcommand") == "submit":
            return self._submit(words, said, answer)
        _, what, *arguments = text.split(" ")
        if what == "list":
            return {name: unit.record() for name, unit in self.units.items()}
        if arguments[0] not in self.units:
            raise LookupError(f"unknown work unit {arguments[0]}")
        unit = self.units[arguments[0]]
        if what == "status":
            return unit.record()
        if what == "results":
            self._results(unit, int(arguments[1]), answer)
            connection.close()
            return None
        reached = unit.worker in self.routes
        if reached or not unit.started:
            self._kill(unit)
        if what == "cancel":
            unit.cancelled = True
            if reached and unit.state in ("Running", "Pending"):
                unit.state, unit.detail = "Canceled", "Canceled"
            return {"cancelled" if reached else "cancel pending": unit.id}
        if not reached and what == "release" and unit.started:
            return {"release pending": unit.id}
        del self.units[unit.id]
        shutil.rmtree(unit.folder, ignore_errors=True)
        return {"released": unit.id}

    def _submit(self, words: dict[str, Any], said: Any, answer: Any) -> dict[str, Any]:
        given = ("command", "subcommand", "node", "worktype", "tlsclient", "ttl", "signwork")
        if words.get("tlsclient") != TLS_CLIENT:
            raise LookupError(f"unknown TLS config {words.get('tlsclient')}")
        name = CONTROLLER + "".join(random.choices(string.ascii_letters + string.digits, k=8))  # noqa: S311
        folder = self.folder / name
        folder.mkdir()
        unit = StoodUnit(name, words["node"], {k: v for k, v in words.items() if k not in given}, folder)
        self.units[name] = unit
        self.every.append(unit)
        answer.write(f"Work unit created with ID {name}. Send stdin data and EOF.\n".encode())
        answer.flush()
        data = said.read()
        (folder / "stdin").write_bytes(data)
        refusal = self.refusals.get(unit.worker)
        if words.get("signwork") != "true":
            refusal = "could not verify signature: signature is empty"
        if words["worktype"] != WORK_TYPE:
            refusal = f"unknown work type {words['worktype']}"
        if refusal:
            unit.state, unit.detail = "Failed", f"Error starting worker: {refusal}"
            raise LookupError(f"could not parse response: ERROR: {refusal}")
        if unit.worker not in self.routes:
            unit.detail = "Starting Worker"
            threading.Timer(_seconds(words["ttl"]), self._expire, [unit]).start()
            return {"result": "Job Submitted", "unitid": name}
        unit.started = True
        self._begin(unit, data)
        return {"result": "Job Started", "unitid": name}

    def _begin(self, unit: StoodUnit, data: bytes) -> None:
        if unit.worker in self.said:
            (unit.folder / "stdout").write_bytes(self.said[unit.worker](data))
            unit.state, unit.detail = "Running", "Running: PID 7"
            if unit.id not in self.hanging:
                unit.state, unit.detail = "Succeeded", "exit status 0"
            return
        unit.state, unit.detail = "Running", "Running: PID 7"
        with (unit.folder / "stdin").open("rb") as given, (unit.folder / "stdout").open("wb") as printed:
            try:
                unit.process = subprocess.Popen(
                    [self.commands[unit.worker]],
                    stdin=given,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                unit.state = "Failed"
                unit.detail = f"fork/exec {self.commands[unit.worker]}: {str(error.strerror).lower()}"

    def _expire(self, unit: StoodUnit) -> None:
        if not unit.started:
            unit.state, unit.detail = "Failed", "Work unit expired on Thu Nov 26 02:56:34"

    def _kill(self, unit: StoodUnit) -> None:
        if unit.process is None or unit.process.poll() is not None:
            return
        unit.process.send_signal(signal.SIGINT)
        try:
            unit.process.wait(10)
        except subprocess.TimeoutExpired:
            unit.process.kill()
            unit.process.wait()

    def _results(self, unit: StoodUnit, at: int, answer: Any) -> None:
        answer.write(f"Streaming results for work unit {unit.id}\n".encode())
        answer.flush()
        file, generation = unit.folder / "stdout", self.generation
        while generation == self.generation:
            complete = unit.record()["StateName"] in ("Succeeded", "Failed")
            data = b""
            if file.exists() and not unit.frozen:
                with file.open("rb") as printed:
                    printed.seek(at)
                    data = printed.read()
            if data:
                at += len(data)
                answer.write(data)
                answer.flush()
            elif complete or unit.id not in self.units:
                return
            time.sleep(0.05)


def _seconds(ttl: str) -> float:
    return float(ttl.removesuffix("s"))


# --- the real one

PROGRAM = os.environ.get("GPUPROV_TEST_RECEPTOR") or shutil.which("receptor")


@dataclass
class RealMesh:
    """Receptors on this machine that all connect to `hub`, by default the first worker, over TLS.
    Units run `command`, signed. `address`: the hub's; `inside`: the prefix that runs a program where that
    Receptor is."""

    folder: Path
    command: Path
    workers: tuple[str, ...] = ("worker-a", "worker-b")
    address: str = "127.0.0.1"
    inside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    program: str = PROGRAM or "receptor"
    hub: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.hub = self.hub or self.workers[0]
        self.run("--cert-init", "commonname=test", "bits=2048", "outcert=ca.crt", "outkey=ca.key")
        for name in (CONTROLLER, *self.workers):
            self.certify(name)
        for arguments in (
            ["genrsa", "-out", "sign.key", "2048"],
            ["rsa", "-in", "sign.key", "-pubout", "-out", "sign.pub"],
        ):
            subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)
        for name in (*self.workers, CONTROLLER):
            (self.folder / f"{name}.yml").write_text(json.dumps(self.config(name)))
            self.begin(name)
        try:
            self.wait()
        except BaseException:
            self.end()
            raise

    def wait(self) -> None:
        """Wait until the controller has a route to every worker."""
        until(lambda: self.routes() >= set(self.workers), 90)

    @property
    def socket(self) -> str:
        return self.worker_socket(CONTROLLER)

    def worker_socket(self, name: str) -> str:
        return str(self.folder / f"{name}.sock")

    def certify(self, name: str, *more: str, authority: str = "ca", file: str = "") -> None:
        """Create a key and a certificate of this authority for `name`."""
        file = file or name
        request = (f"commonname={name}", f"nodeid={name}", f"ipaddress={self.address}", f"outreq={file}.req")
        self.run("--cert-makereq", "bits=2048", *request, f"outkey={file}.key")
        by = (f"cacert={authority}.crt", f"cakey={authority}.key")
        self.run("--cert-signreq", f"req={file}.req", *by, f"outcert={file}.crt", "verify=yes", *more)

    def begin(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.inside.get(name, ()), self.program, "--config", str(self.folder / f"{name}.yml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Stop like `systemctl kill receptor` (units continue), and wait until the route is gone."""
        self.processes[name].kill()
        self.processes[name].wait()
        until(lambda: name not in self.routes(), 90)

    def again(self, name: str, config: list[dict[str, Any]]) -> None:
        """Restart it with this configuration, and wait until its advertisement reaches the controller."""
        self.stop(name)
        (self.folder / f"{name}.yml").write_text(json.dumps(config))
        before = self._advertised(name)
        self.begin(name)
        self.wait()
        # Its work types, and whether they are signed, are advertised separately from the routes.
        until(lambda: self._advertised(name) != before, 90)

    def _advertised(self, name: str) -> str:
        """Return the time of its last advertisement."""
        status = Control(self.socket).status()
        return next((str(one["Time"]) for one in status["Advertisements"] or () if one["NodeID"] == name), "")

    def routes(self) -> set[str]:
        """Return the workers to which the controller has a route."""
        try:
            return set(Control(self.socket).status()["RoutingTable"] or ())
        except ControlError:
            return set()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def left(self) -> list[str]:
        """List the unit files left on any Receptor."""
        return [str(path) for path in self.folder.glob("data/*/*/*")]

    def config(self, name: str) -> list[dict[str, Any]]:
        own = {"cert": str(self.folder / f"{name}.crt"), "key": str(self.folder / f"{name}.key")}
        authority = str(self.folder / "ca.crt")
        server = {"name": "server", **own, "requireclientcert": True, "clientcas": authority}
        control = {"service": "control", "filename": self.worker_socket(name), "tls": "server"}
        config: list[dict[str, Any]] = [
            {"node": {"id": name, "datadir": str(self.folder / "data")}},
            {"tls-server": server},
            {"tls-client": {"name": TLS_CLIENT, **own, "rootcas": authority}},
            {"control-service": control},
        ]
        if name == self.hub:
            listener = {"port": self.port, "bindaddr": self.address, "tls": "server"}
            config.append({"tcp-listener": listener})
        else:
            config.append({"tcp-peer": {"address": f"{self.address}:{self.port}", "tls": TLS_CLIENT}})
        if name == CONTROLLER:
            config.append(
                {"work-signing": {"privatekey": str(self.folder / "sign.key"), "tokenexpiration": "5m"}}
            )
        else:
            command = {"worktype": WORK_TYPE, "command": str(self.command), "verifysignature": True}
            config += [
                {"work-verification": {"publickey": str(self.folder / "sign.pub")}},
                {"work-command": command},
            ]
        return config

    def run(self, *arguments: str) -> None:
        subprocess.run(
            [self.program, *arguments], cwd=self.folder, check=True, capture_output=True, timeout=60
        )
