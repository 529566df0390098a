"""The faults of a node: their parameters and meanings; their effects are implemented in the tools.

A fault in state.json is {"id": …, parameter: value, …}. A `look-alike` is a healthy oddity that must not be
flagged. Each family of faults has a file; a fault with an `onset` appears that many seconds into a load.
"""

import difflib

from state import StateError

from faults import amd as faults_amd
from faults import gpu as faults_gpu
from faults import host as faults_host
from faults import load as faults_load
from faults import network as faults_network
from faults.parameters import REQUIRED

# id -> (meaning, parameters)
FAULTS = {
    **faults_gpu.FAULTS,
    **faults_host.FAULTS,
    **faults_network.FAULTS,
    **faults_load.FAULTS,
    **faults_amd.FAULTS,
}


def describe() -> list:
    """Return every fault for `fault --list --json`."""
    return [
        {"id": name, "meaning": meaning, "parameters": [_public(one) for one in parameters]}
        for name, (meaning, parameters) in FAULTS.items()
    ]


def _public(parameter: dict) -> dict:
    shown = dict(parameter, required=parameter["default"] is REQUIRED)
    shown.pop("telling", None)
    if shown["required"]:
        del shown["default"]
    return shown


def parse(words: list, node) -> dict:
    """Parse the fault `ID key=value …` for this node. Raises StateError that suggests similar names."""
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
            if key != "onset":  # a fault that exists from the beginning has no onset
                fault[key] = parameter["default"]
    return _checked(fault, node)


def _checked(fault: dict, node) -> dict:
    name = fault["id"]
    refused = faults_amd.refusal(name, node.vendor, node.sku_name)
    if refused:
        raise StateError(refused)
    if "a" in fault:
        if fault["a"] == fault["b"]:
            raise StateError(f"{name}: a and b are the same GPU, {fault['a']}")
        fault["a"], fault["b"] = sorted([fault["a"], fault["b"]])
    if isinstance(fault.get("link"), int) and fault["link"] >= node.sku["links"]:
        raise StateError(
            f"{name}: a {node.sku_name} GPU has {node.sku['links']} NVLinks, link={fault['link']} is not one"
        )
    if fault.get("onset") == 0:
        del fault["onset"]
    of_fabric = ("fabric_down", "fabric_unhealthy", "fabric_failed", "fabric_line", "nvlink_storm")
    if name in of_fabric and not node.sku["fabric"]:
        raise StateError(f"{name}: a {node.sku_name} node has no NVLink fabric")
    if name in ("nvlink_domain", "nvl72_rack") and node.sku["fabric"] != "imex":
        raise StateError(f"{name}: a {node.sku_name} node is no tray of an NVL72")
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
    """Whether both are the same fault with other numbers (the same GPU, the same pair)."""
    _, parameters = FAULTS.get(one["id"], ("", []))
    keys = [known["name"] for known in parameters if known.get("telling") or known["default"] is REQUIRED]
    return one["id"] == other["id"] and all(one.get(key) == other.get(key) for key in keys)


def _near(wrong: str, known) -> str:
    near = difflib.get_close_matches(wrong, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(sorted(known))}"
