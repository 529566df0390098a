"""The options of nvidia-smi that change a setting, and their output.

Wording from public transcripts of the real tool. Not in any of them, and therefore only plausible: the output
of -ac under a driver without application clocks, and of setting the ECC mode that is already active.
"""

from settings import COMPUTE_MODES, KEEPS_MIG, KEPT_BY_DRIVER, Settings

from nvidia_smi import mig_files
from nvidia_smi import tree_fabric as fabric
from nvidia_smi.mig_profiles import profiles

BAD_ARGUMENT, NOT_SUPPORTED, NOT_PERMITTED, IN_USE = 2, 3, 4, 19
# The operation in a refusal's error message.
WORDS = {
    "persistence": "set persistence mode for",
    "reset": "reset",
    "-pl": "set power limit for",
    "-lgc": "set GPU clocks for",
    "-rgc": "reset GPU clocks for",
    "-ac": "set applications clocks for",
    "-rac": "reset applications clocks for",
    "-c": "set compute mode for",
    "-e": "set ECC configuration for",
    "-mig": "set MIG mode for",
}
ACTIONS = tuple(WORDS)
ON_OFF = {"0": False, "1": True, "DISABLED": False, "ENABLED": True}
INVALID = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
STOPPED = "Terminating early due to previous errors."
WARNED = "Treating as warning and moving on."
VOLATILE = ("-pl", "-lgc", "-ac", "-c", "-mig")


class _StopError(Exception):
    """Stops the program; its argument is the exit status."""


def _stop(status: int, said: str) -> _StopError:
    print(said)
    return _StopError(status)


def run(node, driver: str, action: str, value: str, gpus) -> int:
    """Apply one of ACTIONS to these (index, gpu); returns the exit status."""
    if not node.privileged():
        print(f"Unable to {WORDS[action]} GPU {bus(gpus[0][1])}: Insufficient Permissions\n{STOPPED}")
        return NOT_PERMITTED
    change, messages = _Change(node, driver), []
    try:
        for _, gpu in gpus:
            messages += _DO[action](change, gpu, value) or []
    except _StopError as stop:
        return stop.args[0]
    finally:
        change.settings.save()
        mig_files.write(node)
    if action in VOLATILE:
        _warn(change.settings, gpus)
    if action != "reset" or gpus:
        print("All done.")
    for line in dict.fromkeys(messages):
        print(line)
    return 0


def bus(gpu) -> str:
    """Return the bus address, such as `00000000:1B:00.0`."""
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


def _numbers(value: str, least: int, most: int) -> list:
    parts = value.split(",")
    if not least <= len(parts) <= most or not all(part.strip().isdigit() for part in parts):
        raise _stop(BAD_ARGUMENT, INVALID)
    return [int(part) for part in parts]


def _switch(value: str) -> bool:
    if value.upper() not in ON_OFF:
        raise _stop(BAD_ARGUMENT, INVALID)
    return ON_OFF[value.upper()]


