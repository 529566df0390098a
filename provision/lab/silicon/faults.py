"""The faults a node can have: their parameters, and what they mean. What they change is in the tools.

A fault in state.json is {"id": …, parameter: value, …}. A `look-alike` is a healthy oddity that must not be
flagged.
"""

import difflib

from state import StateError

TOOLS = (
    "nvidia-smi",
    "gpu_burn",
    "nvbandwidth",
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "alltoall_perf",
    "dmesg",
    "nvcc",
    "nvidia-ctk",
    "nv-fabricmanager",
    "nvidia-persistenced",
)
REQUIRED = object()


def _gpu(meaning="which GPU (its index on a healthy node)", name="gpu"):
    return {"name": name, "type": "gpu", "default": REQUIRED, "meaning": meaning}


def _factor(default, low=0.01, high=1.0):
    meaning = "what remains of the healthy rate"
    return {
        "name": "factor",
        "type": "number",
        "default": default,
        "low": low,
        "high": high,
        "meaning": meaning,
    }


def _number(name, default, low, high, meaning):
    return {"name": name, "type": "integer", "default": default, "low": low, "high": high, "meaning": meaning}


def _choice(name, default, allowed, meaning):
    return {"name": name, "type": "choice", "default": default, "allowed": list(allowed), "meaning": meaning}


def _text(name, default, meaning):
    return {"name": name, "type": "text", "default": default, "meaning": meaning}


def _tool():
    return [
        _choice("tool", REQUIRED, TOOLS, "which program"),
        _text("args", "", "only when its arguments contain this"),
    ]


_YES_NO = ("no", "yes")

# id -> (meaning, parameters, the parameters that tell two faults of one id apart)
FAULTS = {
    "burn_errors": (
        "wrong results in gpu_burn: FAULTY, exit 0",
        [_gpu(), _number("errors", 3, 1, 10**9, "per report")],
        ["gpu"],
    ),
    "burn_dies": ("a GPU's gpu_burn process dies", [_gpu()], ["gpu"]),
    "gpu_slow": ("a GPU computes slowly", [_gpu(), _factor(0.7)], ["gpu"]),
    "acs_on": ("the firmware leaves PCI access control on in the bridges above the GPUs", [], []),
    "gpu_missing": ("a GPU is not on the PCI bus", [_gpu()], ["gpu"]),
    "gpu_swapped": ("another GPU of the same kind is in the slot", [_gpu()], ["gpu"]),
    "vbios": (
        "a GPU has another VBIOS than its kind left the factory with",
        [_gpu(), _text("version", "96.00.10.00.99", "as nvidia-smi prints it")],
        ["gpu"],
    ),
    "gpu_off_bus": ("a GPU fell off the bus after boot: Xid 79", [_gpu()], ["gpu"]),
    "memory_small": (
        "a GPU reports less memory",
        [_gpu(), _number("mib", 40960, 1024, 10**6, "total in MiB")],
        ["gpu"],
    ),
    "hot_gpu": (
        "a GPU runs hotter",
        [_gpu(), _number("degrees", 15, 1, 60, "above its peers, in C")],
        ["gpu"],
    ),
    "throttle": (
        "a GPU's clocks are held down under load",
        [
            _gpu(),
            _choice("reason", "hw_thermal", ["hw_thermal", "hw_power_brake", "sw_thermal"], "by what"),
            _factor(0.6),
        ],
        ["gpu"],
    ),
    "slow_pair": (
        "copies between two GPUs are slow, both ways",
        [_gpu("one of the pair", "a"), _gpu("the other", "b"), _factor(0.4)],
        ["a", "b"],
    ),
    "pair_disabled": (
        "two GPUs cannot reach each other's memory",
        [_gpu("one", "a"), _gpu("other", "b")],
        ["a", "b"],
    ),
    "nvlink_down": (
        "an NVLink is inactive",
        [_gpu(), _number("link", REQUIRED, 0, 17, "which link")],
        ["gpu", "link"],
    ),
    "nvlink_errors": (
        "an NVLink counts errors",
        [
            _gpu(),
            _number("link", REQUIRED, 0, 17, "which link"),
            _number("count", 1234, 1, 10**9, "of each kind"),
        ],
        ["gpu", "link"],
    ),
    "collective_slow": ("collectives are slow and no GPU or pair is", [_factor(0.7)], []),
    "wrong_result": (
        "collectives return wrong elements",
        [_number("count", 16, 1, 10**9, "#wrong per size")],
        [],
    ),
    "h2d_slow": ("copies between host and a GPU are slow", [_gpu(), _factor(0.4)], ["gpu"]),
    "pcie_width": (
        "a GPU's PCIe link trained narrow",
        [_gpu(), _choice("width", 8, [1, 2, 4, 8], "lanes")],
        ["gpu"],
    ),
    "pcie_gen": (
        "a GPU's PCIe link is slow under load, too",
        [_gpu(), _number("gen", 3, 1, 5, "generation")],
        ["gpu"],
    ),
    "pcie_replays": (
        "a GPU's PCIe link repeats itself",
        [_gpu(), _number("count", 52341, 1, 10**9, "replays")],
        ["gpu"],
    ),
    "ecc_uncorrectable": (
        "uncorrectable memory errors since boot: Xid 48",
        [_gpu(), _number("count", 1, 1, 10**6, "errors")],
        ["gpu"],
    ),
    "row_remap_pending": ("a row waits for a reset to be remapped: Xid 63", [_gpu()], ["gpu"]),
    "row_remap_failure": ("a row could not be remapped: Xid 64", [_gpu()], ["gpu"]),
    "xid": (
        "a line in the kernel log",
        [
            _gpu(),
            _number("code", REQUIRED, 1, 999, "Xid"),
            _text("text", "", "what follows it; a usual text without"),
            _choice("once", "no", _YES_NO, "yes: not again after the next boot"),
        ],
        ["gpu", "code"],
    ),
    "fabric_down": ("the fabric stays In Progress although fabric manager runs", [], []),
    "tool_hang": (
        "a program never returns",
        [*_tool(), _choice("stubborn", "no", _YES_NO, "yes: ignores TERM")],
        ["tool"],
    ),
    "tool_garbage": ("a program prints garbage and exits 0", _tool(), ["tool"]),
    "tool_truncated": (
        "a program's output ends early",
        [*_tool(), _number("percent", 60, 0, 99, "what is left")],
        ["tool"],
    ),
    "tool_missing": ("a program cannot be started: exit 127", _tool(), ["tool"]),
    "ecc_aggregate_old": (
        "look-alike: corrected errors of the past, none since boot",
        [_gpu(), _number("count", 41, 1, 10**6, "errors")],
        ["gpu"],
    ),
    "remapped_clean": (
        "look-alike: rows remapped long ago, none pending",
        [_gpu(), _number("rows", 2, 1, 10, "rows")],
        ["gpu"],
    ),
    "pcie_replays_old": (
        "look-alike: a few replays over a lifetime",
        [_gpu(), _number("count", 7, 1, 99, "replays")],
        ["gpu"],
    ),
}


