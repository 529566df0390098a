"""Firmware of the machine, its GPUs and its RDMA cards, from /sys and /proc, without starting a tool."""

from provision.node.observe.files import ReadError, at, labelled, link_target, names_in, read_line, read_text
from provision.node.observe.probe import FAMILIES, whole_family

DMI = "/sys/class/dmi/id/"
CARDS = "/proc/driver/nvidia/gpus/"
RDMA = "/sys/class/infiniband/"
CARD_LABELS = {
    "gpu_model": "Model",
    "gpu_uuid": "GPU UUID",
    "gpu_vbios": "Video BIOS",
    "gpu_gsp": "GPU Firmware",
}
CARD_TEXTS = {}  # each file is read once for all its facts


def card_text(address):
    if address not in CARD_TEXTS:
        text = read_text(CARDS + address + "/information")
        if text is None:
            raise ReadError("/proc/driver/nvidia says nothing of the GPU at " + address)
        CARD_TEXTS[address] = text
    return CARD_TEXTS[address]


def card_value(address, label):
    # Video BIOS: \t 96.00.74.00.01
    value = labelled(card_text(address), label)
    # The driver prints a mask until a program has opened the GPU: ??.??.??.??.??
    if value and "?" in value:
        raise ReadError("the driver has not started the GPU at %s yet: %s unknown" % (address, label))
    return value


def of_cards(attribute):
    """Return one text per GPU in PCI address order; None while the driver is not loaded."""
    addresses = names_in(CARDS)
    return [card_value(address, CARD_LABELS[attribute]) for address in addresses] if addresses else None


def system_name():
    words = [read_line(DMI + name) for name in ("sys_vendor", "product_name")]
    return " ".join(word for word in words if word) or None


def microcode():
    # The first CPU stands for all; the whole file is large on a large machine.
    try:
        with open(at("/proc/cpuinfo"), "rb") as file:
            head = file.read(8192).decode("ascii", "replace")
    except OSError:
        return None
    return labelled(head, "microcode")


def width_of(path):
    text = read_line(path)
    return int(text) if text and text.isdigit() else None


def rdma_cards():
    cards = []
    for name in names_in(RDMA):
        device = RDMA + name + "/"
        address = (link_target(device + "device") or "").rpartition("/")[2] or None
        cards.append(
            {
                "device": name,
                "address": address,
                "board_id": read_line(device + "board_id"),
                "firmware": read_line(device + "fw_ver"),
                "link_width": width_of(device + "device/current_link_width"),
                "link_width_max": width_of(device + "device/max_link_width"),
            }
        )
    return cards


FIRMWARE = {"system": system_name, "cpu_microcode": microcode, "rdma": rdma_cards}
FIRMWARE.update((name, lambda name=name: of_cards(name)) for name in CARD_LABELS)
FIRMWARE.update(
    (name, lambda name=name: read_line(DMI + name)) for name in ("bios_vendor", "bios_version", "bios_date")
)
FAMILIES["firmware"] = whole_family(FIRMWARE)