class _Change:
    """The effect of each option on one GPU; a list that it returns is printed once, at the end."""

    def __init__(self, node, driver: str) -> None:
        self.node, self.driver, self.settings = node, driver, Settings(node)

    def persistence(self, gpu, value: str) -> None:
        """Set the mode of one GPU: by a running daemon (nvidia-persistenced(1)), else by the driver."""
        now = value == "1"
        word = "Enabled" if now else "Disabled"
        if self.settings.of(gpu)["persistence"] == now:
            print(f"Persistence mode is already {word} for GPU {bus(gpu)}.")
        else:
            print(f"{word} persistence mode for GPU {bus(gpu)}.")
            if not now:  # nothing preserves the settings from now on
                self.settings.change(gpu, **dict.fromkeys(KEPT_BY_DRIVER))
            self.settings.change(gpu, persistence=now)
        if now and not self.node.running("persistenced"):
            (self.node.folder / "run/persistence_mode").touch()

    def reset(self, gpu, _value: str) -> None:
        managed = self.node.sku["fabric"] and self.node.running("fabricmanager.ready")
        if self.node.loads() or managed or self.node.running("persistenced"):
            raise _stop(
                1,
                f"GPU {bus(gpu)} is currently in use by another process.\n\n1 device is currently being "
                "used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "
                "application such as an X server, or a monitoring application such as another instance "
                "of nvidia-smi). Please first kill all processes using this device and all compute "
                "applications running in the system.",
            )
        self.settings.reset(gpu)
        print(f"GPU {bus(gpu)} was successfully reset.")

    def power(self, gpu, value: str) -> None:
        try:
            watts = float(value)
        except ValueError:
            raise _stop(BAD_ARGUMENT, INVALID) from None
        low, high = self.node.sku["power_min"], self.node.sku["power"]
        if not low <= watts <= high:
            raise _stop(
                BAD_ARGUMENT,
                f"Provided power limit {watts:.2f} W is not a valid power limit which should be between "
                f"{low:.2f} W and {high:.2f} W for GPU {bus(gpu)}\n{STOPPED}",
            )
        before = self.settings.of(gpu)["power"]
        self.settings.change(gpu, power=watts)
        print(f"Power limit for GPU {bus(gpu)} was set to {watts:.2f} W from {before:.2f} W.")

    def lock(self, gpu, value: str) -> None:
        numbers = _numbers(value, 1, 2)
        low, high = numbers[0], numbers[-1]
        # The driver uses its nearest clock; the tool prints the requested one.
        known = fabric.graphics_clocks(self.node.sku)
        nearest = [min(known, key=lambda clock: abs(clock - one)) for one in (low, high)]
        self.settings.change(gpu, locked=nearest)
        print(f'GPU clocks set to "(gpuClkMin {low}, gpuClkMax {high})" for GPU {bus(gpu)}')

    def unlock(self, gpu, _value: str) -> None:
        self.settings.change(gpu, locked=None)

    def applications(self, gpu, value: str) -> None:
        memory, core = _numbers(value, 2, 2)
        if int(self.driver.split(".")[0]) >= 590:
            print(f"Setting applications clocks is not supported for GPU {bus(gpu)}.\n{WARNED}")
        elif memory != self.node.sku["memory_clock"] or core not in fabric.graphics_clocks(self.node.sku):
            print(
                f'Specified clock combination "(MEM {memory}, SM {core})" is not supported for GPU '
                f"{bus(gpu)}. Run 'nvidia-smi -q -d SUPPORTED_CLOCKS' to see list of supported clock "
                "combinations\n" + WARNED
            )
        else:
            self.settings.change(gpu, applications=[memory, core])
            print(f'Applications clocks set to "(MEM {memory}, SM {core})" for GPU {bus(gpu)}')

    def no_applications(self, gpu, _value: str) -> None:
        self.settings.change(gpu, applications=None)

    def compute(self, gpu, value: str) -> None:
        names = {str(number): name for number, name in enumerate(COMPUTE_MODES)}
        mode = names.get(value, value.upper())
        if mode not in COMPUTE_MODES or mode == "EXCLUSIVE_THREAD":
            raise _stop(BAD_ARGUMENT, INVALID)
        if self.settings.of(gpu)["compute"] == mode:
            print(f"Compute mode is already set to {mode} for GPU {bus(gpu)}.")
        else:
            self.settings.change(gpu, compute=mode)
            print(f"Set compute mode to {mode} for GPU {bus(gpu)}.")

    def ecc(self, gpu, value: str) -> list:
        on, now = _switch(value), self.settings.of(gpu)
        word = "Enabled" if on else "Disabled"
        if now["ecc_pending"] == on:
            print(f"ECC support is already {word} for GPU {bus(gpu)}.")
            return []
        self.settings.change(gpu, ecc=now["ecc"], ecc_pending=on)
        print(f"{word} ECC support for GPU {bus(gpu)}.")
        return ["Reboot required."]

    def mig(self, gpu, value: str) -> None:
        on, now = _switch(value), self.settings.of(gpu)
        refused = f"Unable to {'enable' if on else 'disable'} MIG Mode for GPU {bus(gpu)}:"
        if not profiles(self.node.sku_name):
            raise _stop(NOT_SUPPORTED, f"{refused} Not Supported\n{STOPPED}")
        if not on and now["instances"]:
            raise _stop(IN_USE, f"{refused} In use by another client\n{STOPPED}")
        if now["mig"] != on and gpu["slot"] in self.node.loads():
            self._wait_with_mig(gpu, on, refused)
            return
        self.settings.change(gpu, mig=on, mig_pending=on)
        print(f"{'Enabled' if on else 'Disabled'} MIG Mode for GPU {bus(gpu)}")

    def _wait_with_mig(self, gpu, on: bool, refused: str) -> None:
        """Defer the switch on Ampere, which needs a GPU reset for it; since Hopper it fails instead."""
        if self.node.sku["architecture"] != KEEPS_MIG:
            raise _stop(IN_USE, f"{refused} In use by another client\n{STOPPED}")
        self.settings.change(gpu, mig=not on, mig_pending=on)
        print(
            f"Warning: MIG mode is in pending {'enable' if on else 'disable'} state for GPU {bus(gpu)}:"
            f"In use by another client\n{bus(gpu)} is currently being used by one or more other processes "
            "(e.g. CUDA application or a monitoring application such as another instance of nvidia-smi). "
            "Please first kill all processes using the device and retry the command or reboot the system to "
            "make MIG mode effective."
        )


_DO = {
    "persistence": _Change.persistence,
    "reset": _Change.reset,
    "-pl": _Change.power,
    "-lgc": _Change.lock,
    "-rgc": _Change.unlock,
    "-ac": _Change.applications,
    "-rac": _Change.no_applications,
    "-c": _Change.compute,
    "-e": _Change.ecc,
    "-mig": _Change.mig,
}
