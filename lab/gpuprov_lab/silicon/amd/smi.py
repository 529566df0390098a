"""amd-smi: version, list, static, metric, topology, xgmi, bad-pages, process, set; text or JSON.

Forms: amdsmi_cli/amdsmi_commands.py of ROCm/amdsmi (ROCm 6.2 and 6.3), its CHANGELOG (throttling reasons),
projects/amdsmi of ROCm/rocm-systems (7.1 and newer), `amd-smi static` of an MI210 in the tests of
ROCm/device-metrics-exporter and of an MI300A in amd-smi's manual, amd/node-scraper's models of releases until
7.2. ROCm 6.3 and older print a list of GPUs; since 6.4 it is below `gpu_data`; power limits are below `ppt0`
since 7.2.
"""

import contextlib
import json
import os
import sys
import time

from amd import readings, smi_links, smi_set, smi_values

NOT_LOADED = "ERROR:root:Unable to get devices, driver not initialized (amdgpu not found in modules)"
NO_GPU = (
    "ERROR:root:Unable to detect any GPU devices, check amdgpu version and module status "
    "(sudo modprobe amdgpu)"
)
NO_GROUPS = (
    "WARNING: User is missing the following required groups: render, video. Please add user to these groups."
)
SECONDS = 0.1  # for each GPU: it samples twice to measure how long the clocks were throttled
# The library's version by ROCm release, after amdsmi's changelog; other releases get the preceding one's.
LIBRARY = [((6, 0), "23.4.2"), ((6, 2), "24.6.3"), ((6, 3), "24.7.1"), ((6, 4), "25.3.0"), ((7, 0), "26.0.0"),
           ((7, 1), "26.1.0"), ((7, 2), "26.2.1")]  # fmt: skip


def amd_smi(node, arguments: list) -> int:
    """Run one of the commands above, or reject the command as the program does."""
    words, chosen = _chosen(arguments)
    as_json = "--json" in arguments
    command = words[0] if words else ""
    release = rocm(node)
    if command == "version":
        return _version(node, release, as_json)
    if not node.loaded("amdgpu"):
        print(NOT_LOADED, file=sys.stderr)
        return 255
    gpus = readings.answering(node)
    if not gpus:
        print(NO_GPU, file=sys.stderr)
        return 255
    if command == "set":
        return smi_set.power_cap(node, [gpu for n, gpu in enumerate(gpus) if n in chosen], words[1:], release)
    if command not in _COMMANDS:
        return _refused(f"Command '{command}' is invalid. Run '--help' for more info.", -1, as_json)
    if not node.privileged() and not {"render", "video"} <= _groups():
        print(NO_GROUPS)
    unknown = [word for word in words[1:] if command == "xgmi" and release < _NEWER.get(word, (0,))]
    if command == "static":
        unknown = [word for word in words[1:] if smi_values.absent(node, word, release)]
    if unknown:
        _refused(f"Parameter '{unknown[0]}' is invalid. Run '--help' for more info.", -2, as_json)
        return int(release >= (7, 2))
    time.sleep(SECONDS * len(gpus) / node.speed)
    entries = _COMMANDS[command](node, gpus, words[1:], release)
    if chosen and isinstance(entries, list):
        entries = [entry for entry in entries if entry["gpu"] in chosen]
    if as_json:
        nested = isinstance(entries, list) and release >= (6, 4) and command in _NESTED
        print(json.dumps({_NESTED[command]: entries} if nested else entries, indent=4))
    else:
        print("\n\n".join(_text(entry) for entry in entries))
    return 0


def _chosen(arguments: list) -> tuple:
    """Return (the words of the command, the indices of the selected GPUs; empty for all)."""
    words, chosen, of_gpus = [], set(), False
    for word in arguments:
        if of_gpus and (word.isdigit() or word == "all"):
            chosen |= {int(word)} if word.isdigit() else set()
            continue
        of_gpus = word in ("-g", "--gpu")
        if not of_gpus and word != "--json":
            words.append(word)
    return words, chosen


def _refused(message: str, code: int, as_json: bool) -> int:
    """Print an error on stdout as in amdsmi_cli_exceptions.py, where the program still exits with 0."""
    print(json.dumps({"error": message, "code": code}) if as_json else f"{message} Error code: {code}")
    return 0


def rocm(node) -> tuple:
    """Return (major, minor) of the node's ROCm, from its packages in /opt/rocm or the program's release."""
    try:
        text = (node.root / "opt/rocm/.info/version").read_text()
    except OSError:
        text = os.environ.get("SILICON_ROCM", "6.4.1")
    numbers = text.partition("-")[0].split(".")
    return int(numbers[0]), int(numbers[1])


