"""One simulated node in a temporary folder: made, broken, observed and measured like a lab node.

The simulated tools run in a process of the benchmark (simulator.py). The program of `provision/node` reads a
file tree in which the lab's surfaces lie where a node has them mounted.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.detection import shell, tree
from benchmarks.detection.cases import AMD, FABRIC, IMEX
from benchmarks.detection.simulator import simulator
from benchmarks.detection.virtual_time import Program
from provision.checks.check import Command
from provision.remote import node_program
from provision.remote import protocol as answer
from provision.validate.selftest.measure import runner

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin:/opt/rocm/bin"
LISTENS = 0.1  # seconds until a server program listens
CAP = 2 * 1024 * 1024  # bytes kept of each stream of a program, as on a node

# The mount points of a lab node's simulated surfaces (lab/gpuprov_lab/node.py, layer.py).
MOUNTS = {
    "sys_pci": "sys/bus/pci/devices",
    "sys_module": "sys/module",
    "proc_driver": "proc/driver",
    "proc_modules": "proc/modules",
    "proc_cpuinfo": "proc/cpuinfo",
    "proc_uptime": "proc/uptime",
    "proc_self_limits": "proc/self/limits",
    "run_timesync": "run/systemd/timesync",
    "sys/class": "sys/class",
    "sys/devices/system": "sys/devices/system",
    "sys/kernel/iommu_groups": "sys/kernel/iommu_groups",
}
PLACE = Path(tempfile.gettempdir())  # folder for the nodes of this process


def memory() -> Path | None:
    """Return an in-memory folder, or None if the machine has none."""
    place = Path("/dev/shm")  # noqa: S108
    return place if os.access(place, os.W_OK) else None


def pooled(run: Callable[[Any], Any], asked: Sequence[Any], jobs: int, chunksize: int = 1) -> Iterator[Any]:
    """Run trials in separate processes, which the simulator needs, and yield outcomes as they complete."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-detection-", dir=memory()) as folder:
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(jobs, initializer=_begin, initargs=(Path(folder),)) as pool:
            yield from pool.imap_unordered(run, asked, chunksize)


def _begin(folder: Path) -> None:
    """Initialise a worker process: its nodes lie in `folder`; interrupts are left to its parent."""
    global PLACE
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    PLACE = folder


@functools.cache
def _observer(facts: frozenset[str]) -> Any:
    return compile(node_program.text_for(facts), "observe", "exec")


