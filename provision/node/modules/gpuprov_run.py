#!/usr/bin/python
"""Ansible module that runs programs on a node, each with a deadline, and returns their output.

Standard library and Ansible's own module_utils only, Python 3.6 syntax, since it runs on the node. A program
gets its own session, so that a deadline ends everything it started; a child that cannot be killed (D state
after an Xid 119) is left behind rather than waited for. No shell is involved.

A program with `beside` runs during the program of that name and is ended with it; its outcome does not
affect that program. The kernel's messages of that time are one more output.

If a run was interrupted, or its controller is gone, its result can no longer be read: `Heartbeat` then ends
the running programs and starts no more.

The module is this long because Ansible sends a module as one file.
"""

import base64
import errno
import json
import os
import re
import selectors
import signal
import subprocess
import threading
import time
import zlib

DOCUMENTATION = r"""
module: gpuprov_run
short_description: Run programs one after another, each with a deadline
description:
  - Runs argument lists without a shell, each in its own session, and returns their output, capped in size.
  - The exit status is reported, never judged. The task fails only if it is called incorrectly.
options:
  commands:
    description: Programs to run, in order. Either this or C(packed).
    type: list
    elements: dict
    suboptions:
      name: {description: Name of the output., type: str, required: true}
      argv: {description: The program and its arguments., type: list, elements: str, required: true}
      deadline: {description: Seconds until it is killed., type: float, required: true}
      cwd: {description: Working folder., type: str}
      env: {description: Variables added to the environment., type: dict}
      beside: {description: Name of the program during which this one runs., type: str}
      port: {description: TCP port it listens on; the other program waits for it., type: int, default: 0}
      retry_on: {description: Repeat it while it fails with this text in its output., type: str, default: ""}
      retry_for: {description: Maximum seconds of retries for the same text., type: float}
      keep: {description: Keep only output lines with one of these words., type: list, elements: str}
  packed:
    description: The commands, with all their suboptions, as JSON in base64 of zlib (no template in it).
    type: str
  check:
    description: The check that the programs belong to. It is returned as the fact C(gpuprov_answered).
    type: str
  cap:
    description: Bytes kept of each stream. For a longer one, its beginning and end are kept.
    type: int
    default: 2097152
  lock:
    description: The run that holds the node's lock. The programs are ended if another run or none holds it.
    type: str
    default: ""
author: the gpuprov authors
"""

EXAMPLES = r"""
- name: List the GPUs
  gpuprov_run:
    commands:
      - {name: gpus, argv: [nvidia-smi, -L], deadline: 30}
"""

RETURN = r"""
gpuprov:
  description:
    - C(outputs) has one entry per command, and C(kernel_log_delta) with the kernel's messages of that time.
    - C(boot_id) shows whether the node has rebooted since.
  returned: always
  type: dict
"""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin"
PATH += ":/opt/rocm/bin:/opt/rocm/core/bin"  # the last one is for ROCm 7.12 and newer
READY = 10.0  # seconds for a companion program to listen
GRACE = 5.0  # seconds between TERM and KILL, and after KILL before giving up
RETRY = 0.5  # seconds between retries
DRAIN = 1.0  # seconds to read the rest of the pipes after the program has ended
CUT_MARK = "\n[gpuprov: %d bytes left out here]\n"
DELTA = "kernel_log_delta"  # name of the output with the kernel's messages of this run
LOG_DEADLINE = 20.0  # seconds for a program that prints the kernel log
LOG_CAP = 64 * 1024 * 1024  # bytes; the ring buffer is far smaller
BEAT = 1.0  # seconds between checks whether the run still waits for the result
CANCEL_GRACE = 2.0  # seconds between TERM and KILL if it no longer waits
LOCK = "/run/gpuprov/private/lock"  # written by provision/node/lock.py

RUNNING = set()  # processes that were started and not yet reaped
STARTING = threading.RLock()  # reentrant, as a signal may arrive while the main thread holds it
CANCELLED = threading.Event()  # once set, nothing is started


class Capped:
    """The beginning and the end of a stream, at most `cap` bytes together."""

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
        # Trimming only at twice the size keeps the cost linear; `text` trims exactly.
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


