"""The options of nvidia-smi that change something, and what they print.

Wording from public transcripts of the real tool. In none of them, and therefore only plausible: what -ac says
under a driver that has dropped application clocks, and what setting the ECC mode it already has says.
"""

from settings import COMPUTE_MODES, KEEPS_MIG, KEPT_BY_DRIVER, Settings

from nvidia_smi import mig_files
from nvidia_smi import tree_fabric as fabric
from nvidia_smi.mig_profiles import profiles

BAD_ARGUMENT, NOT_SUPPORTED, NOT_PERMITTED, IN_USE = 2, 3, 4, 19
WORDS = {
    "persistence": "set persistence mode",
    "reset": "reset GPU",
    "-pl": "set power limit",
    "-lgc": "set GPU clocks",
    "-rgc": "reset GPU clocks",
    "-ac": "set applications clocks",
    "-rac": "reset applications clocks",
    "-c": "set compute mode",
    "-e": "set ECC configuration",
    "-mig": "set MIG mode",
}
ACTIONS = tuple(WORDS)
ON_OFF = {"0": False, "1": True, "DISABLED": False, "ENABLED": True}
STOPPED = "Terminating early due to previous errors."
WARNED = "Treating as warning and moving on."
VOLATILE = ("-pl", "-lgc", "-ac", "-c", "-mig")


class _StopError(Exception):
    """Nothing more is done; the status is the program's."""


def run(node, driver: str, action: str, value: str, gpus) -> int:
    """Do one of ACTIONS to these (index, gpu); returns the exit status."""
    if not node.privileged():
        if action == "reset":
            print(f"Unable to reset GPU {bus(gpus[0][1])}: Insufficient Permissions")
        else:
            print(f"Unable to {WORDS[action]} for GPU {bus(gpus[0][1])}: Insufficient Permissions")
        print(STOPPED)
        return NOT_PERMITTED
    settings = Settings(node)
    said = []
    try:
        if action == "persistence":
            _persistence(node, settings, value == "1", gpus)
        for _, gpu in gpus:
            if action in _DO:
                said += _DO[action](node, driver, settings, gpu, value) or []
    except _StopError as stop:
        settings.save()
        mig_files.write(node)
        return stop.args[0]
    settings.save()
    mig_files.write(node)
    if action in VOLATILE:
        _warn(settings, gpus)
    if action != "reset" or gpus:
        print("All done.")
    for line in dict.fromkeys(said):
        print(line)
    return 0


def bus(gpu) -> str:
    """`00000000:1B:00.0`."""
    return "0000" + gpu["address"].upper()


def _warn(settings: Settings, gpus) -> None:
    for _, gpu in gpus:
        if settings.of(gpu)["persistence"]:
            continue
        print(
            f"\nWarning: persistence mode is disabled on device {bus(gpu)}. See the Known Issues section "
            "of the nvidia-smi(1) man page for more information. Run with [--help | -h] switch to get more "
            "information on how to enable persistence mode."
        )


def _persistence(node, settings: Settings, now: bool, gpus) -> None:
    """Of each GPU by itself: a running daemon does it (nvidia-persistenced(1)), else the driver."""
    word = "Enabled" if now else "Disabled"
    for _, gpu in gpus:
        if settings.of(gpu)["persistence"] == now:
            print(f"Persistence mode is already {word} for GPU {bus(gpu)}.")
            continue
        print(f"{word} persistence mode for GPU {bus(gpu)}.")
        if not now:  # nothing keeps what was set any more
            settings.change(gpu, **dict.fromkeys(KEPT_BY_DRIVER))
        settings.change(gpu, persistence=now)
    marker = node.folder / "run/persistence_mode"
    if now and not node.running("persistenced"):
        marker.touch()


def _reset(node, driver: str, settings: Settings, gpu, value: str) -> None:
    del driver, value
    fabric = node.sku["fabric"] and node.running("fabricmanager.ready")
    if node.loads() or fabric or node.running("persistenced"):
        print(
            f"GPU {bus(gpu)} is currently in use by another process.\n\n1 device is currently being "
            "used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "
            "application such as an X server, or a monitoring application such as another instance "
            "of nvidia-smi). Please first kill all processes using this device and all compute "
            "applications running in the system."
        )
        raise _StopError(1)
    settings.reset(gpu)
    print(f"GPU {bus(gpu)} was successfully reset.")


def _power(node, driver: str, settings: Settings, gpu, value: str) -> None:
    del driver
    try:
        watts = float(value)
    except ValueError:
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
        raise _StopError(BAD_ARGUMENT) from None
    low, high = node.sku["power_min"], node.sku["power"]
    if not low <= watts <= high:
        print(
            f"Provided power limit {watts:.2f} W is not a valid power limit which should be between "
            f"{low:.2f} W and {high:.2f} W for GPU {bus(gpu)}\n{STOPPED}"
        )
        raise _StopError(BAD_ARGUMENT)
    before = settings.of(gpu)["power"]
    settings.change(gpu, power=watts)
    print(f"Power limit for GPU {bus(gpu)} was set to {watts:.2f} W from {before:.2f} W.")


def _numbers(value: str, least: int, most: int) -> list:
    parts = value.split(",")
    if not least <= len(parts) <= most or not all(part.strip().isdigit() for part in parts):
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
        raise _StopError(BAD_ARGUMENT)
    return [int(part) for part in parts]


