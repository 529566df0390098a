"""Last part of the node program, which runs the probes of the requested facts and prints the result."""

import os
import select
import sys
import time

from provision.node.observe.files import ROOT, TOTAL_LIMIT, ReadError
from provision.node.observe.probe import FAMILIES, TOOL_FOLDERS, Probe, RefusedError, find_tool
from provision.node.observe.system import BASE

BEGIN = "@gpuprov-facts 1"  # then the length of the JSON in bytes, a newline, the JSON, a newline, and END
END = "@gpuprov-end"
KERNEL = "{kernel.release}"  # in a fact's name: this node's kernel, which the controller cannot know yet
ESCAPES = {code: "\\u%04x" % code for code in [*range(32), 34, 92, 127]}


def plan(names):
    """Return the probes for the requested facts, and the unknown facts."""
    base = {name for names_of, _ in BASE for name in names_of}
    probes = [Probe(list(names_of), read=function) for names_of, function in BASE]
    requested = {}
    unknown = []
    for name in sorted(set(names) - base):
        family, _, rest = name.partition(".")
        if family in FAMILIES and FAMILIES[family].knows(rest):
            requested.setdefault(family, []).append(name)
        else:
            unknown.append(name)
    for family in requested:
        probes.extend(FAMILIES[family].probes(requested[family]))
    return probes, unknown


def to_json(value):
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    if isinstance(value, dict):
        return "{" + members(value) + "}"
    return '"' + value.translate(ESCAPES) + '"'


def members(mapping):
    return ",".join([to_json(key) + ":" + to_json(mapping[key]) for key in mapping])


class Child:
    """A forked process with collected output, which may be left behind."""

    def __init__(self, function):
        self.handle, writer = os.pipe()
        self.output = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                nothing = os.open("/dev/null", os.O_RDWR)
                os.dup2(nothing, 0)
                os.dup2(writer, 1)
                os.dup2(writer, 2)
                function()
            finally:
                os._exit(0)
        os.close(writer)

    def abandon(self):
        for action in (lambda: os.killpg(self.pid, 9), lambda: os.close(self.handle)):
            try:
                action()
            except OSError:
                pass


def execute(path, command):
    environment = {"LC_ALL": "C", "PATH": ":".join(TOOL_FOLDERS)}
    os.execve(path, command, environment)  # noqa: S606


def read_all(probes, first):
    """Run the probes in the reader child; lines at each start and end show the parent which one hangs."""
    data = b"?%d\n" % first
    for number in range(first, len(probes)):
        write_all(data)
        facts, problems = attempt(probes[number], probes[number].read)
        # Tabs and newlines in values are escaped.
        line = "=" + members(facts) + "\t" + members(problems) + "\n"
        data = line.encode("utf-8", "replace") + b"?%d\n" % (number + 1)
    write_all(data)


def write_all(data):
    while data:
        data = data[os.write(1, data) :]


def attempt(probe, function, *arguments):
    """Return the facts and the problems of one probe. A ReadError as a fact's value is a problem."""
    try:
        facts = function(*arguments)
        unread = {name: str(value) for name, value in facts.items() if isinstance(value, ReadError)}
        return {name: value for name, value in facts.items() if name not in unread}, unread
    except ReadError as reason:
        return {}, dict.fromkeys(probe.facts, str(reason))
    except RefusedError:
        raise
    except Exception as error:  # one faulty reading must not cost the other facts
        return {}, dict.fromkeys(probe.facts, "the probe failed: %s: %s" % (type(error).__name__, error))


