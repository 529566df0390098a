"""nv-fabricmanager: rejects a driver of another version, and exits if there are no NVSwitches."""

import os
import sys
from pathlib import Path

import daemon
import fabric_log
from load import wait

READY = "fabricmanager.ready"
NOTHING = (
    "request to query NVSwitch device information from NVSwitch driver failed with error:"
    "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
)
# Public logs: of H100 and H200; of A100 (Azure NDv4), B200 and B300.
CONFIGURED = (
    "Successfully configured all the available NVSwitches to route GPU NVLink traffic. NVLink Peer-to-Peer "
    "support will be enabled once the GPUs are successfully registered with the NVLink fabric."
)
CONFIGURED_WITH_GPUS = (
    "Successfully configured all the available GPUs and NVSwitches to route NVLink traffic."
)


def fabricmanager(node, arguments: list) -> int:
    """Run nv-fabricmanager, as a daemon unless its settings say otherwise."""
    mine = os.environ.get("SILICON_VERSION") or node.library()
    if "-v" in arguments or "--version" in arguments:
        print(f"Fabric Manager version is : {mine}")
        return 0
    settings = _settings(arguments)
    log = _Log(settings.get("LOG_FILE_NAME", "/var/log/fabricmanager.log"), node)
    driver = node.driver()
    if driver is None:
        return log.failure(NOTHING)
    log.write("INFO", f"Fabric Manager version {mine} started")
    if driver[0] != mine:
        return log.failure(
            f"fabric manager NVIDIA GPU driver interface version {mine} don't match with driver version "
            f"{driver[0]}. "
            "Please update with matching NVIDIA driver package."
        )
    if not node.sku["fabric"]:
        log.failure(NOTHING)
        return 0
    if node.sku["fabric"] == "nvlink5":
        missing = _switch_manager(node)
        if missing:  # reported by the script that starts both, which has no log
            print(missing, file=sys.stderr)
            return 1
    present = {gpu["slot"] for gpu in node.usable()}
    wait(node, 4.0)
    log.write("INFO", f"number of GPUs detected: {len(present)}")
    log.say("Connected to 1 node.")
    log.say(CONFIGURED if node.sku["architecture"] == "Hopper" else CONFIGURED_WITH_GPUS)
    marker = node.folder / "run" / READY
    sys.stdout.flush()
    if settings.get("DAEMONIZE", "1") == "1":
        return daemon.run_in_background(marker)
    daemon.hold(marker, lambda: None)
    return 0


def _switch_manager(node) -> str:
    program = "/opt/nvidia/nvlsm/sbin/nvlsm"
    if not (node.root / program.lstrip("/")).exists():
        return f'"{program}" does not exist'
    if not node.loaded("ib_umad"):
        return "Kernel module ib_umad has not been loaded, fabric manager startup failed"
    return ""


def _settings(arguments: list) -> dict:
    path = arguments[arguments.index("-c") + 1] if "-c" in arguments[:-1] else ""
    try:
        lines = Path(path).read_text().splitlines() if path else []
    except OSError:
        print(f"unable to open provided configuration file {path}", file=sys.stderr)
        lines = []
    return dict(
        line.strip().partition("=")[::2] for line in lines if "=" in line and not line.startswith("#")
    )


class _Log:
    """The log file; important lines go to the journal as well."""

    def __init__(self, name: str, node) -> None:
        self.path = node.root / name.lstrip("/")

    def write(self, level: str, text: str) -> None:
        """Write one line to the file."""
        try:
            fabric_log.write(self.path, level, text)
        except OSError as error:
            print(f"could not open log file {self.path}: {error}", file=sys.stderr)

    def say(self, text: str) -> None:
        """Write a line to the file and to the journal."""
        self.write("INFO", text)
        print(text)

    def failure(self, text: str) -> int:
        """Write an error to the file and to the journal; returns the exit status for it."""
        self.write("ERROR", text)
        print(text, file=sys.stderr)
        return 1
