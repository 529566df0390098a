"""A simulated node and NVIDIA's own nvidia-smi on the same values, with the output of each command."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as Xml

import yaml

from gpuprov_lab import real_smi
from provision.node.burnin.tool_output import GPU_FIELDS
from tests.lab_silicon.silicon import Silicon, made, start

_LISTED = yaml.safe_load(Path(__file__).with_name("differences.yml").read_text("utf-8"))
SKUS = {"470": "a100-sxm-80"}
COUNTER = "40\n"  # run counter of a tool on the simulated node: it seeds the noise of readings
_SAMPLED = [names[-1] for _, names in GPU_FIELDS]  # a name that each release knows
COMMANDS = (
    ("-q", "-x"),
    ("-L",),
    ("nvlink", "-s"),
    ("nvlink", "-e"),
    ("--query-gpu=index,pci.bus_id,serial,temperature.gpu", "--format=csv,noheader"),
    (f"--query-gpu={','.join(_SAMPLED)}", "--format=csv,noheader,nounits"),
    ("--query-gpu=mig.mode.current", "--format=csv,noheader"),
    ("--query-compute-apps=pid,process_name", "--format=csv,noheader"),
    (
        "--query-gpu=persistence_mode,compute_mode,ecc.mode.current,ecc.mode.pending,power.limit,"
        "power.default_limit,memory.total,pcie.link.width.max,pcie.link.gen.max",
        "--format=csv,noheader,nounits",
    ),
)


def node(folder: Path, driver: str, *, real: bool) -> Silicon:
    """Return a node of a SKU of this driver's time, with NVIDIA's program or the simulated one."""
    made_ = made(folder / ("real" if real else "simulated"), SKUS.get(driver[:3], "h100-sxm"))
    start(made_, driver)
    assert not real or real_smi.install(made_.state) == ""
    return made_


# 470 also prints lane-corrected errors: the private function behind them returns uninitialised memory.
_LANES = re.compile(r"\s*(Link \d+:|Lane \d+ ECC Correction Count: .*)")


def elements(text: str) -> Iterator[str]:
    """Yield an output line by line; for XML, one line per element, such as `/gpu/pci/pci_bus: 52`."""
    if not text.startswith("<?xml"):
        yield from (line for line in text.rstrip("\n").split("\n") if not _LANES.fullmatch(line))
        return
    root = Xml.fromstring(text)  # noqa: S314 (our own output, and that of NVIDIA's program)
    yield from (line for line in _below(root, "") if not line.startswith("/timestamp: "))


def _below(element: Xml.Element, path: str) -> Iterator[str]:
    for one in element:
        here = f"{path}/{one.tag}"
        if one.tag == "supported_clocks" and len(one):  # joins hundreds of elements into one line
            yield f"{here}: {' '.join(' '.join(one.itertext()).split())}"
            continue
        yield f"{here}: {(one.text or '').strip()}"
        yield from _below(one, here)


def differences(real: str, printed: str) -> list[str]:
    """Return differing lines: `8 x - line` if the real program prints it 8 times more, `+` if ours does."""
    mine, theirs = (Counter(elements(text)) for text in (printed, real))
    return [
        *(f"{times} x - {line}" for line, times in (theirs - mine).items()),
        *(f"{times} x + {line}" for line, times in (mine - theirs).items()),
    ]


def listed(driver: str, command: str) -> list[str]:
    """Return the differences that differences.yml explains."""
    return sorted(
        line
        for entry in _LISTED
        if driver in entry["drivers"] and command == entry["command"]
        for line in entry["lines"]
    )


def compared(real: Silicon, simulated: Silicon) -> dict[str, list[str]]:
    """Return command → its differences."""
    found = {}
    for words in COMMANDS:
        done = []
        for one in (real, simulated):
            (one.state / "counter").write_text(COUNTER)
            done.append(one.run("nvidia-smi", *words))
        found[" ".join(words)] = differences(*(one.stdout for one in done))
        if done[0].returncode != done[1].returncode:
            statuses = [one.returncode for one in done]
            found[" ".join(words)].append("exit status {}, simulated {}".format(*statuses))
    return found
