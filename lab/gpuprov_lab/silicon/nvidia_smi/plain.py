"""nvidia-smi without arguments: the well-known table, in the layout of 550."""

import time

import telemetry

from nvidia_smi.mig_profiles import profiles

_LINE = "+-----------------------------------------+------------------------+----------------------+"
_WIDE = "+-----------------------------------------------------------------------------------------+"


def table(node, driver: str, readings: list) -> str:
    """Render the whole table with its date line."""
    cuda = telemetry.cuda_version(driver)
    rows = [
        time.strftime("%a %b %e %H:%M:%S %Y") + "       ",
        _WIDE,
        f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<8} |",
        "|" + _LINE[1:],
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]
    for one in readings:
        rows += [*_gpu(node, one), _LINE]
    rows += [" " * 89, _WIDE, *_processes(readings)]
    if not any(one["silent"] for one in readings):
        rows.append(_WIDE)
    return "\n".join(rows) + "\n"


def _gpu(node, one: dict) -> list:
    bus = "0000" + one["gpu"]["address"].upper()
    keep = "On" if one["persistence"] else "Off"
    settings = one["settings"]
    power = f"{one['power']:.0f}W / {settings['power']:>4.0f}W"
    memory = f"{one['used']}MiB / {one['memory']:>6}MiB"
    busy = "N/A" if settings["mig"] else f"{100 if one['load'] else 0}%"
    mig = "N/A" if not profiles(node.sku_name) else "Enabled" if settings["mig"] else "Disabled"
    # Printed within the table's width: E. Process, Prohibited, Default.
    temperature, errors = f"{one['temperature']:>4}C ", f"{one['uncorrectable']:>20}"
    if one["silent"]:  # as 550.163.01 prints a lost GPU
        temperature, power, busy, errors = (
            " ERR! ",
            f"ERR! / {settings['power']:>4.0f}W",
            "ERR!",
            f"{'ERR!':>20}",
        )
        memory = f"{one['silent']:<22}"
    mode = {"DEFAULT": "Default", "EXCLUSIVE_PROCESS": "E. Process"}.get(settings["compute"], "Prohibited")
    return [
        f"| {one['index']:>3}  {node.sku['name'][:27]:<31}{keep:<3} | {bus:>18} Off | {errors} |",
        f"| N/A {temperature}   {one['state']:<3} {power:>22} | {memory:>22} | {busy:>7}   {mode:>10} |",
        f"| {'':39} | {'':22} | {mig:>20} |",
    ]


def _processes(readings: list) -> list:
    rows = [
        "| Processes:                                                                              |",
        "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
    ]
    if any(one["silent"] for one in readings):
        return [*rows, "Failed to query device index"]
    busy = [one for one in readings if one["load"]]
    for one in busy:
        name, memory = one["load"]["tool"], f"{one['used']}MiB"
        rows.append(
            f"|  {one['index']:>3}   N/A  N/A {one['load']['pid']:>10}      C   {name:<38} {memory:>11} |"
        )
    return (
        rows
        if busy
        else [
            *rows,
            "|  No running processes found                                                             |",
        ]
    )
