"""The last part of `nvidia-smi -q`: the NVLink fabric, supported clocks, processes on the GPU."""

NA = "N/A"
# The readings of the fabric's health that a healthy GPU has; the others are N/A, as printed by 580.
_KNOWN = {
    "imex": (
        "summary",
        "bandwidth",
        "route_recovery_in_progress",
        "route_unhealthy",
        "access_timeout_recovery",
    ),
    "nvlink5": ("summary", "access_timeout_recovery"),
}
_WRONG = {
    "bandwidth": ("bandwidth", "Degraded"),
    "route": ("route_unhealthy", "True"),
    "timeout": ("access_timeout_recovery", "True"),
    "configuration": ("incorrect_configuration", "Invalid Location"),
}


def fabric(node, one: dict, form: int) -> list:
    """Return the entries for the NVLink fabric, the supported clocks, and the processes on the GPU."""
    entries = [("fabric", "Fabric", _fabric(node, one, form))] if form >= 525 else []
    return [*entries, ("supported_clocks", None, _clocks(node.sku)), *_processes(one, form)]


def _fabric(node, one: dict, form: int) -> list:
    state, status = one["fabric"]
    rows = [("state", "State", state), ("status", "Status", status)]
    done = state == "Completed"
    if form >= 550:
        cluster, clique = (str(part) if done else NA for part in one["domain"])
        rows += [("cliqueId", "CliqueId", clique), ("clusterUuid", "ClusterUUID", cluster)]
        known = _KNOWN.get(node.sku["fabric"], ()) if done else ()
        rows.append(("health", "Health", _health(known, form, one["fabric_unhealthy"] if done else "", done)))
    return rows


def _health(known: tuple, form: int, wrong: str, done: bool) -> list:
    if form == 550:
        bandwidth = "Degraded" if wrong == "bandwidth" else "Full"
        return [("bandwidth", "Bandwidth", bandwidth if done else NA)]
    names = [
        ("summary", "Summary", "Healthy"),
        ("bandwidth", "Bandwidth", "Full"),
        ("route_recovery_in_progress", "Route Recovery in progress", "False"),
        ("route_unhealthy", "Route Unhealthy", "False"),
        ("access_timeout_recovery", "Access Timeout Recovery", "False"),
        ("incorrect_configuration", "Incorrect Configuration", NA),
        ("partition_assigned", "Partition Assigned", NA),
    ]
    names = names[1:5] if form < 580 else names[:6] if form < 581 else names
    rows = [(x, t, value if x in known else NA) for x, t, value in names]
    if not wrong:
        return rows
    changed = dict([_WRONG[wrong], ("summary", "Unhealthy")])
    return [(x, t, changed.get(x, value)) for x, t, value in rows]


def _clocks(sku) -> list:
    graphics = [("supported_graphics_clock", None, f"{clock} MHz") for clock in graphics_clocks(sku)]
    value = ("value", None, "{} MHz".format(sku["memory_clock"]))
    return [("supported_mem_clock", None, [value, *graphics])]


def graphics_clocks(sku) -> list:
    """Return the clocks that a GPU's cores can run at, in MHz, fastest first."""
    return list(range(sku["clock"], sku["clock_idle"] - 1, -15))


def _processes(one: dict, form: int) -> list:
    end = [("accounted_processes", None, [])]
    if form >= 570:
        end.append(("capabilities", "Capabilities", [("egm", "EGM", "disabled")]))
    known = running(one)
    if not known:
        return [("processes", None, []), (None, "Processes", "None"), *end]
    shown = [("process_info", "", _process(*process)) for process in known]
    return [("processes", "Processes", shown), *end]


def running(one: dict) -> list:
    """Return (pid, type, name, MiB) of every process on a GPU."""
    load = one["load"]
    ours = [(load["pid"], "C", load["tool"], one["used"])] if load else []
    return [*ours, *one["processes"]]


def _process(pid: int, kind: str, name: str, mib: int) -> list:
    return [
        ("gpu_instance_id", "GPU instance ID", NA),
        ("compute_instance_id", "Compute instance ID", NA),
        ("pid", "Process ID", str(pid)),
        ("type", "Type", kind),
        ("process_name", "Name", name),
        ("used_memory", "Used GPU Memory", f"{mib} MiB"),
    ]
