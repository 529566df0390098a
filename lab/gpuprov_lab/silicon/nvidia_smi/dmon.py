"""nvidia-smi dmon: repeated lines for each GPU; the letters after -s select the columns."""

import sys
import time

import telemetry
from state import Node

BAD_ARGUMENT = 2
LOST = 15
_ROWS_A_HEADER = 20
# letter -> [(name, unit, width, value of a reading)]
_COLUMNS = {
    "p": [
        ("pwr", "W", 6, lambda one: round(one["power"])),
        ("gtemp", "C", 6, lambda one: one["temperature"]),
        ("mtemp", "C", 6, lambda one: one["memory_temperature"] or "-"),
    ],
    "u": [
        (name, "%", 6, lambda one, busy=busy: busy if one["load"] else 0)
        for name, busy in (("sm", 100), ("mem", 38), ("enc", 0), ("dec", 0), ("jpg", 0), ("ofa", 0))
    ],
    "c": [
        ("mclk", "MHz", 6, lambda one: one["memory_clock"]),
        ("pclk", "MHz", 6, lambda one: one["clock"]),
    ],
    "e": [
        ("sbecc", "errs", 6, lambda one: one["corrected_ever"]),
        ("dbecc", "errs", 6, lambda one: one["uncorrectable_ever"]),
        ("pci", "errs", 6, lambda one: one["replays"]),
    ],
}


def run(node, words: list) -> int:
    """Run `dmon [-s LETTERS] [-d SECONDS] [-c COUNT]` and return the exit status."""
    letters, delay, count = "pucm", 1.0, 0
    rest = iter(words)
    for word in rest:
        value = next(rest, "")
        if word in ("-s", "--select") and value and all(letter in "pucvmet" for letter in value):
            letters = value
        elif word in ("-d", "--delay") and value.isdigit():
            delay = float(value)
        elif word in ("-c", "--count") and value.isdigit():
            count = int(value)
        else:
            print("Invalid combination of input arguments. Please run 'nvidia-smi dmon -h' for help.\n")
            return BAD_ARGUMENT
    columns = [column for letter in letters for column in _COLUMNS.get(letter, [])]
    rows = number = 0
    while True:
        moment = telemetry.Moment(node)
        for index, gpu in enumerate(node.present()):
            if node.lost(gpu):
                where = f"GPU{index}: {gpu['address'].upper()}"
                print(
                    f"Unable to determine the device handle for {where}: GPU is lost.  Reboot the system to "
                )
                return LOST
            if rows % _ROWS_A_HEADER == 0:
                _header(columns)
            rows += 1
            one = dict(telemetry.read(node, gpu, index, moment), memory_clock=node.sku["memory_clock"])
            print(f"{index:5d} " + " ".join(f"{value(one):>{width}}" for _, _, width, value in columns) + " ")
        sys.stdout.flush()
        number += 1
        if count and number >= count:
            return 0
        time.sleep(delay / node.speed)
        node = Node(node.folder)
        node.count_run()


def _header(columns) -> None:
    print("# gpu " + " ".join(f"{name:>{width}}" for name, _, width, _ in columns) + " ")
    print("# Idx " + " ".join(f"{unit:>{width}}" for _, unit, width, _ in columns) + " ")
