"""dcgmi diag -j: the JSON of DCGM 4 (NVIDIA/DCGM v4.6.0, dcgmi/Diag.cpp:1060-1290), or of DCGM 3.

Both are printed in jsoncpp's layout (toStyledString).
"""

import os
import sys

import cuda
import jsoncpp
from load import Load, wait

VERSION = "4.4.1"
ISOLATE, CONFIG, RESET = 2, 5, 6  # dcgm_errors.h
MEMORY, PERFORMANCE, SOFTWARE = 10, 1, 3
# level -> (category, test, seconds)
TESTS = (
    (1, "Deployment", "software", 3.0),
    (2, "Hardware", "memory", 40.0),
    (2, "Integration", "pcie", 60.0),
    (3, "Hardware", "diagnostic", 180.0),
    (3, "Stress", "memory_bandwidth", 60.0),
    (3, "Stress", "targeted_stress", 180.0),
    (3, "Stress", "targeted_power", 180.0),
    (4, "Hardware", "memtest", 600.0),
)
NAMES = {"quick": 1, "short": 1, "medium": 2, "long": 3, "xlong": 4}


def dcgmi(node, arguments: list) -> int:
    """Run dcgmi and return its exit status: DCGM's status modulo 256."""
    if arguments[:1] != ["diag"] or "-r" not in arguments[:-1] or "-j" not in arguments:
        print("Usage: dcgmi diag -r <level> -j", file=sys.stderr)
        return 1
    word = arguments[arguments.index("-r") + 1]
    level = NAMES.get(word, int(word) if word.isdigit() else 0)
    if not 1 <= level <= 4:
        print(f"Error: invalid run level {word}", file=sys.stderr)
        return 255
    version = os.environ.get("SILICON_VERSION") or VERSION
    if cuda.error(node):
        name = "DCGM GPU Diagnostic" if version.startswith("3") else "DCGM Diagnostic"
        text = "Error: Unable to establish a connection to the specified host: localhost"
        print(jsoncpp.styled({name: {"version": version, "runtime_error": text}}), end="")
        return 256 - 21
    gpus = cuda.devices(node)
    categories = {}
    with Load(node, "dcgmi", gpus):
        for least, category, name, seconds in TESTS:
            if least <= level:
                wait(node, seconds)
                categories.setdefault(category, []).append(_test(node, gpus, name))
    tests = [{"category": category, "tests": found} for category, found in categories.items()]
    entities = [
        {"entity_id": index, "device_id": node.sku["device"], "serial_num": gpu["serial"]}
        for index, gpu in enumerate(gpus)
    ]
    document = {
        "DCGM Diagnostic": {"test_categories": tests},
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": entities}],
        "metadata": {"version": version, "Driver Version Detected": node.driver()[0]},
    }
    if version.startswith("3"):
        ran = [test for one in tests for test in one["tests"]]
        document = _as_version_3(node, gpus, version, ran)
    print(jsoncpp.styled(document), end="")
    failed = any(test["test_summary"]["status"] == "Fail" for one in tests for test in one["tests"])
    return 256 - 30 if failed else 0


def _test(node, gpus: list, name: str) -> dict:
    results = []
    for index, gpu in enumerate(gpus):
        result = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": index, "status": "Pass"}
        wrong = _wrong(node, gpu["slot"], index, name)
        if wrong:
            text, number, category, severity = wrong
            warning = {"warning": text, "error_id": number, "error_category": category}
            result.update(status="Fail", warnings=[dict(warning, error_severity=severity)])
        results.append(result)
    worst = "Fail" if any(one["status"] == "Fail" for one in results) else "Pass"
    return {"name": name, "results": results, "test_summary": {"status": worst}}


