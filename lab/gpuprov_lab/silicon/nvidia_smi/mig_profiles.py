"""The MIG profiles of each SKU: names, numbers and memory as listed by `nvidia-smi mig -lgip`.

From the MIG user guide (supported profiles). A GPU has 7 compute slices and 8 memory slices; a profile takes
some at one of its `starts`, and the order in which the driver tries them reproduces the guide's examples.
"""

_SHAPES = (
    # suffix, profile id, compute slices, memory slices, most instances, starts as tried, decoders, ofa
    ("", 19, 1, 1, 7, (2, 0, 1, 4, 5, 6, 3), 1, 0),
    ("+me", 20, 1, 1, 1, (2, 0, 1, 4, 5, 6, 3), 1, 1),
    ("", 15, 1, 2, 4, (4, 6, 0, 2), 1, 0),
    ("", 14, 2, 2, 3, (4, 0, 2), 2, 0),
    ("", 9, 3, 4, 2, (4, 0), 3, 0),
    ("", 5, 4, 4, 1, (0,), 4, 0),
    ("", 0, 7, 8, 1, (0,), 7, 1),
)
# Instances are numbered as a tree: the GPU 0, its halves 1 and 2, quarters 3 to 6, eighths from 7.
_IDS = {
    1: {0: 11, 1: 12, 2: 13, 3: 10, 4: 7, 5: 8, 6: 9},
    2: {0: 5, 2: 6, 4: 3, 6: 4},
    4: {0: 2, 4: 1},
    8: {0: 0},
}

# SKU -> sizes in GB of 1, 2, 4 and 8 memory slices, their memory in GiB, multiprocessors by compute slices
_BOARDS = {
    "a100-sxm-80": ((10, 20, 40, 80), (9.5, 19.5, 39.25, 78.75), {1: 14, 2: 28, 3: 42, 4: 56, 7: 98}),
    "a100-pcie-80": ((10, 20, 40, 80), (9.5, 19.5, 39.25, 78.75), {1: 14, 2: 28, 3: 42, 4: 56, 7: 98}),
    "h100-sxm": ((10, 20, 40, 80), (9.75, 19.62, 39.5, 79.25), {1: 16, 2: 32, 3: 60, 4: 64, 7: 132}),
    "h200-sxm": ((18, 35, 71, 141), (16.0, 32.5, 69.75, 139.75), {1: 16, 2: 32, 3: 60, 4: 64, 7: 132}),
    "b200": ((23, 45, 90, 180), (21.62, 44.0, 88.5, 177.75), {1: 18, 2: 36, 3: 70, 4: 74, 7: 148}),
}


def profiles(sku_name: str) -> list:
    """Return every profile of a SKU as a dictionary, in the order of -lgip; empty without MIG."""
    if sku_name not in _BOARDS:
        return []
    sizes, gib, processors = _BOARDS[sku_name]
    found = []
    for suffix, number, compute, memory, most, starts, decoders, ofa in _SHAPES:
        at = (1, 2, 4, 8).index(memory)
        found.append(
            {
                "name": f"{compute}g.{sizes[at]}gb{suffix}",
                "id": number,
                "compute": compute,
                "memory": memory,
                "most": most,
                "starts": starts,
                "gib": gib[at],
                "processors": processors[compute],
                "decoders": decoders,
                "ofa": ofa,
                "engines": 8 if number == 0 else compute,
            }
        )
    return found


def find(sku_name: str, word: str):
    """Find a profile by number or name (`19`, `1g.10gb`, `MIG 1g.10gb`); None if it is unknown."""
    name = word.strip().lower()
    for one in profiles(sku_name):
        if name in (str(one["id"]), one["name"], "mig " + one["name"]):
            return one
    return None


def place(profile: dict, instances: list):
    """Return (instance id, start) of one more such instance; None if it does not fit."""
    taken = {slice_ for one in instances for slice_ in range(one["start"], one["start"] + one["size"])}
    same = [one for one in instances if one["profile"] == profile["name"]]
    if len(same) >= profile["most"]:
        return None
    if sum(one["compute"] for one in instances) + profile["compute"] > 7:
        return None
    for start in profile["starts"]:
        if not taken & set(range(start, start + profile["memory"])):
            return _IDS[profile["memory"]][start], start
    return None


def free(profile: dict, instances: list) -> int:
    """Return how many more instances of a profile fit next to the present ones."""
    there, count = list(instances), 0
    while True:
        spot = place(profile, there)
        if spot is None:
            return count
        count += 1
        there.append(instance(profile, spot))


def instance(profile: dict, spot: tuple) -> dict:
    """Return a new GPU instance without a compute instance."""
    return {
        "id": spot[0],
        "profile": profile["name"],
        "number": profile["id"],
        "start": spot[1],
        "size": profile["memory"],
        "compute": profile["compute"],
        "usable": False,
    }


def usable(settings: dict) -> list:
    """Return the instances that programs can use: those with a compute instance, large ones first."""
    found = [each for each in settings["instances"] if each["usable"]]
    return sorted(found, key=lambda each: (-each["size"], each["id"]))
