"""The variable half of `nvidia-smi -q`: PCI Express, clocks, memory, load, heat, power (see tree.py)."""

NA = "N/A"
OLD = "Requested functionality has been deprecated"


def pci(node, one: dict, form: int) -> list:
    """Return the entries for the GPU's bus address and link."""
    sku, gpu = node.sku, one["gpu"]
    device, subsystem = sku["device"].upper() + "10DE", sku["subsystem"].upper() + "10DE"
    classes = [
        ("pci_base_class", "Base Classcode", ("3", "0x3")),
        ("pci_sub_class", "Sub Classcode", ("2", "0x2")),
    ]
    chip = [("bridge_chip_type", "Type", NA), ("bridge_chip_fw", "Firmware", NA)]
    moved = "1215 KB/s" if one["load"] else "0 KB/s"
    entries = [
        ("pci_bus", "Bus", (gpu["bus"], "0x" + gpu["bus"])),
        ("pci_device", "Device", ("00", "0x00")),
        ("pci_domain", "Domain", ("0000", "0x0000")),
        *(classes if form >= 550 else []),
        ("pci_device_id", "Device Id", (device, "0x" + device)),
        ("pci_bus_id", "Bus Id", "0000" + one["gpu"]["address"].upper()),
        ("pci_sub_system_id", "Sub System Id", (subsystem, "0x" + subsystem)),
        ("pci_gpu_link_info", "GPU Link Info", _link(sku, one, form)),
        ("pci_bridge_chip", "Bridge Chip", chip),
        ("replay_counter", "Replays Since Reset", str(one["replays"])),
        ("replay_rollover_counter", "Replay Number Rollovers", "0"),
        ("tx_util", "Tx Throughput", moved),
        ("rx_util", "Rx Throughput", moved),
    ]
    return [("pci", "PCI", entries + _atomics(sku, form))]


def _atomics(sku, form: int) -> list:
    every = "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64 "  # with a blank after each
    inbound = every if form >= 580 and sku["fabric"] in ("nvlink5", "imex") else NA
    outbound = every if form >= 580 and sku["fabric"] == "nvlink5" else NA
    atomic = [
        ("atomic_caps_inbound", "Atomic Caps Inbound", inbound),
        ("atomic_caps_outbound", "Atomic Caps Outbound", outbound),
    ]
    return [] if form < 525 else atomic if form < 570 else atomic[::-1]


def _link(sku, one: dict, form: int) -> list:
    best, now = str(sku["pcie"]), str(one["generation"])
    generations = [
        ("max_link_gen", "Max", best),
        ("current_link_gen", "Current", now),
    ]
    device = [
        ("device_current_link_gen", "Device Current", now),
        ("max_device_link_gen", "Device Max", best),
        ("max_host_link_gen", "Host Max", best),
    ]
    widths = [
        ("max_link_width", "Max", f"{one['width_max']}x"),
        ("current_link_width", "Current", f"{one['width']}x"),
    ]
    generations += device if form >= 525 else []
    return [("pcie_gen", "PCIe Generation", generations), ("link_widths", "Link Width", widths)]


def performance(node, one: dict, form: int) -> list:
    """Return the entries for fans, clocks event reasons, memory and utilisation."""
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
    word, title = ("event", "Event") if form >= 535 else ("throttle", "Throttle")
    events = [(f"clocks_{word}_reason_{x}", t, "Active" if on else "Not Active") for x, t, on in flags]
    entries = [
        ("fan_speed", "Fan Speed", NA),
        ("performance_state", "Performance State", one["state"]),
        (f"clocks_{word}_reasons", f"Clocks {title} Reasons", events),
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
    """Return the entries for temperature, power and clocks."""
    entries = [_temperature(node, one, form)]
    target = [("gpu_target_temp_min", None, NA), ("gpu_target_temp_max", None, NA)]
    entries.append(("supported_gpu_target_temp", None, target))
    return entries + _power(node, one, form) + _clocks(node, one, form)


def _temperature(node, one: dict, form: int):
    relative = form >= 550 and node.sku["architecture"] in ("Hopper", "Blackwell", "Ada Lovelace")
    limit = f"{one['tlimit']} C" if relative else NA
    rows = [("gpu_temp", "GPU Current Temp", f"{one['temperature']} C")]
    if form >= 535 or form == 525:  # 530 belongs to an older branch than the late 525s
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


def _power(node, one: dict, form: int) -> list:
    """Return every reading and limit of power."""
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
    """Return the power of HBM; observed with 580 on H100, B200 and GB200."""
    known = form >= 580 and node.sku["architecture"] in ("Hopper", "Blackwell")
    return f"{one['power'] * 0.3:.2f} W" if known else NA


def _power_extras(node, form: int) -> list:
    entries = []
    if form >= 570:
        profiles = [
            ("power_profile_requested_profiles", "Requested Profiles", NA),
            ("power_profile_enforced_profiles", "Enforced Profiles", NA),
        ]
        # A healthy B200 and GB200 print this for every user.
        smoothing = "Insufficient Permissions" if node.sku["architecture"] == "Blackwell" else NA
        entries += [
            ("power_smoothing", "Power Smoothing", smoothing),
            ("power_profiles", "Workload Power Profiles", profiles),
        ]
    if form >= 590:
        entries.append(("edpp_multiplier", "EDPp Multiplier", NA))
    return entries


def _old_power(state: str, drawn: str, limit: str, most: str, least: str) -> list:
    """Return the power entries before 535."""
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