def _lock(node, driver: str, settings: Settings, gpu, value: str) -> None:
    del driver
    numbers = _numbers(value, 1, 2)
    low, high = numbers[0], numbers[-1]
    # The driver takes the nearest clock it has; the tool repeats what it was told.
    known = fabric.graphics_clocks(node.sku)
    settings.change(gpu, locked=[min(known, key=lambda clock: abs(clock - one)) for one in (low, high)])
    print(f'GPU clocks set to "(gpuClkMin {low}, gpuClkMax {high})" for GPU {bus(gpu)}')


def _unlock(node, driver: str, settings: Settings, gpu, value: str) -> None:
    del node, driver, value
    settings.change(gpu, locked=None)


def _applications(node, driver: str, settings: Settings, gpu, value: str) -> None:
    memory, core = _numbers(value, 2, 2)
    if int(driver.split(".")[0]) >= 590:
        print(f"Setting applications clocks is not supported for GPU {bus(gpu)}.\n{WARNED}")
    elif memory != node.sku["memory_clock"] or core not in fabric.graphics_clocks(node.sku):
        print(
            f'Specified clock combination "(MEM {memory}, SM {core})" is not supported for GPU {bus(gpu)}. '
            "Run 'nvidia-smi -q -d SUPPORTED_CLOCKS' to see list of supported clock combinations\n" + WARNED
        )
    else:
        settings.change(gpu, applications=[memory, core])
        print(f'Applications clocks set to "(MEM {memory}, SM {core})" for GPU {bus(gpu)}')


def _no_applications(node, driver: str, settings: Settings, gpu, value: str) -> None:
    del node, driver, value
    settings.change(gpu, applications=None)


def _compute(node, driver: str, settings: Settings, gpu, value: str) -> None:
    del node, driver
    names = {str(number): name for number, name in enumerate(COMPUTE_MODES)}
    mode = names.get(value, value.upper())
    if mode not in COMPUTE_MODES or mode == "EXCLUSIVE_THREAD":
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
        raise _StopError(BAD_ARGUMENT)
    if settings.of(gpu)["compute"] == mode:
        print(f"Compute mode is already set to {mode} for GPU {bus(gpu)}.")
    else:
        settings.change(gpu, compute=mode)
        print(f"Set compute mode to {mode} for GPU {bus(gpu)}.")


def _switch(value: str) -> bool:
    if value.upper() not in ON_OFF:
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
        raise _StopError(BAD_ARGUMENT)
    return ON_OFF[value.upper()]


def _ecc(node, driver: str, settings: Settings, gpu, value: str) -> list:
    del node, driver
    on = _switch(value)
    word = "Enabled" if on else "Disabled"
    if settings.of(gpu)["ecc_pending"] == on:
        print(f"ECC support is already {word} for GPU {bus(gpu)}.")
        return []
    settings.change(gpu, ecc=settings.of(gpu)["ecc"], ecc_pending=on)
    print(f"{word} ECC support for GPU {bus(gpu)}.")
    return ["Reboot required."]


def _mig(node, driver: str, settings: Settings, gpu, value: str) -> None:
    del driver
    on = _switch(value)
    if not profiles(node.sku_name):
        print(
            f"Unable to {'enable' if on else 'disable'} MIG Mode for GPU {bus(gpu)}: Not Supported\n{STOPPED}"
        )
        raise _StopError(NOT_SUPPORTED)
    now = settings.of(gpu)
    word = "Enabled" if on else "Disabled"
    if not on and now["instances"]:
        print(f"Unable to disable MIG Mode for GPU {bus(gpu)}: In use by another client\n{STOPPED}")
        raise _StopError(IN_USE)
    if now["mig"] == on:
        settings.change(gpu, mig_pending=on)
        print(f"{word} MIG Mode for GPU {bus(gpu)}")
    elif gpu["slot"] in node.loads():
        _cannot_switch(node, settings, gpu, on)
    else:
        settings.change(gpu, mig=on, mig_pending=on)
        print(f"{word} MIG Mode for GPU {bus(gpu)}")


def _cannot_switch(node, settings: Settings, gpu, on: bool) -> None:
    """Ampere resets the GPU to switch, and waits when it cannot; since Hopper it is at once or not at all."""
    word = "enable" if on else "disable"
    if node.sku["architecture"] != KEEPS_MIG:
        print(f"Unable to {word} MIG Mode for GPU {bus(gpu)}: In use by another client")
        print(STOPPED)
        raise _StopError(IN_USE)
    settings.change(gpu, mig=not on, mig_pending=on)
    print(
        f"Warning: MIG mode is in pending {word} state for GPU {bus(gpu)}:In use by another client\n"
        f"{bus(gpu)} is currently being used by one or more other processes (e.g. CUDA application or a "
        "monitoring application such as another instance of nvidia-smi). Please first kill all processes "
        "using the device and retry the command or reboot the system to make MIG mode effective."
    )


_DO = {
    "reset": _reset,
    "-pl": _power,
    "-lgc": _lock,
    "-rgc": _unlock,
    "-ac": _applications,
    "-rac": _no_applications,
    "-c": _compute,
    "-e": _ecc,
    "-mig": _mig,
}
