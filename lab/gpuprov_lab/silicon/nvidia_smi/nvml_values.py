"""NVML's answers on a machine of a SKU: the table of values behind NVIDIA's own nvidia-smi.

The SKU defines names, PCI ids, memory, links and power; the rest comes from captures of H100 and A100. A
fault is a change of these values, or of a return code, in the terms of nvml.h. The module is independent of
the simulator, since tests write tables of SKUs that the lab does not have.
"""

MIB = 1 << 20
SUCCESS, NOT_SUPPORTED, LOST, RESET_REQUIRED, UNKNOWN = 0, 3, 15, 16, 999
BUSES = (0x1A, 0x1B, 0x3D, 0x52, 0x61, 0x9A, 0xBC, 0xDB)
_ARCHITECTURES = {
    **{"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9},
    **{"blackwell": 10, "blackwell-ultra": 10},
}
# Private functions of nvidia-smi by their numbers (470 to 555): the address of the GPU with an index, as text
# and as two numbers; the PCIe generation of its slot; and whether dmon can watch it.
_ADDRESS, _PLACE, _HOST_GENERATION, _WATCHED = 81, 75, 230, 72
_SRAM = (
    *(
        "aggregateUncParity",
        "aggregateUncSecDed",
        "aggregateCor",
        "volatileUncParity",
        "volatileUncSecDed",
        "volatileCor",
    ),
    *(f"aggregateUncBucket{part}" for part in ("L2", "Sm", "Pcie", "Mcu", "Other")),
    "bThresholdExceeded",
)
_TABLE = "nvmlInternalGetExportTable"


class Machine:
    """The GPUs of one node as NVML values; `rows` is KEY → path → value, for faults to change.

    `sku` has the keys of provision/data/skus/*.yml.
    """

    def __init__(self, name, sku, driver, count=8, buses=BUSES):
        self.name, self.sku, self.driver, self.count, self.buses = name, sku, driver, count, buses
        self.rows = dict(_system(self), **_answers_for_all(self))
        for index in range(count):
            self.rows.update(_device(self, index))

    @property
    def major(self):
        """The driver's branch, such as 550."""
        return int(self.driver.split(".")[0])

    @property
    def has_fabric_state(self):
        """Whether the GPU has a fabric state, and the driver a field for it."""
        return "nvmlDeviceGetGpuFabricInfoV" in self.rows and self.major >= 535

    def set(self, function, device=None, *arguments, **values):
        """Set the answer of a function, for one device or for all."""
        key = " ".join([function, *([] if device is None else [str(device)]), *map(str, arguments)])
        self.rows.setdefault(key, {}).update(
            {name.replace("__", "."): value for name, value in values.items()}
        )

    def fail(self, device, code, functions=("",)):
        """Make functions of one device (all, or by prefix) fail with this code, as if it were lost.

        Its handle is still returned, and answers that do not need the GPU remain: its address, its index.
        """
        known = tuple(f"nvmlDeviceGet{what}" for what in ("PciInfo", "Index", "MinorNumber", "Handle"))
        failing = tuple(f"nvmlDevice{function}" for function in functions)
        for key in list(self.rows):
            function, *arguments = key.split()
            if function.startswith(failing) and not function.startswith(known):
                if not arguments:
                    self.rows[f"{function} {device}"] = {"return": code}
                elif arguments[0] == str(device):
                    self.rows[key] = {"return": code}

    def __iter__(self):
        for key, values in self.rows.items():
            for name, value in values.items():
                yield key, name, value


def _system(machine):
    cuda = {470: 11040, 535: 12020, 550: 12040, 555: 12050}[machine.major]
    return {
        "nvmlInit_v2": {"return": 0},
        "nvmlInitWithFlags": {"return": 0},
        "nvmlShutdown": {"return": 0},
        _TABLE: {"return": 0},
        "exported": {"return": 0, "a1": 0},
        "nvmlEventSetCreate": {"return": 0},
        "nvmlSystemGetDriverVersion": {"version": machine.driver},
        "nvmlSystemGetNVMLVersion": {"version": f"{cuda // 1000}.{machine.driver}"},
        "nvmlSystemGetCudaDriverVersion": {"cudaDriverVersion": cuda},
        "nvmlSystemGetCudaDriverVersion_v2": {"cudaDriverVersion": cuda},
        "nvmlDeviceGetCount_v2": {"deviceCount": machine.count},
        "nvmlUnitGetCount": {"unitCount": 0},
    }


def _answers_for_all(machine):
    sku = machine.sku
    total = sku["memory_mib"]
    rows = {
        "nvmlDeviceGetName": {"name": sku["product_names"][0]},
        "nvmlDeviceGetBrand": {"type": 14},
        "nvmlDeviceGetArchitecture": {"arch": _ARCHITECTURES[sku["architecture"]]},
        "nvmlDeviceGetDisplayMode": {"display": 0},
        "nvmlDeviceGetDisplayActive": {"isActive": 0},
        "nvmlDeviceGetPersistenceMode": {"mode": 1},
        "nvmlDeviceGetMigMode": {"currentMode": 0, "pendingMode": 0},
        "nvmlDeviceGetMaxMigDeviceCount": {"count": 7},
        "nvmlDeviceGetAccountingMode": {"mode": 0},
        "nvmlDeviceGetAccountingBufferSize": {"bufferSize": 4000},
        "nvmlDeviceGetVbiosVersion": {"version": "96.00.74.00.09"},
        "nvmlDeviceGetMultiGpuBoard": {"multiGpuBool": 0},
        "nvmlDeviceGetBoardPartNumber": {"partNumber": "699-21010-0200-000"},
        "nvmlDeviceGetInforomImageVersion": {"version": "H100.0200.00.04"},
        "nvmlDeviceGetInforomVersion": {"version": "2.1"},
        "nvmlDeviceGetGpuOperationMode": {"current": 0, "pending": 0},
        "nvmlDeviceGetVirtualizationMode": {"pVirtualMode": 0},
        "nvmlDeviceGetGspFirmwareVersion": {"version": machine.driver},
        "nvmlDeviceGetMaxPcieLinkGeneration": {"maxLinkGen": sku["pcie"]["gen"]},
        "nvmlDeviceGetCurrPcieLinkGeneration": {"currLinkGen": sku["pcie"]["gen"]},
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": {"maxLinkGenDevice": sku["pcie"]["gen"]},
        "nvmlDeviceGetMaxPcieLinkWidth": {"maxLinkWidth": sku["pcie"]["width"]},
        "nvmlDeviceGetCurrPcieLinkWidth": {"currLinkWidth": sku["pcie"]["width"]},
        "nvmlDeviceGetPcieReplayCounter": {"value": 0},
        "nvmlDeviceGetPcieThroughput": {"value": 0},
        "nvmlDeviceGetPerformanceState": {"pState": 0},
        "nvmlDeviceGetPowerState": {"pState": 0},
        "nvmlDeviceGetSupportedClocksThrottleReasons": {"supportedClocksThrottleReasons": 0x1FF},
        "nvmlDeviceGetSupportedClocksEventReasons": {"supportedClocksEventReasons": 0x1FF},
        "nvmlDeviceGetCurrentClocksThrottleReasons": {"clocksThrottleReasons": 1},
        "nvmlDeviceGetCurrentClocksEventReasons": {"clocksEventReasons": 1},
        "nvmlDeviceGetMemoryInfo": {
            "memory.total": total * MIB,
            "memory.free": total * MIB,
            "memory.used": 0,
        },
        "nvmlDeviceGetMemoryInfo_v2": {
            "memory.total": total * MIB,
            "memory.free": (total - 627) * MIB,
            "memory.used": 0,
            "memory.reserved": 627 * MIB,
        },
        "nvmlDeviceGetBAR1MemoryInfo": {
            "bar1Memory.bar1Total": 131072 * MIB,
            "bar1Memory.bar1Free": 131071 * MIB,
            "bar1Memory.bar1Used": MIB,
        },
        "nvmlDeviceGetComputeMode": {"mode": 0},
        "nvmlDeviceGetUtilizationRates": {"utilization.gpu": 0, "utilization.memory": 0},
        "nvmlDeviceGetEncoderUtilization": {"utilization": 0, "samplingPeriodUs": 20000},
        "nvmlDeviceGetDecoderUtilization": {"utilization": 0, "samplingPeriodUs": 20000},
        "nvmlDeviceGetJpgUtilization": {"utilization": 0, "samplingPeriodUs": 20000},
        "nvmlDeviceGetOfaUtilization": {"utilization": 0, "samplingPeriodUs": 20000},
        "nvmlDeviceGetEncoderStats": {"sessionCount": 0, "averageFps": 0, "averageLatency": 0},
        "nvmlDeviceGetFBCStats": {"fbcStats.sessionsCount": 0},
        "nvmlDeviceGetEccMode": {"current": 1, "pending": 1},
        "nvmlDeviceGetMemoryErrorCounter": {"count": 0},
        "nvmlDeviceGetTotalEccErrors": {"eccCounts": 0},
        "nvmlDeviceGetSramEccErrorStatus": {f"status.{name}": 0 for name in _SRAM},
        "nvmlDeviceGetTemperature": {"temp": 34},
        "nvmlDeviceGetTemperatureThreshold": {"return": NOT_SUPPORTED},
        "nvmlDeviceGetPowerManagementMode": {"mode": 1},
        "nvmlDeviceGetPowerUsage": {"power": 95_000},
        "nvmlDeviceGetPowerManagementLimit": {"limit": sku["power_w"] * 1000},
        "nvmlDeviceGetEnforcedPowerLimit": {"limit": sku["power_w"] * 1000},
        "nvmlDeviceGetPowerManagementDefaultLimit": {"defaultLimit": sku["power_w"] * 1000},
        "nvmlDeviceGetPowerManagementLimitConstraints": {
            "minLimit": 50_000,
            "maxLimit": sku["power_w"] * 1000,
        },
        "nvmlDeviceGetClockInfo": {"clock": 345},
        "nvmlDeviceGetMaxClockInfo": {"clock": 1980},
        "nvmlDeviceGetApplicationsClock": {"clockMHz": 1980},
        "nvmlDeviceGetDefaultApplicationsClock": {"clockMHz": 1980},
        "nvmlDeviceGetComputeRunningProcesses_v2": {"infoCount": 0},
        "nvmlDeviceGetComputeRunningProcesses_v3": {"infoCount": 0},
        "nvmlDeviceGetGraphicsRunningProcesses_v2": {"infoCount": 0},
        "nvmlDeviceGetGraphicsRunningProcesses_v3": {"infoCount": 0},
        "nvmlDeviceGetMPSComputeRunningProcesses_v2": {"infoCount": 0},
        "nvmlDeviceGetMPSComputeRunningProcesses_v3": {"infoCount": 0},
        "nvmlDeviceGetAccountingPids": {"count": 0},
    }
    if sku["architecture"] in ("ampere", "hopper", "blackwell", "blackwell-ultra"):
        rows["nvmlDeviceGetRemappedRows"] = {
            "corrRows": 0,
            "uncRows": 0,
            "isPending": 0,
            "failureOccurred": 0,
        }
        rows["nvmlDeviceGetRowRemapperHistogram"] = {"values.max": 640}
    if sku["architecture"] in ("volta", "turing"):
        rows["nvmlDeviceGetRetiredPages"] = {"pageCount": 0}
        rows["nvmlDeviceGetRetiredPages_v2"] = {"pageCount": 0}
        rows["nvmlDeviceGetRetiredPagesPendingStatus"] = {"isPending": 0}
    if sku["fabric"] != "none" and sku["architecture"] != "ampere":
        fabric = {"gpuFabricInfo.state": 3, "gpuFabricInfo.status": SUCCESS}
        if sku["fabric"] == "imex":  # an HGX board belongs to no multi-node domain, and prints zeros
            fabric |= {f"gpuFabricInfo.clusterUuid[{byte}]": 16 + byte for byte in range(16)}
            fabric["gpuFabricInfo.cliqueId"] = 32766
        rows["nvmlDeviceGetGpuFabricInfo"] = fabric
        rows["nvmlDeviceGetGpuFabricInfoV"] = {**fabric, "gpuFabricInfo.healthMask": 2}
    for number in range(sku["nvlink"]["links"] if sku.get("nvlink") else 0):
        for device in range(machine.count):
            rows[f"nvmlDeviceGetNvLinkState {device} {number}"] = {"isActive": 1}
            rows[f"nvmlDeviceGetNvLinkErrorCounter {device} {number}"] = {"counterValue": 0}
    return rows


def _device(machine, index):
    bus = machine.buses[index]
    device_id, vendor = machine.sku["pci_ids"][0].split(":")[1], machine.sku["pci_ids"][0].split(":")[0]
    identity = {
        "domain": 0,
        "bus": bus,
        "device": 0,
        "pciDeviceId": int(device_id + vendor, 16),
        "pciSubSystemId": 0x165810DE,
        "busId": f"00000000:{bus:02X}:00.0",
    }
    rows = {
        f"exported {_ADDRESS} {index}": {"text": f"0000:{bus:02X}:00.0"},
        f"exported {_PLACE} {index}": {"first": 0, "second": bus << 8},
        f"exported {_WATCHED} {index}": {"a1": 1},
        f"exported {_HOST_GENERATION} {index}": {"a1": machine.sku["pcie"]["gen"]},
        f"nvmlDeviceGetHandleByIndex_v2 {index}": {"device": index},
        f"nvmlDeviceGetHandleByPciBusId_v2 00000000:{bus:02X}:00.0": {"device": index},
        f"nvmlDeviceGetIndex {index}": {"index": index},
        f"nvmlDeviceGetPciInfo_v3 {index}": {
            **{f"pci.{name}": value for name, value in identity.items()},
            "pci.busIdLegacy": f"0000:{bus:02X}:00.0",
        },
        f"nvmlDeviceGetPciInfoExt {index}": {
            **{f"pci.{name}": value for name, value in identity.items()},
            "pci.baseClass": 3,
            "pci.subClass": 2,
        },
        f"nvmlDeviceGetSerial {index}": {"serial": f"156282108390{index}"},
        f"nvmlDeviceGetUUID {index}": {"uuid": f"GPU-01000100-0000-0000-0000-00000000000{index}"},
        f"nvmlDeviceGetMinorNumber {index}": {"minorNumber": index},
        f"nvmlDeviceGetBoardId {index}": {"boardId": bus << 8},
        f"nvmlDeviceGetModuleId {index}": {"moduleId": index + 1},
    }
    limit = machine.sku["power_w"] * 1000
    wide = {82: 32, 185: 95_000, 186: 95_000, 187: 50_000, 188: limit, 189: limit, 190: limit, 192: limit}
    links = machine.sku["nvlink"]["links"] if machine.sku.get("nvlink") else 0
    wide |= {91: links, 95: 0, 193: -5, 194: 0, 195: 0, 196: 4}
    for number, value in wide.items():
        rows[f"nvmlDeviceGetFieldValues {index} {number} 0"] = {
            "value": value,
            "valueType": 1 if value >= 0 else 4,
        }
    for link in range(links):
        exact = (
            50 if machine.sku["architecture"] in ("volta", "turing", "ampere") else 53.125
        )  # 25 and 26.562 GB/s
        speed = int(machine.sku["nvlink"]["gbs_per_link"] * 10 * exact)  # MB/s
        of_link = 84 + link if link < 6 else 126 + link  # the speed of each link for a driver before 535
        if link < 12:
            rows[f"nvmlDeviceGetFieldValues {index} {of_link} 0"] = {"value": speed, "valueType": 1}
        for number, value in {164: speed, 165: 1, 161: 0, 162: 0, 163: 0}.items():
            rows[f"nvmlDeviceGetFieldValues {index} {number} {link}"] = {"value": value, "valueType": 1}
    return rows