class Sieve(Capped):
    """The lines of a stream with one of these words, and their indented continuation lines.
    The first line and journalctl's `-- …` lines are kept too, as they show that there is a log, and its end.
    """

    def __init__(self, cap, words):
        Capped.__init__(self, cap)
        self.cap, self.words = cap, [word.encode("utf-8") for word in words]
        self.rest, self.keeps, self.first = b"", True, True

    def add(self, data):
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            self._line(line + b"\n")
        if len(self.rest) > self.cap:
            self._line(self.rest)
            self.rest = b""

    def _line(self, line):
        if not line[:1].isspace():
            always = self.first or line.startswith(b"-- ")
            self.keeps = always or any(word in line for word in self.words)
            self.first = False
        if self.keeps:
            Capped.add(self, line)

    def text(self):
        self._line(self.rest)
        self.rest = b""
        return Capped.text(self)


def signal_group(process, number):
    """Signal everything that the program started; its session id is its process id."""
    try:
        os.killpg(process.pid, number)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise


def pump(process, streams, until, enough=None):
    """Read both pipes until they close, the program has ended and gone quiet, or the time is up.
    The time is up when `until` passes or the event `enough` is set.
    """
    selector = selectors.DefaultSelector()
    for pipe in streams:
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ)
    quiet_after = None
    try:
        while selector.get_map():
            now = time.monotonic()
            if process.poll() is not None and quiet_after is None:
                # A grandchild may hold the pipe open forever, so do not wait for it.
                quiet_after = now + DRAIN
            limit = until if quiet_after is None else min(until, quiet_after)
            if now >= limit or (enough is not None and enough.is_set()):
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
    """Send TERM, wait, send KILL, wait, and then give up; the output of that time is kept."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process, number)
        pump(process, streams, time.monotonic() + GRACE)
        if wait(process, 0.5):
            break
    signal_group(process, signal.SIGKILL)  # children that ignored TERM and outlived their parent


def start(command):
    environment = dict(os.environ)
    environment["PATH"] = PATH
    environment["LC_ALL"] = "C"
    environment.update({str(k): str(v) for k, v in (command.get("env") or {}).items()})
    with STARTING:
        if CANCELLED.is_set():
            raise OSError("the run has ended")
        # Popen looks a bare name up on the PATH of the environment it is given.
        process = subprocess.Popen(
            command["argv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=command.get("cwd") or None,
            env=environment,
            start_new_session=True,
            close_fds=True,
        )
        RUNNING.add(process)
        return process


def nothing_yet(command):
    """Return the fields of `provision.checks.check.Output` for a program that has not run."""
    return {
        "name": command["name"],
        "argv": command["argv"],
        "rc": None,
        "stdout": "",
        "stderr": "",
        "seconds": 0.0,
        "timed_out": False,
        "truncated": False,
        "not_started": "",
        "beside": command.get("beside") or "",
    }


def run_one(command, cap, enough=None):
    """Run one program and return the fields of `Output`. If the event `enough` ends it, it is no timeout."""
    result = nothing_yet(command)
    began = time.monotonic()
    try:
        process = start(command)
    except (OSError, ValueError) as error:
        result["not_started"] = describe(command, error)
        return result
    words = command.get("keep")
    kept = {process.stdout: Sieve(cap, words) if words else Capped(cap), process.stderr: Capped(cap)}
    deadline = began + float(command["deadline"])
    try:
        pump(process, kept, deadline, enough)
        if enough is not None:
            # The program may have closed its pipes and still be running.
            while not enough.is_set() and time.monotonic() < deadline and not wait(process, 0.2):
                pass
            deadline = min(deadline, time.monotonic())
        ended = wait(process, deadline - time.monotonic())
    except BaseException:  # Ctrl-C in a terminal does not reach the program, which has its own session
        signal_group(process, signal.SIGKILL)
        wait(process, GRACE)
        for pipe in kept:
            pipe.close()
        RUNNING.discard(process)
        raise
    if ended:
        signal_group(process, signal.SIGKILL)  # left-over children must not disturb the next command
        result["rc"] = process.returncode
    else:
        result["timed_out"] = enough is None or not enough.is_set()
        stop(process, kept)
        result["rc"] = None if result["timed_out"] else process.returncode
    RUNNING.discard(process)
    result["seconds"] = round(time.monotonic() - began, 3)
    result["stdout"] = kept[process.stdout].text()
    result["stderr"] = kept[process.stderr].text()
    result["truncated"] = any(stream.dropped for stream in kept.values())
    process.stdout.close()
    process.stderr.close()
    return result


def run_again(command, cap, waited=None):
    """Run one program, and repeat it while it fails with the text of `retry_on`.
    `waited`: seconds of retries so far, by text, updated here; commands with the same text share their time.
    """
    waited = {} if waited is None else waited
    words, most = command.get("retry_on") or "", float(command.get("retry_for") or 0)
    while True:
        began = time.monotonic()
        result = run_one(command, cap)
        failed = result["rc"] not in (0, None) and words in result["stdout"] + result["stderr"]
        if not words or not failed or waited.get(words, 0.0) + RETRY > most:
            return result
        time.sleep(RETRY)
        waited[words] = waited.get(words, 0.0) + time.monotonic() - began


def listening(port):
    """Return whether a program listens on this TCP port; a test connection would be its first client.

    sl  local_address rem_address   st
     0: 00000000:4853 00000000:0000 0A
    """
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as table:
                rows = [line.split()[1:4] for line in table]
        except OSError:
            continue
        if any(len(row) == 3 and row[0].endswith(":%04X" % port) and row[2] == "0A" for row in rows):
            return True
    return False


class Companion(threading.Thread):
    """Thread that runs a program next to another; `finish` ends it and returns its output in bounded time."""

    def __init__(self, command, cap):
        threading.Thread.__init__(self, daemon=True)
        self.command, self.cap = command, cap
        self.enough = threading.Event()
        self.result = None
        self.trouble = "it was not ended in time"

    def run(self):
        try:
            self.result = run_one(self.command, self.cap, self.enough)
        except Exception as error:  # no error here may affect the other program
            self.trouble = "%s: %s" % (type(error).__name__, error)

    def begin(self):
        try:
            self.start()
        except RuntimeError as error:  # no more threads available
            self.trouble = str(error)
        return self

    def wait_until_ready(self):
        """Wait until the program listens on its port, has ended, or has had enough time."""
        port, until = int(self.command.get("port") or 0), time.monotonic() + READY
        while port and self.is_alive() and time.monotonic() < until and not listening(port):
            time.sleep(0.05)

    def finish(self):
        self.enough.set()
        if self.ident is not None:
            self.join(2 * (GRACE + 1.0) + DRAIN + 2.0)
        return self.result or dict(nothing_yet(self.command), not_started=self.trouble)


def run_all(commands, cap):
    """Run the commands in order, each with its companions, and return the outputs in the same order."""
    outputs, waited = {}, {}
    for command in commands:
        if command.get("beside"):
            continue
        name = command["name"]
        companions = [Companion(one, cap).begin() for one in commands if one.get("beside") == name]
        for one in companions:
            one.wait_until_ready()
        try:
            outputs[name] = run_again(command, cap, waited)
        finally:
            for one in companions:
                one.enough.set()  # all at once, so that their grace periods overlap
            for one in companions:
                outputs[one.command["name"]] = one.finish()
    return [outputs[command["name"]] for command in commands]


def holder():
    """Return the run that holds the lock of this node; None if the lock is free or unreadable."""
    try:
        with open(LOCK) as source:
            return json.load(source)["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Heartbeat(threading.Thread):
    """Thread that ends the programs and this process once the result can no longer be read.
    Then standard output has no reader, or the run `lock`, which held the node's lock, has released it.
    """

    def __init__(self, lock):
        threading.Thread.__init__(self, daemon=True)
        self.lock = lock if holder() == lock else None  # only root can read the lock
        self.enough = threading.Event()

    def run(self):
        while self.attended():
            if self.enough.wait(BEAT):
                return
        cancel()
        time.sleep(GRACE)  # for the main thread to report it, if the connection is alive
        os._exit(1)

    def attended(self):
        if self.lock and holder() != self.lock:
            return False
        try:
            # Ansible skips blank lines before a module's result. sudo with its own terminal copies our
            # output, and notices a missing reader only when we write.
            os.write(1, b"\n")
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return False
        return True

    def finish(self):
        """Stop writing, because the result follows."""
        self.enough.set()
        self.join()


def cancel():
    """Prevent new starts and end the running programs, by TERM and after a grace period by KILL."""
    CANCELLED.set()
    with STARTING:
        left = list(RUNNING)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            signal_group(process, number)
        until = time.monotonic() + CANCEL_GRACE
        while any(process.poll() is None for process in left) and time.monotonic() < until:
            time.sleep(0.05)


def kernel_lines():
    """Return (command that printed the kernel's messages, its output, its lines).
    The ring buffer has no delay; the journal is the fallback. --all: also messages with unprintable names.
    """
    failed = None
    for argv in (["dmesg"], ["journalctl", "-k", "-b", "-o", "short-unix", "--all", "--no-pager", "-q"]):
        output = run_one({"name": DELTA, "argv": argv, "deadline": LOG_DEADLINE}, LOG_CAP)
        lines = output["stdout"].strip("\n").split("\n")  # names in it may hold other line separators
        if output["rc"] == 0 and lines != [""]:
            return argv, output, lines
        failed = failed or output
    return None, failed, []


def appended(before, after):
    """Return (lines of `after` that are newer than `before`, whether some are lost).
    A ring buffer drops its oldest lines, so that the rest of `before` is the beginning of `after`.
    """
    if not before:
        return after, False
    for begin, line in enumerate(before if after else ()):
        left = len(before) - begin
        if line == after[0] and before[begin:] == after[:left]:
            return after[left:], False
    return after, True


def bridges(lines, devices="/sys/bus/pci/devices"):
    """Recreate the boot messages, long gone from the log, of PCIe ports that report an error:

    pci 0000:64:01.0: PCI bridge to [bus 65-65]
    """
    named = []
    for line in lines:
        if re.search(r"PCIe Bus Error|AER: |\[Hardware Error\]", line):
            named += re.findall(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", line)
    messages = []
    for port in named:
        try:
            buses = []
            for name in ("secondary_bus_number", "subordinate_bus_number"):
                with open(os.path.join(devices, port, name)) as source:
                    buses.append(int(source.read()))
        except (OSError, ValueError):
            continue  # not a bridge
        message = "pci %s: PCI bridge to [bus %02x-%02x]" % (port, buses[0], buses[1])
        if message not in messages:
            messages.append(message)
    return messages


def kernel_log_delta(before, cap):
    """Return the output with the kernel's messages since `before`, a result of `kernel_lines`."""
    argv, output, lines = kernel_lines()
    result = dict(output, stdout="")
    if before[0] is None or argv is None:
        reason = (output if argv is None else before[1])["stderr"].strip()
        result["not_started"] = "the kernel log could not be read: %s" % (reason[:200] or "it is empty")
    elif before[0] != argv:
        result["not_started"] = "the kernel log could be read in two different ways only"
    else:
        fresh, lost = appended(before[2], lines)
        kept = Capped(cap)
        kept.add("\n".join(bridges(fresh) + fresh).encode("utf-8", "replace"))
        result.update(stdout=kept.text(), truncated=lost or bool(kept.dropped))
    return result


def describe(command, error):
    """Describe why a program did not start. A missing `cwd` gives ENOENT, too."""
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
    # Imported here, so that running and collecting works without Ansible, too.
    from ansible.module_utils.basic import AnsibleModule

    suboptions = {
        "name": {"type": "str", "required": True},
        "argv": {"type": "list", "elements": "str", "required": True},
        "deadline": {"type": "float", "required": True},
        "cwd": {"type": "str"},
        "env": {"type": "dict"},
        "beside": {"type": "str"},
        "port": {"type": "int", "default": 0},
        "retry_on": {"type": "str", "default": ""},
        "retry_for": {"type": "float"},
        "keep": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(
        argument_spec={
            "commands": {"type": "list", "elements": "dict", "options": suboptions},
            "packed": {"type": "str"},
            "check": {"type": "str"},
            "cap": {"type": "int", "default": 2 * 1024 * 1024},
            "lock": {"type": "str", "default": ""},
        },
        required_one_of=[["commands", "packed"]],
        supports_check_mode=False,
    )
    commands, cap = module.params["commands"], module.params["cap"]
    if commands is None:
        commands = json.loads(zlib.decompress(base64.b64decode(module.params["packed"])).decode("utf-8"))
    problem = misuse(commands)
    if problem:
        module.fail_json(msg=problem)
    for number in (signal.SIGTERM, signal.SIGHUP):  # each program has its own session and would live on
        signal.signal(number, lambda *_: (cancel(), os._exit(1)))
    heartbeat = Heartbeat(module.params["lock"])
    heartbeat.start()
    before = kernel_lines()
    outputs = run_all(commands, cap)
    outputs.append(kernel_log_delta(before, cap))
    if CANCELLED.is_set():
        module.fail_json(msg="it was ended: the run no longer holds this node")
    heartbeat.finish()
    answered = {"gpuprov_answered": module.params["check"]}
    module.exit_json(
        changed=False, gpuprov={"outputs": outputs, "boot_id": boot_id()}, ansible_facts=answered
    )


def misuse(commands):
    """Return an error message for an invalid call; empty if the call is valid."""
    alone = [command["name"] for command in commands if not command.get("beside")]
    for command in commands:
        if not command["argv"]:
            return "command %s has an empty argv" % command["name"]
        if command.get("beside") and command["beside"] not in alone:
            return "command %s is beside %s, which is not run" % (command["name"], command["beside"])
    if len({command["name"] for command in commands} | {DELTA}) <= len(commands):
        return "two commands have one name, or one is called %s" % DELTA
    return ""


if __name__ == "__main__":
    main()