def _wrong(node, slot: int, index: int, name: str):
    """Return (text, error id, category, severity) of this test's finding on a GPU, or None."""
    if name == "software":
        if node.fault("row_remap_failure", gpu=slot):
            return f"GPU {index} had a row remapping failure.", 83, MEMORY, ISOLATE
        if node.fault("row_remap_pending", gpu=slot):
            return (
                f"GPU {index} has uncorrectable memory errors and row remappings are pending.",
                84,
                MEMORY,
                RESET,
            )
    if name in ("memory", "memtest") and (
        node.fault("dcgm_fails", gpu=slot) or node.fault("ecc_uncorrectable", gpu=slot)
    ):
        return f"A DBE occurred while running the {name} test on GPU {index}.", 43, MEMORY, ISOLATE
    if name == "memory_bandwidth" and node.fault("memory_slow", gpu=slot):
        return f"GPU {index} has a memory bandwidth below what is required.", 63, PERFORMANCE, 4
    if name == "diagnostic" and node.fault("burn_errors", gpu=slot):
        return f"There were wrong results on GPU {index}.", 95, 15, ISOLATE
    return None


# levelOneTests without the CUDA toolkit library, which is never run (Diag.cpp:79-94, 1241-1248).
SOFTWARE = (
    "Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode",
    "Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom",
)  # fmt: skip
REMAP = "Page Retirement/Row Remap"
# A test of DCGM 4 -> its category and name in dcgmi 3 (Diag.cpp:97-108, 1478-1500).
V3_NAMES = {
    "pcie": ("Integration", "PCIe"),
    "memory": ("Hardware", "GPU Memory"),
    "diagnostic": ("Hardware", "Diagnostic"),
    "memory_bandwidth": ("Stress", "Memory Bandwidth"),
    "targeted_stress": ("Stress", "Targeted Stress"),
    "targeted_power": ("Stress", "Targeted Power"),
    "memtest": ("Stress", "Memtest"),
}


def _as_version_3(node, gpus: list, version: str, tests: list) -> dict:
    """Convert to dcgmi 3's document, after HelperJsonBuildOutput of NVIDIA/DCGM v3.3.9.

    Source: dcgmi/Diag.cpp:1212-1500; `tests` are those that ran, in DCGM 4's form. The software tests have
    one result each, without a GPU unless it failed; the text of such a warning is also called `warnings`. The
    others have one result for each GPU, whose number is a text.
    """
    categories = {"Deployment": [], "Integration": [], "Hardware": [], "Stress": []}
    for test in tests:
        if test["name"] == "software":
            categories["Deployment"] = [_software(name, test["results"]) for name in SOFTWARE]
        else:
            category, name = V3_NAMES[test["name"]]
            results = [_result(one) for one in test["results"]]
            categories[category].append({"name": name, "results": results})
    return {
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {"category": category, "tests": found} for category, found in categories.items() if found
            ]
        },
        "Driver Version Detected": node.driver()[0],
        "GPU Device IDs": [node.sku["device"] for _ in gpus],
        "GPU Device Serials": {str(index): gpu["serial"] for index, gpu in enumerate(gpus)},
        "version": version,
    }


def _software(name: str, results: list) -> dict:
    wrong = [one for one in results if one["status"] == "Fail"] if name == REMAP else []
    found = {"status": "Fail" if wrong else "Pass"}
    if wrong:
        found["gpu_id"] = wrong[-1]["entity_id"]  # of the last one, since all share one entry
        warnings = [warning for one in wrong for warning in one["warnings"]]
        found["warnings"] = [dict(_kept(warning), warnings=warning["warning"]) for warning in warnings]
    return {"name": name, "results": [found]}


def _result(one: dict) -> dict:
    found = {"gpu_id": str(one["entity_id"]), "status": one["status"]}
    if "warnings" in one:
        found["warnings"] = [dict(_kept(warning), warning=warning["warning"]) for warning in one["warnings"]]
    return found


def _kept(warning: dict) -> dict:
    return {key: warning[key] for key in ("error_id", "error_category", "error_severity")}
