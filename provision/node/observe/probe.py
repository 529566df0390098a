"""What a family of facts is made of. A family is one file of this folder, named as the first word of its
facts; it registers itself in FAMILIES, and is sent only to nodes that are asked for one of its facts."""

import os

from provision.node.observe.files import ReadError, at

TOOL_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
FAMILIES = {}


class Probe:
    """One thing that may hang: the facts it reads, and either `read` (run in the reader child) or a tool's
    `command` with the `parse` of its output. `patience`: how many times the usual seconds a slow tool has."""

    def __init__(self, facts, read=None, command=None, parse=None, patience=1):
        self.facts = facts
        self.read = read
        self.command = command
        self.parse = parse
        self.patience = patience


class RefusedError(Exception):
    """A tool refused some of what it was queried for: `unread` (fact -> why), and the probe of the others."""

    def __init__(self, unread, others):
        Exception.__init__(self, "; ".join(unread.values()))
        self.unread = unread
        self.others = others


class Family:
    """The facts `NAME.attribute`, or `NAME.item.attribute` where `items`; `whole` are attributes without an
    item in a family that has items. `probes` makes the probes for the full names of those that are asked."""

    def __init__(self, attributes, probes, items=True, whole=()):
        self.attributes = attributes
        self.probes = probes
        self.items = items
        self.whole = whole

    def knows(self, rest):
        if rest in self.whole:
            return True
        if not self.items:
            return rest in self.attributes
        item, _, attribute = rest.rpartition(".")
        return bool(item) and attribute in self.attributes


def item_of(fact):
    """package.nvidia-open.held -> nvidia-open"""
    return fact.partition(".")[2].rpartition(".")[0]


def attribute_of(fact):
    """package.nvidia-open.held -> held"""
    return fact.rpartition(".")[2]


def single(fact, function, *arguments):
    return Probe([fact], read=lambda: {fact: function(*arguments)})


def one_each(function):
    """A probe per fact: `function` is called with its item and attribute."""
    return lambda names: [single(name, function, item_of(name), attribute_of(name)) for name in names]


def whole_family(functions, tools=None):
    """A family of facts without items, each with the function that reads it. `tools`: attribute -> the
    function that makes the probe of a fact that a tool answers."""
    tools = tools or {}

    def probes(names):
        found = []
        for name in names:
            attribute = attribute_of(name)
            found.append(tools[attribute](name) if attribute in tools else single(name, functions[attribute]))
        return found

    return Family((*functions, *tools), probes, items=False)


def find_tool(name):
    """Where a tool is, by its name or its whole path."""
    for folder in [""] if name[:1] == "/" else TOOL_FOLDERS:
        path = at(folder + "/" + name.lstrip("/"))
        if os.access(path, os.X_OK):
            return path
    raise ReadError("%s is not installed" % name)


def units_shown(output, count, needed):
    """The paragraphs that `systemctl show` prints, one for each unit in order, as dictionaries."""
    blocks = []
    for text in output.strip().split("\n\n"):
        pairs = [line.partition("=") for line in text.splitlines()]
        blocks.append({key: value for key, equals, value in pairs if equals})
    if len(blocks) != count or any(needed not in block for block in blocks):
        raise answered("systemctl", output)
    return blocks


def answered(tool, output):
    """The ReadError for a tool's output that was not understood."""
    return ReadError("%s answered: %s" % (tool, output.strip()[:200] or "nothing"))
