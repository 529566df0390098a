"""nvidia-smi mig: GPU instances and compute instances. Tables and sentences as in the MIG user guide."""

import uuid

import noise
from settings import Settings

from nvidia_smi import mig_files
from nvidia_smi.mig_profiles import find, free, instance, place, profiles, usable

BAD_ARGUMENT, NOT_PERMITTED, NOTHING_FOUND, IN_USE, NO_ROOM = 2, 4, 6, 19, 23
INVALID = "Invalid combination of input arguments. Please run 'nvidia-smi mig -h' for help.\n"
_LISTS = ("-lgip", "-lgi", "-lci")
_LONG = {
    "--list-gpu-instance-profiles": "-lgip",
    "--list-gpu-instances": "-lgi",
    "--list-compute-instances": "-lci",
    "--create-gpu-instance": "-cgi",
    "--create-compute-instance": "-cci",
    "--destroy-compute-instance": "-dci",
    "--destroy-gpu-instance": "-dgi",
    "--default-compute-instance": "-C",
    "--id": "-i",
    "--gpu-instance-id": "-gi",
    "--compute-instance-id": "-ci",
}


def run(node, words: list, choose) -> int:
    """`mig …`; `choose` finds the GPUs -i names. Returns the exit status."""
    asked = _read(words)
    if asked is None:
        print(INVALID)
        return BAD_ARGUMENT
    gpus, _ = choose(node, asked.get("-i"))
    action = next(one for one in (*_LISTS, *_CHANGES) if one in asked)
    settings = Settings(node)
    capable = bool(profiles(node.sku_name))
    enabled = [(index, gpu) for index, gpu in gpus if settings.of(gpu)["mig"]]
    if action == "-lgip" and capable:
        return _profiles(node, settings, gpus)
    if not enabled:
        print("No MIG-enabled devices found.")
        return NOTHING_FOUND
    if action in _LISTS:
        return (_instances if action == "-lgi" else _compute_instances)(settings, enabled)
    if not node.privileged():
        print("Insufficient Permissions")
        return NOT_PERMITTED
    status = _CHANGES[action](node, settings, enabled, asked)
    settings.save()
    mig_files.write(node)
    return status


def devices(one: dict) -> str:
    """The lines of `nvidia-smi -L` under a GPU: its MIG devices."""
    lines = []
    for number, each in enumerate(usable(one["settings"])):
        lines.append(
            f"  MIG {each['profile']:<11} Device {number:>2}: (UUID: {mig_uuid(one['gpu'], each)})\n"
        )
    return "".join(lines)


def mig_uuid(gpu, each: dict) -> str:
    """A MIG device's own id; the same instance of the same GPU has the same."""
    return f"MIG-{uuid.UUID(hex=noise.hexadecimal(32, 'mig', gpu['uuid'], each['id'], each['profile']))}"


def entries(node, one: dict) -> list:
    """What `nvidia-smi -q -x` says of a GPU's MIG devices (see nvidia_smi_tree)."""
    found = []
    for number, each in enumerate(usable(one["settings"])):
        profile = find(node.sku_name, each["profile"])
        total = int(profile["gib"] * 1024)
        shared = [
            ("multiprocessor_count", None, str(profile["processors"])),
            ("copy_engine_count", None, str(profile["engines"])),
            ("encoder_count", None, "0"),
            ("decoder_count", None, str(profile["decoders"])),
            ("ofa_count", None, str(profile["ofa"])),
            ("jpg_count", None, str(profile["decoders"])),
        ]
        memory = (("total", total), ("reserved", 0), ("used", 12), ("free", total - 12))
        bar = (("total", total), ("used", 0), ("free", total))
        parts = [
            ("index", None, str(number)),
            ("gpu_instance_id", None, str(each["id"])),
            ("compute_instance_id", None, "0"),
            ("device_attributes", None, [("shared", None, shared)]),
            ("ecc_error_count", None, [("volatile_count", None, [("sram_uncorrectable", None, "0")])]),
            ("fb_memory_usage", None, [(name, None, f"{mib} MiB") for name, mib in memory]),
            ("bar1_memory_usage", None, [(name, None, f"{mib} MiB") for name, mib in bar]),
        ]
        found.append(("mig_device", None, parts))
    return found


def _read(words: list):
    asked, rest = {}, list(words)
    while rest:
        word = _LONG.get(rest[0], rest[0])
        rest.pop(0)
        if word in ("-i", "-cgi", "-gi", "-ci"):
            if not rest:
                return None
            asked[word] = rest.pop(0)
        elif word == "-cci":
            asked[word] = rest.pop(0) if rest and not rest[0].startswith("-") else ""
        elif word in (*_LISTS, "-dci", "-dgi", "-C"):
            asked[word] = ""
        else:
            return None
    actions = [one for one in (*_LISTS, *_CHANGES) if one in asked]
    return asked if len(actions) == 1 else None


def _profiles(node, settings: Settings, gpus) -> int:
    line = "+" + "-" * 79 + "+"
    print(line)
    print(f"| {'GPU instance profiles:':<77} |")
    print("| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |")
    print("|                                Free/Total   GiB              CE    JPEG  OFA  |")
    print("|" + "=" * 79 + "|")
    for index, gpu in gpus:
        now = settings.of(gpu)
        for one in profiles(node.sku_name):
            there = free(one, now["instances"]) if now["mig"] else 0
            named = f"MIG {one['name']}"
            print(
                f"| {index:>3}  {named:<18} {one['id']:>3}   {there:>3}/{one['most']:<3}   {one['gib']:>7.2f}"
                f"       No    {one['processors']:>3}   {one['decoders']:>3}     0   |"
            )
            jpeg = one["decoders"]
            print(f"| {'':59} {one['engines']:>3}   {jpeg:>3}   {one['ofa']:>3}   |")
            print(line)
    return 0