class Observer:
    """Event loop that runs the probes and gathers the answer as JSON fragments, within the time limits."""

    def __init__(self, request):
        self.probe_seconds = request.get("probe_seconds", 8)
        self.end = time.monotonic() + request.get("seconds", 40)
        self.limit = request.get("bytes", TOTAL_LIMIT)
        self.facts = []
        self.problems = []
        self.size = 0
        self.children = {}  # handle -> (child, its probe or None for the reader, its deadline)
        self.poll = select.poll()
        self.at = -1  # index of the probe that the reader works on

    def add(self, probe_facts, facts, problems=""):
        self.size += len(facts) + len(problems)
        if self.size > self.limit:
            self.size -= len(facts) + len(problems)
            reason = "left out: the whole answer passed %d KiB" % (self.limit // 1024)
            facts, problems = "", members(dict.fromkeys(probe_facts, reason))
        if facts:
            self.facts.append(facts)
        if problems:
            self.problems.append(problems)

    def complain(self, probe, reason):
        self.add(probe.facts, "", members(dict.fromkeys(probe.facts, reason)))

    def start(self, function, probe):
        child = Child(function)
        self.poll.register(child.handle, select.POLLIN | select.POLLHUP)
        self.children[child.handle] = (child, probe, self.fresh_limit(probe))

    def seconds_of(self, probe):
        return self.probe_seconds * (probe.patience if probe else 1)

    def fresh_limit(self, probe=None):
        return min(time.monotonic() + self.seconds_of(probe), self.end)

    def start_tool(self, probe):
        try:
            path = find_tool(probe.command[0])
        except ReadError as reason:
            self.complain(probe, str(reason))
        else:
            self.start(lambda: execute(path, probe.command), probe)

    def start_reader(self, first):
        self.at = first
        if first < len(self.read_probes):
            self.start(lambda: read_all(self.read_probes, first), None)

    def run(self, probes):
        self.read_probes = [probe for probe in probes if probe.read]
        for probe in probes:
            if probe.command:
                self.start_tool(probe)
        self.start_reader(0)
        while self.children:
            soonest = min(limit for _, _, limit in self.children.values())
            wait = max(0, soonest - time.monotonic())
            for handle, _ in self.poll.poll(int(wait * 1000) + 1):
                self.receive(handle)
            now = time.monotonic()
            for handle, (_, _, limit) in list(self.children.items()):
                if limit <= now:
                    self.time_is_up(handle)

    def receive(self, handle):
        child, probe, _ = self.children[handle]
        data = os.read(handle, 1 << 16)
        child.output += data
        if probe is None and data:
            self.take_lines(child)
            self.children[handle] = (child, None, self.fresh_limit())
        elif not data or len(child.output) > TOTAL_LIMIT:
            self.forget(handle)
            if probe is not None:
                self.finish_tool(probe, child.output)
            elif self.at < len(self.read_probes):
                self.complain(self.read_probes[self.at], "the process that read it died")
                self.start_reader(self.at + 1)

    def take_lines(self, child):
        lines = child.output.split(b"\n")
        child.output = lines.pop()
        for line in lines:
            if line[:1] == b"?":
                self.at = int(line[1:])
            elif line[:1] == b"=":  # anything else is a Python warning
                facts, _, problems = line[1:].decode("utf-8").partition("\t")
                self.add(self.read_probes[self.at].facts, facts, problems)
                self.at += 1

    def finish_tool(self, probe, output):
        try:
            facts, problems = attempt(probe, probe.parse, probe.facts, output.decode("utf-8", "replace"))
        except RefusedError as refused:
            self.add(list(refused.unread), "", members(refused.unread))
            self.start_tool(refused.others)
        else:
            self.add(probe.facts, members(facts), members(problems))

    def time_is_up(self, handle):
        _, probe, _ = self.children[handle]
        self.forget(handle)
        over = time.monotonic() >= self.end
        reason = "no time was left for it" if over else "no answer within %g s" % self.seconds_of(probe)
        if probe is not None:
            self.complain(probe, "%s: %s" % (probe.command[0], reason))
        elif over:
            for unread in self.read_probes[self.at :]:
                self.complain(unread, reason)
        elif self.at < len(self.read_probes):
            self.complain(self.read_probes[self.at], reason)
            self.start_reader(self.at + 1)

    def forget(self, handle):
        child, _, _ = self.children.pop(handle)
        self.poll.unregister(handle)
        child.abandon()


def answer(request):
    """Return the answer to a request for `facts` (names) as JSON.
    Other keys: `probe_seconds`, `seconds` (in all), `bytes` (of values), `root` (before paths; for tests)."""
    ROOT[0] = request.get("root", "").encode("utf-8")
    release = os.uname().release
    probes, unknown = plan([name.replace(KERNEL, release) for name in request.get("facts", ())])
    observer = Observer(request)
    observer.run(probes)
    problems = observer.problems
    if unknown:
        problems = [*problems, members(dict.fromkeys(unknown, "no such fact"))]
    uid = os.geteuid()
    parts = (
        '{"uid":',
        str(uid),
        ',"facts":{',
        ",".join(observer.facts),
        '},"problems":{',
        ",".join(problems),
    )
    return ("".join(parts) + "}}").encode("utf-8", "replace")


def main(request):
    """Print the answer to one request."""
    body = answer(request)
    framed = ("\n%s %d\n" % (BEGIN, len(body))).encode("ascii") + body + ("\n%s\n" % END).encode("ascii")
    sys.stdout.flush()
    write_all(framed)
    os._exit(0)  # no clean-up to wait for, since a child may be stuck
