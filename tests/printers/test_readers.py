"""Other readers of nvidia-smi on NVIDIA's own output: facts, samples, a burn-in."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from gpuprov_lab.silicon.nvidia_smi.nvml_values import Machine
from tests.printers import burned, nvml_values, readers
from tests.printers.nvml_faults import FAULTS, Fault
from tests.printers.outcomes import node_of
from tests.printers.smi import RELEASES, Printers
from tests.support.seed import Selected

_PAIRS = [(driver, "a100-sxm-80" if driver.startswith("470") else "h100-sxm") for driver in RELEASES]
# Readers that find all GPUs lost: if one GPU has no handle, nvidia-smi prints one line for any query.
_ALL = {"samples"}
_LAST = "gpu3"


def wrong(fault: Fault, machine: Machine, seen: readers.Seen) -> list[str]:
    """Describe a reader's missed or invented results for this fault."""
    if fault.refused:
        return [name for name in ("facts", "after a test", "beside a load") if name not in seen.refused]
    found = []
    for reader, lost in seen.lost.items():
        if fault.gone and _LAST not in {name.replace("gpu@0000:52:00", _LAST) for name in lost}:
            found.append(f"{reader}: does not find that {_LAST} is lost")
        if lost - ({_LAST} if fault.doubtful else set()) and not fault.gone:
            found.append(f"{reader}: finds {', '.join(sorted(lost))} lost")
        if fault.gone and len(lost) > 1 and reader not in _ALL:
            found.append(f"{reader}: finds {', '.join(sorted(lost))} lost")
    if not fault.gone and not fault.doubtful:
        found += [f"{reader}: refused: {why}" for reader, why in seen.refused.items()]
    values = {**seen.facts, **seen.samples}
    for name in fault.seen:
        if name in readers.FABRIC and not machine.has_fabric_state:
            continue
        column = values.get(name, [])
        if len(column) != machine.count or column[-1] in column[:-1]:
            found.append(f"{name}: {column} does not show it")
    return found


@pytest.mark.parametrize(("driver", "sku"), _PAIRS, ids=[driver[:3] for driver, _ in _PAIRS])
def test_each_reader_gets_what_the_driver_has(
    driver: str, sku: str, printers: Printers, tmp_path: Path
) -> None:
    """In CI, test a quarter of the faults of each release, drawn by their names; the long set tests all."""
    found, tried = [], 0
    healthy: burned.Rows = ()
    for number, fault in enumerate(FAULTS):
        machine = nvml_values.machine(sku, driver)
        drawn = zlib.crc32(f"{driver}{fault.name}".encode()) % 4 == 0 or fault.name == "nothing"
        if fault.applies(machine) and (drawn or Selected.long):
            machine.set("nvmlDeviceGetUtilizationRates", utilization__gpu=99)  # as in a burn-in
            fault.change(machine)
            seen = readers.everything(printers(driver), machine, tmp_path / str(number))
            tried += 1
            found += [f"{fault.name}: {one}" for one in wrong(fault, machine, seen)]
            healthy = healthy or seen.rows
            hours = burned.wrong(
                node_of(machine), healthy, seen.rows, fault.hours, tmp_path / f"{number}-hours"
            )
            found += [f"{fault.name}: in a burn-in: {one}" for one in hours]
            if burned.unseen(seen.rows) != fault.refused:
                found.append(f"{fault.name}: in a burn-in: {len(seen.rows)} samples")
    assert tried > 3
    assert "\n".join(found) == ""
