"""nvidia-smi: parses arguments, fails like the real one, and calls one module per output form."""

import contextlib
import sys
import time

import kernel_log
import telemetry
from state import Node

from nvidia_smi import dmon, links, mig, plain, query, real, tree
from nvidia_smi import options as nvidia_smi_options
from nvidia_smi import settings as change
from nvidia_smi.options import SmiError

NOTHING_FOUND, NO_DRIVER = 6, 9
NO_LIBRARY, LOST, MISMATCH = 12, 15, 18
NO_DRIVER_TEXT = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
    "latest NVIDIA "
    "driver is installed and running.\n"
)
QUERIES = {
    "--query-gpu": query.gpu_rows,
    "--query-remapped-rows": query.remapped_rows,
    "--query-compute-apps": query.compute_apps,
    "--query-supported-clocks": query.supported_clocks,
}


def nvidia_smi(node, arguments: list) -> int:
    """Run nvidia-smi and return its exit status."""
    path = real.program(node, arguments)
    if path:
        with contextlib.suppress(SmiError):  # for a version mismatch, which the driver logs
            _talk_to_driver(node)
        return real.run(node, path, arguments)
    try:
        options = nvidia_smi_options.read(arguments, QUERIES)
        if options["action"] == "help":
            print(
                f"NVIDIA System Management Interface -- v{node.library()}\n\nnvidia-smi [OPTION1 [ARG1]] "
                "[OPTION2 [ARG2]] ..."
            )
            return 0
        driver = _talk_to_driver(node)
        if options["action"] == "version":
            return _version(node, driver)
        if options["action"] == "dmon":
            return dmon.run(node, options["words"])
        while True:
            status = _once(node, options, driver)
            sys.stdout.flush()
            if not options["loop"] or status:
                return status
            time.sleep(options["loop"] / node.speed)
            node = Node(node.folder)  # with its faults since then
            node.count_run()
            if options["action"] in QUERIES and "noheader" not in options["format"]:
                options["format"] += ",noheader"  # one header is enough
    except SmiError as failure:
        print(failure.text, end="")
        return failure.status


def _talk_to_driver(node) -> str:
    loaded, library = node.driver(), node.library()
    if not library:
        raise SmiError(
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the "
            "NVIDIA Display "
            "Driver is properly installed and present in your system.\nPlease also try adding directory "
            "that contains "
            "libnvidia-ml.so to your system PATH.\n",
            NO_LIBRARY,
        )
    if loaded is None:
        raise SmiError(NO_DRIVER_TEXT + "\n", NO_DRIVER)
    if loaded[0] != library:
        lines = [
            f"NVRM: API mismatch: the client has the version {library}, but",
            f"NVRM: this kernel module has the version {loaded[0]}.  Please",
            "NVRM: make sure that this kernel module and all NVIDIA driver",
            "NVRM: components have the same version.",
        ]
        if node.privileged():
            kernel_log.append(node.folder, lines)
        short = ".".join(library.split(".")[:2])
        raise SmiError(
            f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {short}\n",
            MISMATCH,
        )
    return loaded[0]


def _once(node, options: dict, driver: str) -> int:
    if options["action"] == "topo" or options["action"] == "nvlink":
        return links.run(node, options["action"], options["words"])
    if options["action"] == "mig":
        return mig.run(node, options["words"], _chosen)
    gpus, lost = _chosen(node, options["gpus"])
    status = LOST if lost else 0
    for index, gpu in lost:
        where = f"GPU{index}: {gpu['address'].upper()}"
        print(
            f"Unable to determine the device handle for {where}: GPU is lost.  Reboot the system to "
            "recover this GPU"
        )
    if lost and options["action"] not in ("plain", "list"):
        return status
    if not gpus:
        if not lost:
            print("No devices were found")
        return status or NOTHING_FOUND
    action = options["action"]
    if action in change.ACTIONS:
        return change.run(node, driver, action, options["mode"], gpus)
    moment = telemetry.Moment(node)
    readings = [telemetry.read(node, gpu, index, moment) for index, gpu in gpus]
    if action == "list":
        for one in readings:
            print(f"GPU {one['index']}: {node.sku['name']} (UUID: {one['gpu']['uuid']})")
            print(mig.devices(one), end="")
    elif action in QUERIES:
        return QUERIES[action](node, driver, readings, options["fields"], options["format"]) or status
    elif action == "full" and options["mode"] == "xml":
        print(tree.as_xml(node, driver, readings), end="")
    elif action == "full":
        print(tree.as_text(node, driver, readings, options["sections"]), end="")
    else:
        print(plain.table(node, driver, readings), end="")
        if any(one["silent"] for one in readings):
            return LOST
    return status


def _chosen(node, wanted):
    """Return ([(index, gpu)] that respond, [(index, gpu)] that are lost) among those selected with -i."""
    everything = list(enumerate(node.present()))
    if wanted is not None:
        chosen = []
        for name in wanted.split(","):
            key = name.strip().lower()
            match = [
                (i, gpu)
                for i, gpu in everything
                if key
                in (str(i), gpu["uuid"].lower(), gpu["serial"], gpu["address"], "0000" + gpu["address"])
            ]
            if not match:
                raise SmiError("No devices were found\n", NOTHING_FOUND)
            chosen += match
        everything = chosen
    return (
        [(i, gpu) for i, gpu in everything if not node.lost(gpu)],
        [(i, gpu) for i, gpu in everything if node.lost(gpu)],
    )


def _version(node, driver: str) -> int:
    rows = [("NVIDIA-SMI", node.library()), ("NVML", ".".join(node.library().split(".")[:2]))]
    rows += [("DRIVER", driver)]
    for name, value in rows:
        print(f"{name + ' version':<20}: {value}")
    print(f"{'CUDA Version':<20}: {telemetry.cuda_version(driver)}")
    return 0