def _instances(settings: Settings, gpus) -> int:
    rows = [(index, each) for index, gpu in gpus for each in _sorted(settings.of(gpu)["instances"], "number")]
    if not rows:
        print("No GPU instances found: Not Found")
        return NOTHING_FOUND
    line = "+" + "-" * 55 + "+"
    print(line)
    print(f"| {'GPU instances:':<53} |")
    print("| GPU   Name             Profile  Instance   Placement  |")
    print("|                          ID       ID       Start:Size |")
    print("|" + "=" * 55 + "|")
    for index, each in rows:
        named = f"MIG {each['profile']}"
        print(
            f"| {index:>3}  {named:<18} {each['number']:>3}      {each['id']:>3}        "
            f"{each['start']:>3}:{each['size']:<3}   |"
        )
        print(line)
    return 0


def _sorted(instances: list, key: str) -> list:
    return sorted(instances, key=lambda each: (-each[key], each["id"]))


def _compute_instances(settings: Settings, gpus) -> int:
    rows = [(index, each) for index, gpu in gpus for each in usable(settings.of(gpu))]
    if not rows:
        print("No compute instances found: Not Found")
        return NOTHING_FOUND
    line = "+" + "-" * 68 + "+"
    print(line)
    print(f"| {'Compute instances:':<66} |")
    print("| GPU     GPU       Name             Profile   Instance   Placement  |")
    print("|       Instance                       ID        ID       Start:Size |")
    print("|         ID                                                         |")
    print("|" + "=" * 68 + "|")
    for index, each in rows:
        named = f"MIG {each['profile']}"
        print(
            f"| {index:>3}    {each['id']:>3}       {named:<18} {0:>3}       {0:>3}        "
            f"{0:>3}:{each['compute']:<3}   |"
        )
        print(line)
    return 0


def _create(node, settings: Settings, gpus, asked: dict) -> int:
    for index, gpu in gpus:
        for word in asked["-cgi"].split(","):
            there = settings.of(gpu)["instances"]
            profile = find(node.sku_name, word)
            spot = place(profile, there) if profile else None
            why = "In use by another client" if gpu["slot"] in node.loads() else ""
            why = why or ("Invalid Argument" if profile is None else "" if spot else "Insufficient Resources")
            if why:
                print(f"Unable to create a GPU instance on GPU {index:>2} using profile {word}: {why}")
                print(f"Failed to create GPU instances: {why}")
                return IN_USE if "use" in why else BAD_ARGUMENT if profile is None else NO_ROOM
            each = instance(profile, spot)
            settings.change(gpu, instances=[*there, each])
            print(
                f"Successfully created GPU instance ID {each['id']:>2} on GPU {index:>2} using profile "
                f"MIG {each['profile']} (ID {each['number']:>2})"
            )
            if "-C" in asked:
                _complete(index, each)
                settings.change(gpu, instances=[*there, each])
    return 0


def _complete(index: int, each: dict) -> None:
    each["usable"] = True
    print(
        f"Successfully created compute instance ID  0 on GPU {index:>2} GPU instance ID {each['id']:>2} "
        f"using profile MIG {each['profile']} (ID {each['compute'] - 1:>2})"
    )


def _create_compute(node, settings: Settings, gpus, asked: dict) -> int:
    del node
    found = False
    for index, gpu in gpus:
        there = settings.of(gpu)["instances"]
        for each in _named(there, asked.get("-gi")):
            if not each["usable"]:
                found = True
                _complete(index, each)
        settings.change(gpu, instances=there)
    if not found:
        print("No GPU instances found: Not Found")
    return 0 if found else NOTHING_FOUND


def _named(instances: list, numbers) -> list:
    if numbers is None:
        return list(instances)
    return [each for each in instances if str(each["id"]) in numbers.split(",")]


def _destroy_compute(node, settings: Settings, gpus, asked: dict) -> int:
    found = False
    for index, gpu in gpus:
        there = settings.of(gpu)["instances"]
        for each in _named(there, asked.get("-gi")):
            if not each["usable"]:
                continue
            where = f"compute instance ID  0 from GPU {index:>2} GPU instance ID {each['id']:>2}"
            if gpu["slot"] in node.loads():
                print(f"Unable to destroy {where}: In use by another client")
                print("Failed to destroy compute instances: In use by another client")
                return IN_USE
            each["usable"], found = False, True
            print(f"Successfully destroyed {where}")
        settings.change(gpu, instances=there)
    if not found:
        print("No compute instances found: Not Found")
    return 0 if found else NOTHING_FOUND


def _destroy(node, settings: Settings, gpus, asked: dict) -> int:
    del node
    found = False
    for index, gpu in gpus:
        there = settings.of(gpu)["instances"]
        for each in _named(there, asked.get("-gi")):
            where = f"GPU instance ID {each['id']:>2} from GPU {index:>2}"
            if each["usable"]:
                print(f"Unable to destroy {where}: In use by another client")
                print("Failed to destroy GPU instances: In use by another client")
                return IN_USE
            there = [other for other in there if other["id"] != each["id"]]
            settings.change(gpu, instances=there)
            found = True
            print(f"Successfully destroyed {where}")
    if not found:
        print("No GPU instances found: Not Found")
    return 0 if found else NOTHING_FOUND


_CHANGES = {"-cgi": _create, "-cci": _create_compute, "-dci": _destroy_compute, "-dgi": _destroy}
