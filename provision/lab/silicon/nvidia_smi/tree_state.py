"""The half of `nvidia-smi -q` that changes: clocks, memory, load, heat (see nvidia_smi_tree)."""

from nvidia_smi import tree_power as nvidia_smi_tree_power

NA = "N/A"
OLD = "Requested functionality has been deprecated"


def performance(node, one: dict, form: int) -> list:
    """Fans, clocks event reasons, memory, utilisation."""
    reason = one["throttled"]
    hardware = reason in ("hw_thermal", "hw_power_brake")
    flags = [
        ("gpu_idle", "Idle", one["idle"]),
        ("applications_clocks_setting", "Applications Clocks Setting", False),
        ("sw_power_cap", "SW Power Cap", bool(one["load"]) and not reason),
        ("hw_slowdown", "HW Slowdown", hardware),
        ("hw_thermal_slowdown", "    HW Thermal Slowdown", reason == "hw_thermal"),
        ("hw_power_brake_slowdown", "    HW Power Brake Slowdown", reason == "hw_power_brake"),
        ("sync_boost", "Sync Boost", False),
        ("sw_thermal_slowdown", "SW Thermal Slowdown", reason == "sw_thermal"),
        ("display_clocks_setting", "Display Clock Setting", False),
    ]
    word, said = ("event", "Event") if form >= 535 else ("throttle", "Throttle")
    events = [(f"clocks_{word}_reason_{x}", t, "Active" if on else "Not Active") for x, t, on in flags]
    entries = [
        ("fan_speed", "Fan Speed", NA),
        ("performance_state", "Performance State", one["state"]),
        (f"clocks_{word}_reasons", f"Clocks {said} Reasons", events),
    ]
    if form >= 575:
        entries.append(("clocks_event_reasons_counters", "Clocks Event Reasons Counters", _counters(reason)))
    if form >= 550:
        sparse = "Disabled" if node.sku["architecture"] == "Hopper" else NA
        entries.append(("sparse_operation_mode", "Sparse Operation Mode", sparse))
    return entries + _memory(node, one, form) + _utilization(one, form)


def _counters(reason) -> list:
    names = [
        ("sw_power_cap", "SW Power Capping", None),
        ("sync_boost", "Sync Boost", None),
        ("sw_therm_slowdown", "SW Thermal Slowdown", "sw_thermal"),
        ("hw_therm_slowdown", "HW Thermal Slowdown", "hw_thermal"),
        ("hw_power_brake", "HW Power Braking", "hw_power_brake"),
    ]
    return [
        (f"clocks_event_reasons_counters_{x}", t, f"{48211345 if why and why == reason else 0} us")
        for x, t, why in names
    ]


def _memory(node, one: dict, form: int) -> list:
    free = one["memory"] - node.sku["reserved"] - one["used"]
    shielded = NA if form == 550 else "0 MiB"
    usage = [
        (
            "fb_memory_usage",
            "FB Memory Usage",
            [
                ("total", "Total", f"{one['memory']} MiB"),
                ("reserved", "Reserved", f"{node.sku['reserved']} MiB"),
                ("used", "Used", f"{one['used']} MiB"),
                ("free", "Free", f"{free} MiB"),
            ],
        ),
        (
            "bar1_memory_usage",
            "BAR1 Memory Usage",
            [
                ("total", "Total", f"{node.sku['bar1']} MiB"),
                ("used", "Used", "1 MiB"),
                ("free", "Free", f"{node.sku['bar1'] - 1} MiB"),
            ],
        ),
        (
            "cc_protected_memory_usage",
            "Conf Compute Protected Memory Usage",
            [("total", "Total", shielded), ("used", "Used", shielded), ("free", "Free", shielded)],
        ),
    ]
    return usage if form >= 535 else usage[:2]


def _utilization(one: dict, form: int) -> list:
    core, memory = ("100 %", "38 %") if one["load"] else ("0 %", "0 %")
    if one["settings"]["mig"]:
        core = memory = NA
    names = [("gpu", "Gpu", core), ("memory", "Memory", memory), ("encoder", "Encoder", "0 %")]
    names.append(("decoder", "Decoder", "0 %"))
    if form >= 535:
        names += [("jpeg", "JPEG", "0 %"), ("ofa", "OFA", "0 %")]
    sessions = [
        ("session_count", "Active Sessions", "0"),
        ("average_fps", "Average FPS", "0"),
        ("average_latency", "Average Latency", "0"),
    ]
    entries = [
        ("compute_mode", "Compute Mode", one["settings"]["compute"].title()),
        ("utilization", "Utilization", [(x + "_util", t, v) for x, t, v in names]),
        ("encoder_stats", "Encoder Stats", sessions),
        ("fbc_stats", "FBC Stats", sessions),
    ]
    if form >= 570:
        modes = [("current_dram_encryption", "Current", NA), ("pending_dram_encryption", "Pending", NA)]
        entries.append(("dram_encryption_mode", "DRAM Encryption Mode", modes))
    return entries


