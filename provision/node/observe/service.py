"""Units, as systemd knows them."""

from provision.node.observe.probe import FAMILIES, Family, Probe, attribute_of, item_of, units_shown


def parse_systemctl(names, output):
    units = units_of(names)
    blocks = units_shown(output, len(units), "LoadState")
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
