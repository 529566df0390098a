#!/usr/bin/python
"""Ansible module: run programs on a node, each with a deadline, and bring back what they printed.

Standard library and Ansible's own module_utils only, Python 3.6 syntax: it runs on the node. A program gets
its own session, so that a deadline ends everything it started; a child that cannot be killed (D state after
an Xid 119) is left behind rather than waited for. No shell is involved.
"""

import errno
import os
import selectors
import signal
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: gpuprov_run
short_description: Run programs one after another, each with a deadline
description:
  - Runs argument lists without a shell, each in its own session, and returns what they printed, size-capped.
  - The exit status is reported, never judged. The task fails only when it was called wrongly.
options:
  commands:
    description: What to run, in order.
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Name of the output., type: str, required: true}
      argv: {description: The program and its arguments., type: list, elements: str, required: true}
      deadline: {description: Seconds until it is killed., type: float, required: true}
      cwd: {description: The folder to run in., type: str}
      env: {description: Variables added to the environment., type: dict}
  cap:
    description: Bytes kept of each stream. Of a longer one the beginning and the end are kept.
    type: int
    default: 2097152
author: the gpuprov authors
"""

EXAMPLES = r"""
- name: Ask for the GPUs
  gpuprov_run:
    commands:
      - {name: gpus, argv: [nvidia-smi, -L], deadline: 30}
"""

RETURN = r"""
gpuprov:
  description: C(outputs) has one entry for each command; C(boot_id) tells whether the node rebooted since.
  returned: always
  type: dict
"""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin"
GRACE = 5.0  # seconds between TERM and KILL, and after KILL before we stop waiting
DRAIN = 1.0  # seconds for what is still in the pipes after the program has ended
CUT_MARK = "\n[gpuprov: %d bytes left out here]\n"


class Capped:
    """Keeps the beginning and the end of a stream, at most `cap` bytes together."""

    def __init__(self, cap):
        self.half = max(1, cap // 2)
        self.head = bytearray()
        self.tail = bytearray()
        self.dropped = 0

    def add(self, data):
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        # Cutting at twice the size keeps the cost linear; `text` makes it exact.
        if len(self.tail) > 2 * self.half:
            self._trim()

    def _trim(self):
        extra = len(self.tail) - self.half
        if extra > 0:
            self.dropped += extra
            del self.tail[:extra]

    def text(self):
        self._trim()
        parts = [self.head.decode("utf-8", "replace")]
        if self.dropped:
            parts.append(CUT_MARK % self.dropped)
        parts.append(self.tail.decode("utf-8", "replace"))
        return "".join(parts)


def signal_group(process, number):
    """Signal all that the program started; its session id is its process id."""
    try:
        os.killpg(process.pid, number)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise


def pump(process, streams, until):
    """Read both pipes until they close, the program has ended and gone quiet, or `until` passes."""
    selector = selectors.DefaultSelector()
    for pipe in streams:
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ)
    quiet_after = None
    try:
        while selector.get_map():
            now = time.monotonic()
            if process.poll() is not None and quiet_after is None:
                # A grandchild may hold the pipe open for ever: do not wait for it.
                quiet_after = now + DRAIN
            limit = until if quiet_after is None else min(until, quiet_after)
            if now >= limit:
                return
            for key, _ in selector.select(min(0.2, limit - now)):
                try:
                    data = os.read(key.fd, 65536)
                except BlockingIOError:
                    continue
                if data:
                    streams[key.fileobj].add(data)
                else:
                    selector.unregister(key.fileobj)
    finally:
        selector.close()


def wait(process, seconds):
    try:
        process.wait(max(0.0, seconds))
        return True
    except subprocess.TimeoutExpired:
        return False


def stop(process, streams):
    """TERM, a grace, KILL, a grace; then leave it. What it prints meanwhile is kept."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process, number)
        pump(process, streams, time.monotonic() + GRACE)
        if wait(process, 0.5):
            break
    signal_group(process, signal.SIGKILL)  # what ignored TERM and outlived its parent


def start(command):
    environment = dict(os.environ)
    environment["PATH"] = PATH
    environment["LC_ALL"] = "C"
    environment.update({str(k): str(v) for k, v in (command.get("env") or {}).items()})
    # Popen looks a bare name up on the PATH of the environment it is given.
    return subprocess.Popen(
        command["argv"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=command.get("cwd") or None,
        env=environment,
        start_new_session=True,
        close_fds=True,
    )


def run_one(command, cap):
    """Run one program; returns the fields of `provision.checks.check.Output`."""
    result = {
        "name": command["name"],
        "argv": command["argv"],
        "rc": None,
        "stdout": "",
        "stderr": "",
        "seconds": 0.0,
        "timed_out": False,
        "truncated": False,
        "not_started": "",
    }
    began = time.monotonic()
    try:
        process = start(command)
    except (OSError, ValueError) as error:
        result["not_started"] = describe(command, error)
        return result
    kept = {process.stdout: Capped(cap), process.stderr: Capped(cap)}
    deadline = began + float(command["deadline"])
    pump(process, kept, deadline)
    if wait(process, deadline - time.monotonic()):
        result["rc"] = process.returncode
        signal_group(process, signal.SIGKILL)  # children it forgot must not disturb the next command
    else:
        result["timed_out"] = True
        stop(process, kept)
    result["seconds"] = round(time.monotonic() - began, 3)
    result["stdout"] = kept[process.stdout].text()
    result["stderr"] = kept[process.stderr].text()
    result["truncated"] = any(stream.dropped for stream in kept.values())
    process.stdout.close()
    process.stderr.close()
    return result


def describe(command, error):
    """Why a program did not start, in words. ENOENT is also what a missing `cwd` gives."""
    cwd = command.get("cwd")
    if cwd and not os.path.isdir(cwd):
        return "the folder %s does not exist" % cwd
    if getattr(error, "errno", None) == errno.ENOENT:
        return "%s is not installed" % command["argv"][0]
    return "%s: %s" % (command["argv"][0], getattr(error, "strerror", None) or error)


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id") as source:
            return source.read().strip()
    except OSError:
        return ""


def main():
    suboptions = {
        "name": {"type": "str", "required": True},
        "argv": {"type": "list", "elements": "str", "required": True},
        "deadline": {"type": "float", "required": True},
        "cwd": {"type": "str"},
        "env": {"type": "dict"},
    }
    module = AnsibleModule(
        argument_spec={
            "commands": {"type": "list", "elements": "dict", "required": True, "options": suboptions},
            "cap": {"type": "int", "default": 2 * 1024 * 1024},
        },
        supports_check_mode=False,
    )
    for command in module.params["commands"]:
        if not command["argv"]:
            module.fail_json(msg="command %s has an empty argv" % command["name"])
    outputs = [run_one(command, module.params["cap"]) for command in module.params["commands"]]
    module.exit_json(changed=False, gpuprov={"outputs": outputs, "boot_id": boot_id()})


if __name__ == "__main__":
    main()
