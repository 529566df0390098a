"""Memory errors counted by the kernel's EDAC drivers since they were loaded."""

from provision.node.observe.files import ReadError, names_in, read_line
from provision.node.observe.probe import FAMILIES, whole_family

CONTROLLERS = "/sys/devices/system/edac/mc"


def error_count(path):
    """Return the value of an error counter; None if there is no such counter."""
    text = read_line(path)
    if text is None:
        return None
    if not text.isdigit():
        raise ReadError("%s is not a number" % path)
    return int(text)


def numbered(folder, prefix):
    return [
        name for name in names_in(folder) if name[: len(prefix)] == prefix and name[len(prefix) :].isdigit()
    ]


def edac_controllers():
    """Return one entry per memory controller; none if the kernel has no driver for them."""
    controllers = []
    for name in numbered(CONTROLLERS, "mc"):
        folder = "%s/%s/" % (CONTROLLERS, name)
        counts = {
            "corrected": error_count(folder + "ce_count"),
            "uncorrected": error_count(folder + "ue_count"),
        }
        controllers.append(dict(counts, controller=name, driver=read_line(folder + "mc_name")))
    return controllers


def edac_modules():
    """Return one entry per memory module, with the label that firmware or driver give to its slot."""
    modules = []
    for name in numbered(CONTROLLERS, "mc"):
        for kind in ("dimm", "rank"):
            for module in numbered("%s/%s" % (CONTROLLERS, name), kind):
                folder = "%s/%s/%s/" % (CONTROLLERS, name, module)
                modules.append(
                    {
                        "controller": name,
                        "module": module,
                        "label": read_line(folder + "dimm_label"),
                        "corrected": error_count(folder + "dimm_ce_count"),
                        "uncorrected": error_count(folder + "dimm_ue_count"),
                    }
                )
    return modules


FAMILIES["edac"] = whole_family({"controllers": edac_controllers, "modules": edac_modules})
