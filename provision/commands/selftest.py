"""gpuprov selftest: prove the checks on the real machine it runs on, and keep what its tools print."""

from __future__ import annotations

import argparse
import sys

from provision.commands import fleet_options
from provision.errors import ExitCode

EPILOG = """\
Runs on the GPU machine itself, as root, without SSH and without an inventory. It loads every GPU: drain the
machine first. GPU settings stay as they are, unless --change-settings is given. A lock of the clocks that is
there before cannot be seen, and --change-settings ends it: set it again afterwards.

exit codes: 0 when everything that this machine allows is proven; 3 when a check found it unhealthy; 5 when
something could not be proven, or the GPUs are in use; 1 without a GPU or without root; 130 when interrupted.

examples:
  sudo gpuprov selftest
  sudo gpuprov selftest --mask-serials --output /tmp/selftest
  sudo gpuprov selftest --change-settings
  sudo gpuprov selftest --build --set validation_tools_gpu_burn_sha256=... (and of nccl_tests and nvbandwidth)
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
        help="write stand-ins for serial numbers, UUIDs, hardware addresses and the host name",
    )
    parser.add_argument(
        "--build",
        action="store_true",
        help="build gpu_burn, nccl-tests and nvbandwidth if one is missing (role validation_tools)",
    )
    parser.add_argument(
        "--change-settings",
        action="store_true",
        help="also change power limit, clocks, persistence and compute mode of one GPU, and put them back",
    )
    parser.add_argument(
        "--burn-seconds",
        type=fleet_options.count,
        default=60,
        metavar="N",
        help="how long gpu_burn runs (default 60)",
    )
    parser.add_argument(
        "--minutes",
        type=fleet_options.count,
        default=20,
        metavar="N",
        help="time limit: checks that do not fit are not proven (default 20)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="declare a variable of this machine, as an inventory does; the value is YAML (repeatable)",
    )


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.selftest import run as selftest
    from provision.selftest.summary import summary

    output = Path(options.output).expanduser() if options.output else selftest.default_output()
    settings = selftest.Settings(
        output=output,
        burn_seconds=options.burn_seconds,
        minutes=options.minutes,
        build=options.build,
        change_settings=options.change_settings,
        mask_serials=options.mask_serials,
        declared=fleet_options.overrides(options),
    )
    found = selftest.run(settings)
    sys.stdout.write(summary(found, output))
    return found.code
