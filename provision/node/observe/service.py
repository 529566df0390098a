"""Units, as systemd knows them."""

from provision.node.observe.files import ReadError
from provision.node.observe.probe import FAMILIES, Family, Probe, attribute_of, item_of


def parse_systemctl(names, output):
    """`systemctl show` prints one paragraph per unit, in the order asked."""
    units = units_of(names)
    blocks = []
    for text in output.strip().split("\n\n"):
        pairs = (line.partition("=") for line in text.splitlines())
        blocks.append({key: value for key, equals, value in pairs if equals})
    if len(blocks) != len(units) or any("LoadState" not in block for block in blocks):
        raise ReadError("systemctl answered: " + (output.strip()[:200] or "nothing"))
    facts = {}
    for fact in names:
        block = blocks[units.index(item_of(fact))]
        value = block.get("ActiveState" if attribute_of(fact) == "active" else "UnitFileState")
        facts[fact] = value if block["LoadState"] != "not-found" and value else None
    return facts


def units_of(names):
    return sorted({item_of(name) for name in names})


def service_probes(names):
    show = ["systemctl", "show", "--no-pager", "--property=LoadState,ActiveState,UnitFileState", "--"]
    return [Probe(names, command=show + units_of(names), parse=parse_systemctl)]


FAMILIES["service"] = Family(("active", "enabled"), service_probes)
