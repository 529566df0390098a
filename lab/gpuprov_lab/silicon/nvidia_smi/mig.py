"""nvidia-smi mig: GPU instances and compute instances. Tables and sentences as in the MIG user guide."""

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
    """Run `mig …` and return the exit status; `choose` finds the GPUs that -i names."""
    options = _read(words)
    if options is None:
        print(INVALID)
        return BAD_ARGUMENT
    gpus, _ = choose(node, options.get("-i"))
    action = next(one for one in (*_LISTS, *_CHANGES) if one in options)
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
    status = _CHANGES[action](node, settings, enabled, options)
    settings.save()
    mig_files.write(node)
    return status


def devices(one: dict) -> str:
    """Render the MIG devices below a GPU in `nvidia-smi -L`."""
    lines = []
    for number, each in enumerate(usable(one["settings"])):
        lines.append(
            f"  MIG {each['profile']:<11} Device {number:>2}: (UUID: {mig_uuid(one['gpu'], each)})\n"
        )
    return "".join(lines)


def mig_uuid(gpu, each: dict) -> str:
    """Return a MIG device's id, constant for the same instance of the same GPU."""
    return f"MIG-{noise.identity('mig', gpu['uuid'], each['id'], each['profile'])}"


def entries(node, one: dict) -> list:
    """Return the entries of a GPU's MIG devices in `nvidia-smi -q -x` (see nvidia_smi_tree)."""
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
    options, rest = {}, list(words)
    while rest:
        word = _LONG.get(rest[0], rest[0])
        rest.pop(0)
        if word in ("-i", "-cgi", "-gi", "-ci"):
            if not rest:
                return None
            options[word] = rest.pop(0)
        elif word == "-cci":
            options[word] = rest.pop(0) if rest and not rest[0].startswith("-") else ""
        elif word in (*_LISTS, "-dci", "-dgi", "-C"):
            options[word] = ""
        else:
            return None
    actions = [one for one in (*_LISTS, *_CHANGES) if one in options]
    return options if len(actions) == 1 else None


def _table(title: str, heads: tuple, rows: list) -> None:
    """Print a box of rows of one or more lines each, as wide as its headers."""
    line = "+" + "-" * (len(heads[0]) - 2) + "+"
    print(line)
    print(f"| {title:<{len(line) - 4}} |")
    print("\n".join(heads))
    print("|" + "=" * (len(line) - 2) + "|")
    for row in rows:
        print(row)
        print(line)


def _profiles(node, settings: Settings, gpus) -> int:
    rows = []
    for index, gpu in gpus:
        now = settings.of(gpu)
        for one in profiles(node.sku_name):
            there = free(one, now["instances"]) if now["mig"] else 0
            named = f"MIG {one['name']}"
            rows.append(
                f"| {index:>3}  {named:<18} {one['id']:>3}   {there:>3}/{one['most']:<3}   {one['gib']:>7.2f}"
                f"       No    {one['processors']:>3}   {one['decoders']:>3}     0   |\n"
                f"| {'':59} {one['engines']:>3}   {one['decoders']:>3}   {one['ofa']:>3}   |"
            )
    heads = (
        "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |",
        "|                                Free/Total   GiB              CE    JPEG  OFA  |",
    )
    _table("GPU instance profiles:", heads, rows)
    return 0


def _instances(settings: Settings, gpus) -> int:
    rows = []
    for index, gpu in gpus:
        for each in sorted(settings.of(gpu)["instances"], key=lambda each: (-each["number"], each["id"])):
            named = f"MIG {each['profile']}"
            rows.append(
                f"| {index:>3}  {named:<18} {each['number']:>3}      {each['id']:>3}        "
                f"{each['start']:>3}:{each['size']:<3}   |"
            )
    if not rows:
        return _none_found("GPU")
    heads = (
        "| GPU   Name             Profile  Instance   Placement  |",
        "|                          ID       ID       Start:Size |",
    )
    _table("GPU instances:", heads, rows)
    return 0


def _none_found(kind: str) -> int:
    print(f"No {kind} instances found: Not Found")
    return NOTHING_FOUND


def _compute_instances(settings: Settings, gpus) -> int:
    rows = []
    for index, gpu in gpus:
        for each in usable(settings.of(gpu)):
            named = f"MIG {each['profile']}"
            rows.append(
                f"| {index:>3}    {each['id']:>3}       {named:<18} {0:>3}       {0:>3}        "
                f"{0:>3}:{each['compute']:<3}   |"
            )
    if not rows:
        return _none_found("compute")
    heads = (
        "| GPU     GPU       Name             Profile   Instance   Placement  |",
        "|       Instance                       ID        ID       Start:Size |",
        "|         ID                                                         |",
    )
    _table("Compute instances:", heads, rows)
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


def _chosen(settings: Settings, gpus, numbers):
    """Yield (index, gpu, instance) of the GPU instances selected with `-gi`, or of all."""
    for index, gpu in gpus:
        for each in settings.of(gpu)["instances"]:
            if numbers is None or str(each["id"]) in numbers.split(","):
                yield index, gpu, each


def _create_compute(_node, settings: Settings, gpus, asked: dict) -> int:
    found = [one for one in _chosen(settings, gpus, asked.get("-gi")) if not one[2]["usable"]]
    for index, gpu, each in found:
        _complete(index, each)
        _keep(settings, gpu, each)
    return 0 if found else _none_found("GPU")


def _keep(settings: Settings, gpu, changed: dict) -> None:
    there = settings.of(gpu)["instances"]
    settings.change(gpu, instances=[changed if one["id"] == changed["id"] else one for one in there])


def _in_use(kind: str, where: str) -> int:
    print(f"Unable to destroy {where}: In use by another client")
    print(f"Failed to destroy {kind} instances: In use by another client")
    return IN_USE


def _destroy_compute(node, settings: Settings, gpus, asked: dict) -> int:
    found = [one for one in _chosen(settings, gpus, asked.get("-gi")) if one[2]["usable"]]
    for index, gpu, each in found:
        where = f"compute instance ID  0 from GPU {index:>2} GPU instance ID {each['id']:>2}"
        if gpu["slot"] in node.loads():
            return _in_use("compute", where)
        _keep(settings, gpu, dict(each, usable=False))
        print(f"Successfully destroyed {where}")
    return 0 if found else _none_found("compute")


def _destroy(_node, settings: Settings, gpus, asked: dict) -> int:
    found = list(_chosen(settings, gpus, asked.get("-gi")))
    for index, gpu, each in found:
        where = f"GPU instance ID {each['id']:>2} from GPU {index:>2}"
        if each["usable"]:
            return _in_use("GPU", where)
        there = settings.of(gpu)["instances"]
        settings.change(gpu, instances=[other for other in there if other["id"] != each["id"]])
        print(f"Successfully destroyed {where}")
    return 0 if found else _none_found("GPU")


_CHANGES = {"-cgi": _create, "-cci": _create_compute, "-dci": _destroy_compute, "-dgi": _destroy}