def describe() -> list:
    """Every fault for `fault --list --json`."""
    return [
        {"id": name, "meaning": meaning, "parameters": [_public(one) for one in parameters]}
        for name, (meaning, parameters, _) in FAULTS.items()
    ]


def _public(parameter: dict) -> dict:
    shown = dict(parameter, required=parameter["default"] is REQUIRED)
    if shown["required"]:
        del shown["default"]
    return shown


def parse(words: list, node) -> dict:
    """The fault written as `ID key=value …`, checked against the node. Raises StateError with a near miss."""
    name = words[0]
    if name not in FAULTS:
        raise StateError(f"there is no fault {name!r}{_near(name, FAULTS)}")
    parameters = {one["name"]: one for one in FAULTS[name][1]}
    fault = {"id": name}
    for word in words[1:]:
        key, equals, text = word.partition("=")
        if not equals:
            raise StateError(f"{name}: {word!r} is not key=value")
        if key not in parameters:
            raise StateError(f"{name} has no parameter {key!r}{_near(key, parameters)}")
        fault[key] = _value(name, parameters[key], text, node)
    for key, parameter in parameters.items():
        if key not in fault:
            if parameter["default"] is REQUIRED:
                raise StateError(f"{name} needs {key}={_allowed(parameter, node)}")
            fault[key] = parameter["default"]
    return _checked(fault, node)


def _checked(fault: dict, node) -> dict:
    name = fault["id"]
    if "a" in fault:
        if fault["a"] == fault["b"]:
            raise StateError(f"{name}: a and b are the same GPU, {fault['a']}")
        fault["a"], fault["b"] = sorted([fault["a"], fault["b"]])
    if "link" in fault and fault["link"] >= node.sku["links"]:
        raise StateError(
            f"{name}: a {node.sku_name} GPU has {node.sku['links']} NVLinks, link={fault['link']} is not one"
        )
    if name == "fabric_down" and not node.sku["fabric"]:
        raise StateError(f"{name}: a {node.sku_name} node has no NVLink fabric")
    return fault


def _value(name: str, parameter: dict, text: str, node):
    key, kind = parameter["name"], parameter["type"]
    wrong = StateError(f"{name}: {key}={text} is not {_allowed(parameter, node)}")
    if kind == "text":
        if any(ord(character) < 32 for character in text):
            raise StateError(f"{name}: {key} has a control character")
        return text
    if kind == "choice":
        for allowed in parameter["allowed"]:
            if str(allowed) == text:
                return allowed
        raise wrong
    try:
        value = float(text) if kind == "number" else int(text)
    except ValueError:
        raise wrong from None
    low, high = (0, len(node.gpus) - 1) if kind == "gpu" else (parameter["low"], parameter["high"])
    if not low <= value <= high:
        raise wrong
    return value


def _allowed(parameter: dict, node) -> str:
    if parameter["type"] == "gpu":
        return f"0..{len(node.gpus) - 1}"
    if parameter["type"] == "choice":
        return " or ".join(str(one) for one in parameter["allowed"])
    if parameter["type"] == "text":
        return "text"
    return "{}..{}".format(parameter["low"], parameter["high"])


def same(one: dict, other: dict) -> bool:
    """Whether the two are one fault with other numbers (the same GPU, the same pair)."""
    keys = FAULTS[one["id"]][2] if one["id"] in FAULTS else []
    return one["id"] == other["id"] and all(one.get(key) == other.get(key) for key in keys)


def _near(wrong: str, known) -> str:
    near = difflib.get_close_matches(wrong, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(sorted(known))}"