def sensors(node, one: dict, form: int) -> list:
    """Temperature, power, clocks."""
    entries = [_temperature(node, one, form)]
    target = [("gpu_target_temp_min", None, NA), ("gpu_target_temp_max", None, NA)]
    entries.append(("supported_gpu_target_temp", None, target))
    return entries + nvidia_smi_tree_power.power(node, one, form) + _clocks(node, one, form)


def _temperature(node, one: dict, form: int):
    relative = form >= 550 and node.sku["architecture"] in ("Hopper", "Blackwell", "Ada Lovelace")
    limit = f"{one['tlimit']} C" if relative else NA
    rows = [("gpu_temp", "GPU Current Temp", f"{one['temperature']} C")]
    if form >= 535 or form == 525:  # 530 is of an older branch than the late 525s
        rows.append(("gpu_temp_tlimit", "GPU T.Limit Temp", limit))
    if relative:
        rows += [
            ("gpu_temp_max_tlimit_threshold", "GPU Shutdown T.Limit Temp", "-8 C"),
            ("gpu_temp_slow_tlimit_threshold", "GPU Slowdown T.Limit Temp", "-2 C"),
            ("gpu_temp_max_gpu_tlimit_threshold", "GPU Max Operating T.Limit Temp", "0 C"),
        ]
    else:
        rows += [
            ("gpu_temp_max_threshold", "GPU Shutdown Temp", f"{node.sku['temp_max'] + 7} C"),
            ("gpu_temp_slow_threshold", "GPU Slowdown Temp", f"{node.sku['temp_max'] + 4} C"),
            ("gpu_temp_max_gpu_threshold", "GPU Max Operating Temp", f"{node.sku['temp_max']} C"),
        ]
    now, limit = f"{one['memory_temperature']} C", "0 C" if relative else "95 C"
    if one["memory_temperature"] is None:
        now = limit = NA
    last = "gpu_temp_max_mem_tlimit_threshold" if relative else "gpu_temp_max_mem_threshold"
    label = "Memory Max Operating T.Limit Temp" if relative else "Memory Max Operating Temp"
    rows += [
        ("gpu_target_temperature", "GPU Target Temperature", NA),
        ("memory_temp", "Memory Current Temp", now),
        (last, label, limit),
    ]
    return ("temperature", "Temperature", rows)


def _clocks(node, one: dict, form: int) -> list:
    now, best, memory = f"{one['clock']} MHz", f"{node.sku['clock']} MHz", f"{node.sku['memory_clock']} MHz"
    mem, core = one["settings"]["applications"]
    application, applied = (OLD, OLD) if form >= 590 else (f"{core} MHz", f"{mem} MHz")
    default, defaulted = (OLD, OLD) if form >= 590 else (best, memory)

    def four(core: str) -> list:
        return [
            ("graphics_clock", "Graphics", core),
            ("sm_clock", "SM", core),
            ("mem_clock", "Memory", memory),
            ("video_clock", "Video", core),
        ]

    two = [("graphics_clock", "Graphics", application), ("mem_clock", "Memory", applied)]
    usual = [("graphics_clock", "Graphics", default), ("mem_clock", "Memory", defaulted)]
    entries = [
        ("clocks", "Clocks", four(now)),
        ("applications_clocks", "Applications Clocks", two),
        ("default_applications_clocks", "Default Applications Clocks", usual),
        *([("deferred_clocks", "Deferred Clocks", [("mem_clock", "Memory", NA)])] if form >= 525 else []),
        ("max_clocks", "Max Clocks", four(best)),
        ("max_customer_boost_clocks", "Max Customer Boost Clocks", [("graphics_clock", "Graphics", best)]),
        (
            "clock_policy",
            "Clock Policy",
            [("auto_boost", "Auto Boost", NA), ("auto_boost_default", "Auto Boost Default", NA)],
        ),
    ]
    if form < 580:
        volts = "712.500 mV" if one["idle"] else "912.500 mV"
        volts = volts if form < 570 else NA if form < 575 else OLD
        entries.append(("voltage", "Voltage", [("graphics_volt", "Graphics", volts)]))
    return entries
