"""Settings of the GPUs made with nvidia-smi, and how long each lasts.

inforom.json is the GPUs' own memory, which survives reboots: ECC mode, and on Ampere MIG mode.
run/settings.json is the driver's memory, lost at boot: MIG instances, since Hopper the MIG mode, and, as long
as persistence mode keeps the driver's state, power limit, clocks and compute mode.
"""

import json

from state import write_atomically

KEPT_BY_DRIVER = ("power", "locked", "applications", "compute", "persistence")
COMPUTE_MODES = ("DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")
# The MIG user guide: only the boards of this architecture keep the mode in their InfoROM.
KEEPS_MIG = "Ampere"


class Settings:
    """The settings of one node's GPUs, by slot; change the dictionaries and call save()."""

    def __init__(self, node) -> None:
        self.node = node
        self.inforom = _read(node.folder / "inforom.json")
        self.driver = _read(node.folder / "run/settings.json")
        self.daemon = node.running("persistenced")
        held = holder(node)
        if self.driver.get("holder") != held or not held:
            for slot in self.driver:
                if slot != "holder":
                    for name in KEPT_BY_DRIVER:
                        self.driver[slot].pop(name, None)

    def of(self, gpu) -> dict:
        """Return all settings of a GPU, including defaults."""
        slot, sku = str(gpu["slot"]), self.node.sku
        lasting, passing = self.inforom.get(slot, {}), self.driver.get(slot, {})
        mig = (lasting if sku["architecture"] == KEEPS_MIG else passing).get("mig", False)
        return {
            "power": passing.get("power", float(sku["power"])),
            "locked": passing.get("locked"),
            "applications": passing.get("applications", [sku["memory_clock"], sku["clock"]]),
            "compute": passing.get("compute", "DEFAULT"),
            "persistence": passing.get("persistence", self.daemon),
            "ecc": lasting.get("ecc", True),
            "ecc_pending": lasting.get("ecc_pending", lasting.get("ecc", True)),
            "mig": mig,
            "mig_pending": lasting.get("mig_pending", mig),
            "instances": passing.get("instances", []),
        }

    def change(self, gpu, **values) -> None:
        """Change some of the settings in `of`; None resets a driver's setting."""
        slot = str(gpu["slot"])
        for name, value in values.items():
            lasting = name.startswith("ecc") or name == "mig_pending"
            lasting = lasting or (name == "mig" and self.node.sku["architecture"] == KEEPS_MIG)
            place = (self.inforom if lasting else self.driver).setdefault(slot, {})
            if value is None:
                place.pop(name, None)
            else:
                place[name] = value

    def reset(self, gpu) -> None:
        """Apply a GPU reset: the driver's settings are lost, pending ones take effect."""
        self.driver.pop(str(gpu["slot"]), None)
        _settle(self.inforom.get(str(gpu["slot"]), {}))

    def save(self) -> None:
        """Write both memories. After changes to MIG, mig_files.write has to follow."""
        self.driver["holder"] = holder(self.node)
        write_atomically(self.node.folder / "inforom.json", json.dumps(self.inforom) + "\n")
        write_atomically(self.node.folder / "run/settings.json", json.dumps(self.driver) + "\n")


def after_boot(node) -> None:
    """Apply pending settings at boot; the driver's memory went with the run folder."""
    inforom = _read(node.folder / "inforom.json")
    if inforom:
        for slot in inforom:
            _settle(inforom[slot])
        write_atomically(node.folder / "inforom.json", json.dumps(inforom) + "\n")


def holder(node) -> str:
    """Return what keeps the driver's state of idle GPUs: a persistence daemon's id, -pm 1, or nothing."""
    if node.running("persistenced"):
        return (node.folder / "run/persistenced").read_text().strip()
    return "nvidia-smi" if (node.folder / "run/persistence_mode").exists() else ""


def _settle(lasting: dict) -> None:
    for name in ("ecc", "mig"):
        if name + "_pending" in lasting:
            lasting[name] = lasting.pop(name + "_pending")


def _read(path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
