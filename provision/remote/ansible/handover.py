"""The input of one Ansible run: a private folder in memory, an inventory of its hosts, a clean environment.

The folder holds passwords, so it is 0700, on a memory file system where there is one, and removed whatever
happens; one that a killed controller left behind is removed by the next run. Connection settings of a user's
ansible.cfg and ANSIBLE_* variables are among the hosts' variables by now (ansible_settings.py). Of the rest
only a file that ANSIBLE_CONFIG names is given to Ansible: what stands in the inventory is what happens.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import paths

_PREFIX = "gpuprov-"
_LOCK = "lock"
# As a tag to skip: Ansible's own comparison of roles' variables with their argument specs, where that was
# done before. It costs 0.1 s of CPU a role and node, and no tag of Ansible's leaves it out.
ARGUMENT_SPECS = "argument_specs"
_ORPHAN_AGE = 3600.0  # seconds after which a folder without a lock file is nobody's

# All that Ansible sees of our environment. LD_LIBRARY_PATH: a Python from environment modules needs it to
# start.
KEPT = ("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "LD_LIBRARY_PATH", "TZ")

# ssh asks a silent node for a sign of life: else a node that dies in the middle is noticed after 15 minutes.
SSH_ARGS = (
    "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "
    "-o ConnectionAttempts=1"
)

# Ansible's main process goes through all hosts a thousand times a second to see who is ready: a fifth of a
# core for 20 nodes that build a driver, half a one for 100. There is no variable of the environment for it.
_SETTINGS = "[defaults]\ninternal_poll_interval = 0.02\n"


# In front of Ansible's command line. A controller that is killed takes its Ansible with it: else that would
# go on changing nodes, and nobody would hear what became of them. (1 is PR_SET_PDEATHSIG; Linux has it.)
# Ansible forks a process for each task: there, collecting garbage only copies the memory that is shared until
# it is written to. In Ansible itself, which keeps nearly all that it makes, it is a tenth of its time.
ANSIBLE = (
    sys.executable,
    *("-P", "-c"),
    "import gc, os, signal, sys\n"
    "try:\n"
    "    import ctypes\n"
    "    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))\n"
    "except (ImportError, AttributeError, OSError):\n"
    "    pass\n"
    "if os.getppid() != int(sys.argv[1]):\n"
    "    sys.exit(143)\n"
    "gc.set_threshold(20000, 20, 50)\n"
    "os.register_at_fork(after_in_child=gc.disable)\n"
    "sys.argv = sys.argv[2:]\n"
    "from ansible.cli.playbook import main\n"
    "sys.exit(main())\n",
)


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A 0700 folder, gone afterwards. Its path is short: ssh's control sockets must fit into 108 bytes."""
    base = memory_folder()
    remove_orphans(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        making = folder / f"{_LOCK}.new"
        with making.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            making.rename(folder / _LOCK)  # who finds it finds it held: several runs begin at once
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memory_folder() -> Path:
    """Where what is never written to a disk can be kept: /dev/shm; a folder for temporary files without
    one."""
    for candidate in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # noqa: S108 (mkdtemp below makes it private)
        if candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    return Path(tempfile.gettempdir())


def remove_orphans(base: Path | None = None) -> None:
    """Remove folders of ours whose owner was killed (nobody holds their lock any more), and end what still
    runs with them: workers of a killed Ansible may be in the middle of a task."""
    for folder in (base or memory_folder()).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if folder.is_symlink() or not folder.is_dir() or status.st_uid != os.getuid():
                continue
            if not (folder / _LOCK).exists():
                if time.time() - status.st_mtime > _ORPHAN_AGE:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_processes(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _end_processes(folder: Path) -> None:
    """Kill Ansible's own processes that were given this folder. Programs of tasks that run here (a package
    manager, where the controller provisions itself) are not in it: they end by themselves."""
    mark = f"ANSIBLE_HOME={folder}/home".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of another user, or gone meanwhile
            ours = mark in (entry / "environ").read_bytes().split(b"\0")
            if ours and f"{folder}/".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


@dataclass(frozen=True)
class Around:
    """The inventory around the hosts that are played, of which templates may speak: every host's variables,
    and the hosts of each group."""

    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Sequence[str]]


def inert(value: Any) -> Any:
    """`value` with texts that look like templates marked as data: facts come from nodes, which are not
    trusted, and what was rendered is not rendered again."""
    if isinstance(value, str):
        return {"__ansible_unsafe": value} if "{{" in value or "{%" in value or "{#" in value else value
    if isinstance(value, Mapping):
        return {str(key): inert(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [inert(inner) for inner in value]
    return value


def write_inventory(
    folder: Path, hosts: Mapping[str, Mapping[str, Any]], around: Around | None = None
) -> Path:
    """The hosts as an inventory. Variables named `gpuprov_…` are ours: never templates."""
    whole = {**around.hosts, **hosts} if around else hosts
    entries = {
        name: {key: inert(value) if key.startswith("gpuprov_") else value for key, value in variables.items()}
        for name, variables in whole.items()
    }
    groups = {
        name: {"hosts": dict.fromkeys(members)}
        for name, members in (around.groups.items() if around else ())
        if name not in ("all", "ungrouped")
    }
    return _write(folder / "inventory" / "hosts.json", {"all": {"hosts": entries, "children": groups}})


def write_limit(folder: Path, hosts: Collection[str]) -> Path:
    """A file for `--limit @FILE`: of all that the inventory names, these hosts are played."""
    file = folder / "limit"
    file.write_text("".join(f"{name}\n" for name in hosts), encoding="utf-8")
    return file


def write_playbook(folder: Path, playbook: Path, skip_tags: Collection[str]) -> Path:
    """The playbook without what `skip_tags` leave out, which Ansible would load before it skips it: 70 ms a
    role, a second for an `up` that needs one role. Files and roles must not be relative to its place.

    With ARGUMENT_SPECS among them roles are imported by tasks, which alone can ask for that."""
    skip = set(skip_tags)
    if not skip:
        return playbook
    from provision import yamlfile  # a worker that only looks has no use for it

    plays = yamlfile.load(playbook)
    for play in plays:
        for section in {"pre_tasks", "roles", "tasks", "post_tasks"} & play.keys():
            play[section] = [entry for entry in play[section] if skip.isdisjoint(_tags(entry))]
        if ARGUMENT_SPECS in skip:
            roles = [_imported(entry) for entry in play.pop("roles", [])]
            play["tasks"] = [*roles, *play.get("tasks", [])]
    file = folder / playbook.name
    file.write_text(json.dumps(plays), encoding="utf-8")  # which is YAML as well
    return file


def _imported(role: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a play's `roles` as a task, without Ansible's comparison with the argument specs."""
    rest = {key: value for key, value in role.items() if key != "role"}
    return {
        "name": f"Apply {role['role']}",
        "ansible.builtin.import_role": {"name": role["role"], "rolespec_validate": False},
        **rest,
    }


def _tags(entry: Mapping[str, Any]) -> list[str]:
    tags = entry.get("tags", [])
    return [tag.strip() for tag in tags.split(",")] if isinstance(tags, str) else tags


def write_extra_vars(folder: Path, extra_vars: Mapping[str, Any]) -> None:
    """As a file, where ansible-runner finds it: an argument list can be read by everybody on this machine."""
    _write(folder / "env" / "extravars", extra_vars)


def _write(path: Path, document: Mapping[str, Any]) -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file)
    return path


def environment(folder: Path, forks: int) -> dict[str, str]:
    """Everything Ansible gets to see; ansible-runner writes it into a file, so nothing else may be in it."""
    config = folder / "ansible.cfg"
    config.touch(mode=0o600)
    config.write_text(_SETTINGS)
    scripts = str(Path(sys.executable).parent)  # ansible-playbook is there, activated or not
    chosen = os.environ.get("ANSIBLE_CONFIG")
    wanted = {
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "ANSIBLE_CONFIG": str(Path(chosen).absolute()) if chosen else str(config),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
        "ANSIBLE_ROLES_PATH": str(paths.ROLES),
        "ANSIBLE_LIBRARY": str(paths.MODULES),
        "ANSIBLE_FORKS": str(forks),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_SSH_ARGS": SSH_ARGS,
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_TIMEOUT": "30",  # the usual 10 s is short for sudo on a node under load
        "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_DEVEL_WARNING": "False",
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_DISPLAY_ARGS_TO_STDOUT": "False",
        "ANSIBLE_DISPLAY_OK_HOSTS": "False",
        "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "False",
        # ansible-runner drops whole results above this size without a word; ours are capped on the node.
        "MAX_EVENT_RES": "64000000",
    }
    return {name: os.environ[name] for name in KEPT if name in os.environ} | wanted