def library(release: tuple) -> str:
    return next((version for known, version in reversed(LIBRARY) if release >= known), LIBRARY[0][1])


def _version(node, release: tuple, as_json: bool) -> int:
    tool, full = library(release), "N/A"
    with contextlib.suppress(OSError):
        full = (node.root / "opt/rocm/.info/version").read_text().strip().partition("-")[0]
    values = {
        "tool": "AMDSMI Tool",
        "version": tool + "+8dc45db",
        "amdsmi_library_version": tool if release >= (7, 0) else tool + ".0",
        "rocm_version": full,
    }
    if release >= (6, 4):
        module = node.folder / "sys_module/amdgpu/version"
        values["amdgpu_version"] = module.read_text().strip() if module.exists() else "N/A"
    if as_json:
        print(json.dumps([values], indent=4))
        return 0
    words = [
        f"AMDSMI Tool: {values['version']}",
        f"AMDSMI Library version: {values['amdsmi_library_version']}",
    ]
    words.append(f"ROCm version: {full}")
    if "amdgpu_version" in values:
        words.append(f"amdgpu version: {values['amdgpu_version']}")
    print(" | ".join(words))
    return 0


def _groups() -> set:
    import grp

    names = set()
    for number in os.getgroups():
        with contextlib.suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return names


def _list(node, gpus, words, release) -> list:  # noqa: ARG001 - the shape of all commands
    found = []
    for index, gpu in enumerate(gpus):
        identity = readings.identity(node, gpu)
        entry = {"gpu": index, "bdf": gpu["address"], "uuid": identity["uuid"]}
        if release >= (6, 2):
            entry["kfd_id"] = identity["kfd_id"]
            entry["node_id"] = index + len({one["numa"] for one in node.gpus})
            entry["partition_id"] = 0
        found.append(entry)
    return found


def _bad_pages(node, gpus, words, release) -> list:  # noqa: ARG001 - the shape of all commands
    names = {"retired": "reserved", "pending": "pending", "un_res": "unreservable"}
    found = []
    for index, gpu in enumerate(gpus):
        pages = readings.bad_pages(node, gpu)
        entry = {"gpu": index}
        for name, state in names.items():
            rows = [
                {"page_address": page, "page_size": 4096, "status": state.upper()}
                for page, of in pages
                if of == state
            ]
            entry[name] = (rows[0] if len(rows) == 1 else rows) or "No bad pages found."
        found.append(entry)
    return found


def _process(node, gpus, words, release) -> list:  # noqa: ARG001 - the shape of all commands
    nobody = [{"process_info": "No running processes detected"}]
    found, loads = [], node.loads()
    for index, gpu in enumerate(gpus):
        load, taken = loads.get(gpu["slot"]), smi_values.unit(4 * 2**30, "B")
        memory = {"gtt_mem": smi_values.unit(0, "B"), "cpu_mem": smi_values.unit(0, "B"), "vram_mem": taken}
        program = load and {"name": load["tool"], "pid": load["pid"], "memory_usage": memory}
        listed = [{"process_info": program}] if program else nobody
        found.append({"gpu": index, **({"process_list": listed} if release >= (6, 2) else listed[0])})
    return found


# The key above the GPUs since ROCm 6.4; commands that are not listed here always print a list.
_NESTED = {"static": "gpu_data", "metric": "gpu_data", "topology": "gpu_data"}
_NEWER = {"-l": (6, 4), "--link-status": (6, 4)}  # options, and the first release that has them
_COMMANDS = {
    "list": _list,
    "static": smi_values.static,
    "metric": smi_values.metric,
    "topology": smi_links.topology,
    "xgmi": smi_links.xgmi,
    "bad-pages": _bad_pages,
    "process": _process,
}


def _text(entry, depth: int = 0) -> str:
    """Render the text form: `GPU: 0`, and below it each value with its unit after an upper-case name."""
    if isinstance(entry, str):  # the rows of a table, which is only requested as JSON
        return entry
    lines = []
    for name, value in entry.items():
        head = "    " * depth + name.upper() + ":"
        if isinstance(value, dict) and set(value) == {"value", "unit"}:
            lines.append(f"{head} {value['value']} {value['unit']}")
        elif isinstance(value, dict):
            lines += [head, _text(value, depth + 1)]
        else:
            lines.append(f"{head} {value}")
        depth = depth or 1
    return "\n".join(lines)
