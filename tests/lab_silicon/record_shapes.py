"""Write shapes.yml: `python -m tests.lab_silicon.record_shapes CAPTURES PUBLIC`, two folders of recordings.

PUBLIC has the files of public repositories under the last part of their names. Only masked shapes are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from tests.lab_silicon.shape import change, changed, folded, unfolded
from tests.lab_silicon.surfaces import SURFACES, Surface

FILE = Path(__file__).with_name("shapes.yml")
HEAD = """\
# yamllint disable rule:line-length
# A line of an output is one line here.
# The shapes of real tools' outputs, values masked: written by record_shapes.py, which says how to write it
# anew. `source` is a recording or a file of a public repository at a commit. The recordings:
#   nvidia-smi-q-x.{a10g,t4,rtx-4000-ada,a100-sxm4}*: influxdata/telegraf, nvidia_smi/testdata (MIT)
#   gpu-burn, nccl-tests, nvbandwidth, ib_write_bw, ibstat: microsoft/superbenchmark, tests/data (MIT)
#   fabricmanager, kernel-log, lspci, nvlink-status, sys-class-infiniband: leptonai/gpud (Apache-2.0)
#   *.550.*: the real nvidia-smi 550.163.01 (Debian's package), run by us over a simulated NVML
"""


class _Indented(yaml.SafeDumper):
    """A dumper that indents lists beneath their keys, as yamllint requires."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def of_recording(surface: Surface, captures: Path, public: Path) -> list[str]:
    """Return the shape of a surface's recording."""
    name = surface.capture or surface.public.rpartition("/")[2]
    text = (captures if surface.capture else public).joinpath(name).read_bytes().decode()
    real = surface.real(text)
    return real[:-2] if surface.cut else real


def read() -> dict[str, list[str]]:
    """Return the recorded shapes by the surface's name."""
    found: dict[str, list[str]] = {}
    for name, entry in yaml.safe_load(FILE.read_text(encoding="utf-8")).items():
        like = SURFACES[name].like
        found[name] = changed(found[like], entry["change"]) if like else unfolded(entry["shape"])
    return found


def main() -> None:
    """Record the shapes of all surfaces."""
    captures, public = map(Path, sys.argv[1:3])
    shapes = {name: of_recording(surface, captures, public) for name, surface in SURFACES.items()}
    document: dict[str, Any] = {}
    for name, surface in SURFACES.items():
        document[name] = {"source": surface.source}
        if surface.like:
            document[name].update(like=surface.like, change=change(shapes[surface.like], shapes[name]))
        else:
            document[name]["shape"] = folded(shapes[name])
    FILE.write_text(
        HEAD + yaml.dump(document, Dumper=_Indented, sort_keys=False, allow_unicode=True, width=110)
    )


if __name__ == "__main__":
    main()
