"""gpuprov selftest: prove the checks on the real machine it runs on, and store the tools' output."""

from __future__ import annotations

import argparse
import sys

from provision.commands import fleet_options
from provision.errors import ExitCode

EPILOG = """\
Run it as root on the GPU machine itself; it needs neither SSH nor an inventory. It loads every GPU: drain the
machine first. GPU settings are left alone unless --change-settings is given. An existing clock lock, or
application clocks, cannot be detected and may be lost with --change-settings: set them again afterwards.

exit codes: 0 every check that this machine can run is proven; 1 no GPU, not root, or the tools could not be
built; 2 wrong command line or output folder; 3 a check found the machine unhealthy; 5 a check is not
proven, or the GPUs are in use; 130 interrupted.

examples:
  sudo gpuprov selftest
  sudo gpuprov selftest --mask-serials --output ./proof
  sudo gpuprov selftest --change-settings
  sudo gpuprov selftest --build
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="new or empty folder (default: selftest-<hostname>-<date and time>)",
    )
    parser.add_argument(
        "--mask-serials",
        action="store_true",
        help="replace serial numbers, UUIDs, GUIDs, hardware addresses and the host name by placeholders",
    )
    parser.add_argument(
        "--build",
        action="store_true",
        help="build gpu_burn, nccl-tests and nvbandwidth where missing (role validation_tools)",
    )
    parser.add_argument(
        "--change-settings",
        action="store_true",
        help="also change one GPU's power limit, and its clock lock, persistence and compute mode where it "
        "has them, then restore them",
    )
    fleet_options.add_count(parser, "--burn-seconds", 60, "duration of the gpu_burn check in seconds")
    fleet_options.add_count(
        parser, "--minutes", 20, "time limit; steps that do not start in time are reported as not proven"
    )
    fleet_options.add_variables(
        parser, "set an inventory variable for this machine; the value is YAML (repeatable)"
    )


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.validate.selftest import run as selftest
    from provision.validate.selftest.result import summary

    steps = selftest.Steps()
    output = Path(options.output).expanduser() if options.output else selftest.default_output(steps.machine)
    settings = selftest.Settings(
        output=output,
        burn_seconds=options.burn_seconds,
        minutes=options.minutes,
        build=options.build,
        change_settings=options.change_settings,
        mask_serials=options.mask_serials,
        declared=fleet_options.overrides(options),
    )
    with fleet_options.Drawn() as draw:
        result = selftest.run(settings, draw, steps)
    sys.stdout.write(summary(result, output))
    return result.code
