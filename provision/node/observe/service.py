"""States of systemd units."""

from provision.node.observe.probe import FAMILIES, Family, Probe, attribute_of, item_of, units_shown

RUNNING = "service.running"  # list of all active services
LIST = "systemctl list-units --type=service --state=active --plain --no-legend --no-pager"


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


def parse_running(names, output):
    services = [line.split()[0][: -len(".service")] for line in output.splitlines() if ".service " in line]
    return dict.fromkeys(names, services)


def service_probes(names):
    if RUNNING in names:
        rest = [name for name in names if name != RUNNING]
        running = Probe([RUNNING], command=LIST.split(), parse=parse_running)
        return [running, *(service_probes(rest) if rest else ())]
    show = ["systemctl", "show", "--no-pager", "--property=LoadState,ActiveState,UnitFileState", "--"]
    return [Probe(names, command=show + units_of(names), parse=parse_systemctl)]


FAMILIES["service"] = Family(("active", "enabled"), service_probes, whole=("running",))