class Machine:
    """A node from its creation to its removal; a context manager."""

    def __init__(
        self,
        sku: str,
        name: str,
        seed: int,
        *,
        fabric: bool = True,
        driver: str = tree.DRIVER,
        library: str = "",
        manager: str = "",
        imex: str = "active",
        module: str = "loaded",
        altered: tuple[str, str, str] | None = None,
        network: str = "",
    ) -> None:
        """Create a node; the defaults make a healthy one.
        `fabric`: fabric manager runs. `driver`: its version; `library` that of user space and `manager` that
        of the fabric manager or IMEX package (`none`: not installed), if they differ; `imex`: the state of
        its unit on SKUs whose rack fabric needs it. `module`: `loaded` is the driver's; with `none` nouveau
        takes its place unless on the `blacklist`. `altered`: (tool, text, replacement) to imitate output of
        an unknown release. `network`: the network between nodes, `ib` by default.
        """
        self.silicon, self.sku, self.name, self.altered = simulator(), sku, name, altered
        self.folder = Path(tempfile.mkdtemp(dir=PLACE))
        self.state, self.root = self.folder / "state", self.folder / "root"
        self.world = self.silicon.world
        self.began = self.world.now
        self.imex = imex if sku in IMEX and manager != "none" else ""
        name = "nvidia-imex" if sku in IMEX else "nvidia-fabricmanager-580"
        joined = sku in (*FABRIC, *IMEX) and manager != "none"
        package = (name, manager or f"{driver}-1") if joined else None
        if sku in AMD:
            tree.lay_out_amd(self.root, sku, "" if driver == tree.DRIVER else driver, module)
        else:
            tree.lay_out(self.root, driver, library or driver, module, package)
        words = ["--dir", str(self.state), "--sku", sku, "--name", name, "--seed", str(seed), "--speed", "1"]
        self.lab("new", *words, *(["--network", network] if network else []))
        self._mount()
        self.fabric, self.gone = fabric, False
        self.boot()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- creation

    def _mount(self) -> None:
        for name, inside in MOUNTS.items():
            point = self.root / inside
            if (self.state / name).exists():
                point.parent.mkdir(parents=True, exist_ok=True)
                point.symlink_to(self.state / name)

    # -- the lab's own commands

    def lab(self, *words: str) -> None:
        """Run `new`, `boot` or `fault …` on the host's side. Raises RuntimeError when it fails."""
        program = self._start(words, {}, self.root)
        self.world.run(program, 3600.0)
        if program.rc != 0:
            raise RuntimeError(f"run.py {' '.join(words)}: {program.text('stderr').strip()}")

    def boot(self) -> None:
        """Boot the node and start its daemons."""
        self.lab("boot")
        # The tools check the daemon's marker file, which holds the PID of a living process.
        for daemon in ("persistenced", *(["fabricmanager.ready"] if self.fabric else [])):
            (self.state / "run" / daemon).write_text(f"{os.getpid()}\n")

    def happen(self, event: str) -> None:
        """Reboot the node or make it vanish from the network, while a check runs."""
        self.gone = event == "vanishes"
        tree.write(self.root, "proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-000000000002\n")

    def fault(self, *words: str) -> None:
        """Inject a fault, such as `gpu_slow gpu=3 factor=0.5`."""
        self.lab("fault", "--dir", str(self.state), "set", *words)

    # -- gpuprov's access to a node

    def observe(self, facts: frozenset[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Run the node program over this node's tree and return (facts, problems)."""
        request = {"facts": sorted(facts), "root": str(self.root)}
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.dup2(writer, 1)
                os.close(reader)
                space: dict[str, Any] = {"__name__": "observe"}
                exec(_observer(facts), space)  # noqa: S102 - the program as it is sent to nodes
                self._simulate_tools(space)
                space["main"](request)
            finally:
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            output = pipe.read()
        os.waitpid(child, 0)
        found, problems = answer.facts_of(answer.unframed(output), facts)
        return dict(found), problems

    def _simulate_tools(self, space: dict[str, Any]) -> None:
        """Make the program's process run the simulated tool when it would execute a real one."""
        find, execute, known = space["find_tool"], space["execute"], self.silicon.tools

        def run(path: str, command: Sequence[str]) -> None:
            if path == "systemctl":
                os.write(1, self._units(command[command.index("--") + 1 :]).encode())
                return
            if path not in known:
                execute(path, command)
            program = self._start(command, {}, self.root)
            self.world.run(program, 3600.0)
            for name, handle in (("stdout", 1), ("stderr", 2)):
                os.write(handle, program.bytes[name].getvalue())

        # adjtimex(2) is not a file; its flag marks the clock as unsynchronised, as on a fresh machine.
        if "kernel_clock" in space:
            space["kernel_clock"] = lambda: (0x40, 16_000_000)
        simulated = {*known, "systemctl"} if self.imex else known
        space["find_tool"] = lambda name: name if name in simulated else find(name)
        space["execute"] = run

    def _units(self, names: Sequence[str]) -> str:
        """Return the output of `systemctl show` for these units; only IMEX's exists on this machine."""
        found = f"LoadState=loaded\nActiveState={self.imex}\nUnitFileState=enabled\n"
        gone = "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n"
        return "\n".join(found if name.startswith("nvidia-imex") else gone for name in names)

    def measure(self, commands: Sequence[Command]) -> dict[str, Any]:
        """Return the answer of the module gpuprov_run for these commands, run by our simulated processes."""
        node = _node_module()
        node.run_one = lambda command, cap: self._together(command, (), cap)[command["name"]]
        plain = [asdict(command) for command in commands]
        assert not node.misuse(plain), node.misuse(plain)
        before = node.kernel_lines()
        outputs: dict[str, dict[str, Any]] = {}
        for command in plain:
            if not command["beside"]:
                companions = [one for one in plain if one["beside"] == command["name"]]
                outputs.update(self._together(command, companions, CAP))
        found = [outputs[command["name"]] for command in plain]
        return {"outputs": [*found, node.kernel_log_delta(before, CAP)], "boot_id": self.boot_id()}

    def boot_id(self) -> str:
        return (self.root / "proc/sys/kernel/random/boot_id").read_text().strip()

    def _together(
        self, command: Mapping[str, Any], companions: Sequence[Mapping[str, Any]], cap: int
    ) -> dict[str, dict[str, Any]]:
        """Run a program together with its companions and return name → the fields of Output."""
        began, killed = self.world.now, False
        started = {one["name"]: self._program(one) for one in (command, *companions)}
        main = started[command["name"]][0]
        if main is not None and any(one.get("port") for one in companions):
            main.wake += LISTENS  # gpuprov_run waits until the server listens
        if main is not None:
            others = tuple(started[one["name"]][0] for one in companions)
            killed = self.world.run(
                main, command["deadline"], tuple(one for one in others if one is not None)
            )
        answers = {}
        for one in (command, *companions):
            program, why = started[one["name"]]
            answer = dict(_node_module().nothing_yet(one), not_started=why)
            if program is not None:
                answer["rc"], answer["timed_out"] = program.rc, killed and program is main
                answer["seconds"] = round(self.world.now - began, 3)
                for name in ("stdout", "stderr"):
                    kept = _node_module().Capped(cap)
                    kept.add(self._as_printed(one["argv"][0], program.bytes[name].getvalue()))
                    answer[name] = kept.text()
                    answer["truncated"] = answer["truncated"] or bool(kept.dropped)
            if answer["timed_out"]:
                answer["rc"] = None
            answers[one["name"]] = answer
        return answers

    def _as_printed(self, program: str, said: bytes) -> bytes:
        if self.altered and Path(program).name == self.altered[0]:
            return said.replace(self.altered[1].encode(), self.altered[2].encode())
        return said

    def tool(self, *words: str) -> None:
        """Run a simulated tool as the node's administrator would, such as `nvidia-smi -pm 1`."""
        self.world.run(self._start(words, {}, self.root), 600.0)

    def _program(self, command: Mapping[str, Any]) -> tuple[Program | None, str]:
        """Return the started program, or the reason why it does not start."""
        tool, env = Path(command["argv"][0]).name, command.get("env") or {}
        cwd = self.root / str(command.get("cwd") or "/").lstrip("/")
        if not cwd.is_dir():
            return None, f"the folder {command['cwd']} does not exist"
        if tool == "journalctl":  # a lab node's journal has no kernel lines: it shares the host's kernel
            return self._start_main(_no_entries, env, cwd), ""
        if tool == "sh":
            return self._start_main(shell.script(self.silicon, self.root, command["argv"]), env, cwd), ""
        if tool not in self.silicon.tools:
            return None, f"{command['argv'][0]} is not installed"
        return self._start([tool, *command["argv"][1:]], env, cwd), ""

    def _start(self, words: Sequence[str], env: Mapping[str, str], cwd: Path) -> Program:
        return self._start_main(self.silicon.main(words), env, cwd)

    def _start_main(self, main: Callable[[], int], env: Mapping[str, str], cwd: Path) -> Program:
        own = {"SILICON_STATE": str(self.state), "SILICON_ROOT": str(self.root), "TZ": "UTC"}
        cwd.mkdir(parents=True, exist_ok=True)
        return Program(self.world, main, {"PATH": PATH, "LC_ALL": "C", **own, **env}, cwd)


def _no_entries() -> int:
    print("-- No entries --")
    return 0


@functools.cache
def _node_module() -> Any:
    """Return the module that runs programs on nodes; only its helpers are used here."""
    return runner()
