"""Building blocks of fact families, where a family is a file named after the first word of its facts.
It registers itself in FAMILIES, and is sent only to nodes that are queried for one of its facts."""

import os

from provision.node.observe.files import ReadError, at

TOOL_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
FAMILIES = {}


class Probe:
    """A step that may hang, for which `patience` multiplies the usual timeout.
    It reads `facts`, by `read` (in the reader child) or by a tool's `command` and `parse` of its output."""

    def __init__(self, facts, read=None, command=None, parse=None, patience=1):
        self.facts = facts
        self.read = read
        self.command = command
        self.parse = parse
        self.patience = patience


class RefusedError(Exception):
    """A tool rejected part of its query. `unread`: fact -> reason; `others`: the probe of the other facts."""

    def __init__(self, unread, others):
        Exception.__init__(self, "; ".join(unread.values()))
        self.unread = unread
        self.others = others


class Family:
    """The facts `NAME.attribute`, or with `items` `NAME.item.attribute`, except for `whole` attributes.
    `probes`: makes the probes for the full names of the requested facts."""

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
    """Return the item of a fact, such as nvidia-open of package.nvidia-open.held."""
    return fact.partition(".")[2].rpartition(".")[0]


def attribute_of(fact):
    """Return the attribute of a fact, such as held of package.nvidia-open.held."""
    return fact.rpartition(".")[2]


def single(fact, function, *arguments):
    return Probe([fact], read=lambda: {fact: function(*arguments)})


def one_each(function):
    """Return a function that makes a probe per fact, where `function` gets the fact's item and attribute."""
    return lambda names: [single(name, function, item_of(name), attribute_of(name)) for name in names]


def whole_family(functions, tools=None):
    """Return a family of facts without items, each read by its function.
    `tools`: attribute -> function that makes the probe of a fact that comes from a tool."""
    tools = tools or {}

    def probes(names):
        found = []
        for name in names:
            attribute = attribute_of(name)
            found.append(tools[attribute](name) if attribute in tools else single(name, functions[attribute]))
        return found

    return Family((*functions, *tools), probes, items=False)


def find_tool(name):
    """Return the path of a tool, given its name or its absolute path. Raises ReadError."""
    for folder in [""] if name[:1] == "/" else TOOL_FOLDERS:
        path = at(folder + "/" + name.lstrip("/"))
        if os.access(path, os.X_OK):
            return path
    raise ReadError("%s is not installed" % name)


def units_shown(output, count, needed):
    """Parse the paragraphs of `systemctl show`, one per unit in order, into dictionaries."""
    blocks = []
    for text in output.strip().split("\n\n"):
        pairs = [line.partition("=") for line in text.splitlines()]
        blocks.append({key: value for key, equals, value in pairs if equals})
    if len(blocks) != count or any(needed not in block for block in blocks):
        raise answered("systemctl", output)
    return blocks


def answered(tool, output):
    """Return the ReadError for a tool's output that could not be parsed."""
    return ReadError("%s answered: %s" % (tool, output.strip()[:200] or "nothing"))
