"""The JSON of dcgmi 3, as HelperJsonBuildOutput of NVIDIA/DCGM v3.3.9 builds it (dcgmi/Diag.cpp:1212-1500).

Its software tests have one result each, of no GPU unless it failed; the text of such a warning is called
`warnings`, too. The others have one result for each GPU, whose number is a text.
"""

# levelOneTests without the CUDA toolkit library, which is never run (Diag.cpp:79-94, 1241-1248).
SOFTWARE = (
    "Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode",
    "Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom",
)  # fmt: skip
REMAP = "Page Retirement/Row Remap"
# The test of DCGM 4 -> the category and the name that dcgmi 3 gives it (Diag.cpp:97-108, 1478-1500).
NAMES = {
    "pcie": ("Integration", "PCIe"),
    "memory": ("Hardware", "GPU Memory"),
    "diagnostic": ("Hardware", "Diagnostic"),
    "memory_bandwidth": ("Stress", "Memory Bandwidth"),
    "targeted_stress": ("Stress", "Targeted Stress"),
    "targeted_power": ("Stress", "Targeted Power"),
    "memtest": ("Stress", "Memtest"),
}


def document(node, gpus: list, version: str, tests: list) -> dict:
    """The whole document; `tests` is what ran, as DCGM 4 has it."""
    categories = {"Deployment": [], "Integration": [], "Hardware": [], "Stress": []}
    for test in tests:
        if test["name"] == "software":
            categories["Deployment"] = [_software(name, test["results"]) for name in SOFTWARE]
        else:
            category, name = NAMES[test["name"]]
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
        found["gpu_id"] = wrong[-1]["entity_id"]  # the last one's: the entry is one for all
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
