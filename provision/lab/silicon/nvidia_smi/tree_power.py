"""The part of `nvidia-smi -q` about power (see nvidia_smi_tree)."""

NA = "N/A"
OLD = "Requested functionality has been deprecated"


def power(node, one: dict, form: int) -> list:
    """Every reading and limit of power."""
    power, most = f"{one['power']:.2f} W", f"{node.sku['power']}.00 W"
    limit = f"{one['settings']['power']:.2f} W"
    least = f"{node.sku['power_min']}.00 W"
    if form < 535:
        return [("power_readings", "Power Readings", _old_power(one["state"], power, limit, most, least))]
    state = OLD if form >= 590 else one["state"]
    readings = _power_block(form, state, power, limit, most, least)
    if form >= 570 and node.sku["architecture"] == "Ampere":
        readings = [(x, t, NA if x == "average_power_draw" else value) for x, t, value in readings]
    entries = [("gpu_power_readings", "GPU Power Readings", readings)]
    if form >= 550:
        rows = [
            ("average_power_draw", "Average Power Draw", _memory_power(node, one, form)),
            ("instant_power_draw", "Instantaneous Power Draw", NA),
        ]
        entries.append(("gpu_memory_power_readings", "GPU Memory Power Readings ", rows))
    module = (NA, NA, NA, NA)
    if form >= 580 and node.sku["fabric"] == "imex":  # a GPU and its share of the Grace CPU
        module = (f"{one['power'] * 1.2:.2f} W", most, most, least)
    entries.append(("module_power_readings", "Module Power Readings", _power_block(form, state, *module)))
    return entries + _power_extras(node, form)


def _memory_power(node, one: dict, form: int) -> str:
    """Of HBM; seen with 580 on H100, B200 and GB200."""
    known = form >= 580 and node.sku["architecture"] in ("Hopper", "Blackwell")
    return f"{one['power'] * 0.3:.2f} W" if known else NA


def _power_extras(node, form: int) -> list:
    entries = []
    if form >= 570:
        profiles = [
            ("power_profile_requested_profiles", "Requested Profiles", NA),
            ("power_profile_enforced_profiles", "Enforced Profiles", NA),
        ]
        # A healthy B200 and GB200 print this whoever asks.
        smoothing = "Insufficient Permissions" if node.sku["architecture"] == "Blackwell" else NA
        entries += [
            ("power_smoothing", "Power Smoothing", smoothing),
            ("power_profiles", "Workload Power Profiles", profiles),
        ]
    if form >= 590:
        entries.append(("edpp_multiplier", "EDPp Multiplier", NA))
    return entries


def _old_power(state: str, drawn: str, limit: str, most: str, least: str) -> list:
    """Power before 535."""
    return [
        ("power_state", None, state),
        ("power_management", "Power Management", "Supported"),
        ("power_draw", "Power Draw", drawn),
        ("power_limit", "Power Limit", limit),
        ("default_power_limit", "Default Power Limit", most),
        ("enforced_power_limit", "Enforced Power Limit", limit),
        ("min_power_limit", "Min Power Limit", least),
        ("max_power_limit", "Max Power Limit", most),
    ]


def _power_block(form: int, state: str, drawn: str, limit: str, most: str, least: str) -> list:
    rows = [("power_state", None, state)]
    if form == 535:
        rows.append(("power_draw", "Power Draw", drawn))
    else:
        rows.append(("average_power_draw", "Average Power Draw", drawn))
        rows.append(("instant_power_draw", "Instantaneous Power Draw", drawn))
    limits = (("Current", limit), ("Requested", limit), ("Default", most), ("Min", least), ("Max", most))
    return rows + [(f"{name.lower()}_power_limit", f"{name} Power Limit", watts) for name, watts in limits]
