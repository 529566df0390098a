"""Surfaces compared with real output: the recording, and the simulator's command for the same output.

`capture` is a file in the folder GPUPROV_CAPTURES; `public` is a file of a public repository at a commit,
`owner/name@commit path`. Neither is part of this repository: shapes.yml has their shapes, written by
record_shapes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.lab_silicon import forms, shape

SMI = "nvidia-smi"
QX = (SMI, "-q", "-x")
HARDWARE = (
    "NVIDIA/k8s-test-infra@3b2b865d91b1844baa9feeca2820d2fab65414c7 "
    "tests/e2e/go/assertions/nvidiasmi/testdata/hardware/"
)
TELEGRAF = "influxdata/telegraf@b27263146617cefe16c0b300107b58b111a7fa57 plugins/inputs/nvidia_smi/testdata/"


@dataclass(frozen=True)
class Surface:
    """One output of one tool on one kind of machine."""

    words: tuple[str, ...]
    sku: str
    driver: str
    shape: Callable[[str], list[str]]
    capture: str = ""
    public: str = ""
    faults: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    status: int = 0
    like: str = ""  # shapes.yml stores only the differences from this surface
    stderr: bool = False  # includes both streams
    server: tuple[str, ...] = ()  # command of the server that it needs in order to print anything
    file: str = ""  # output file below the node's folder, instead of stdout; for a folder, all its files
    cut: bool = False  # the recording ends early, within a group of lines
    edited: Callable[[str], str] = str  # undoes the collectors' edits to a recording

    @property
    def source(self) -> str:
        """Source of the real output, as in shapes.yml."""
        return self.capture or self.public

    @property
    def node(self) -> tuple[Any, ...]:
        """Key of the simulated node; surfaces with equal keys share one."""
        return self.sku, self.driver, self.faults

    def real(self, text: str) -> list[str]:
        """Return the shape of the real output."""
        return [f"exit status {self.status}", *self.shape(self.edited(text))]

    def simulated(self, text: str, status: int) -> list[str]:
        """Return the shape of the simulated output."""
        return [f"exit status {status}", *self.shape(text)]


H100 = ("h100-sxm", "550.163.01")
A100 = ("a100-sxm-80", "550.163.01")
OLD = ("a100-pcie-80", "515.105.01")
LOST = ("gpu_silent gpu=3",)
FIELDS = (
    "index,name,uuid,serial,pci.bus_id,driver_version,vbios_version,pstate,temperature.gpu,power.draw,"
    "power.limit,clocks.current.sm,clocks.max.sm,pcie.link.gen.current,pcie.link.gen.max,"
    "pcie.link.width.current,pcie.link.width.max,ecc.mode.current,ecc.errors.uncorrected.volatile.total,"
    "ecc.errors.corrected.volatile.total,memory.total,memory.used,persistence_mode,mig.mode.current,"
    "clocks_event_reasons.active"
)
LOST_FIELDS = (
    "index,name,pci.bus_id,temperature.gpu,power.draw,memory.used,ecc.errors.uncorrected.volatile.total,"
    "clocks.current.sm,utilization.gpu"
)


# Cases that the recording's single GPU could run.
NVBANDWIDTH = tuple(
    f"{case}_{engine}"
    for engine, cases in (
        ("ce", "host_to_device_memcpy device_to_host_memcpy host_to_device_bidirectional_memcpy"),
        ("ce", "device_to_host_bidirectional_memcpy all_to_host_memcpy all_to_host_bidirectional_memcpy"),
        ("ce", "host_to_all_memcpy host_to_all_bidirectional_memcpy"),
        ("sm", "host_to_device_memcpy device_to_host_memcpy all_to_host_memcpy"),
        ("sm", "all_to_host_bidirectional_memcpy host_to_all_memcpy host_to_all_bidirectional_memcpy"),
        ("sm", "host_device_latency"),
    )
    for case in cases.split()
)


Machine = tuple[str, str]


def _qx(machine: Machine, recording: str, **more: Any) -> Surface:
    """Return the surface of the full query, from a capture's name or a public file."""
    capture, public = ("", recording) if "@" in recording else (f"nvidia-smi-q-x.{recording}.xml", "")
    return Surface(QX, *machine, shape.xml, capture, public, **more)


def _smi(words: str, machine: Machine, form: Callable[[str], list[str]], name: str, **more: Any) -> Surface:
    return Surface((SMI, *words.split()), *machine, form, f"nvidia-smi{name}", **more)


def _query(fields: str, machine: Machine, name: str, **more: Any) -> Surface:
    return _smi(f"--query-gpu={fields} --format=csv", machine, shape.csv, f"-query-gpu.{name}.csv", **more)


def _lost(words: str, form: Callable[[str], list[str]], name: str, **more: Any) -> Surface:
    """Return a surface with a GPU that does not answer."""
    return _smi(words, H100, form, f"{name}.h100.gpu3-lost.550.txt", faults=LOST, **more)


SURFACES = {
    # nvidia-smi, the full query
    "q-x h100 550": _qx(H100, "h100.550"),
    "q-x h100 550 lost": _qx(H100, "h100.gpu3-lost.550", faults=LOST, like="q-x h100 550"),
    "q-x a100 550": _qx(A100, "a100.550", like="q-x h100 550"),
    "q-x a100 535 mig": _qx(("a100-sxm-80", "535.54.03"), "a100-sxm4.driver535.mig", like="q-x h100 550"),
    "q-x 3090 525": _qx(
        ("a100-pcie-80", "525.147.05"), TELEGRAF + "rtx-3090-v12.xml", like="q-x a100 535 mig"
    ),
    "q-x a10g 515": _qx(OLD, "a10g.old-driver", like="q-x h100 550"),
    "q-x t4 515": _qx(OLD, "t4.old-driver", like="q-x a10g 515"),
    "q-x h100 580": _qx(("h100-sxm", "580.105.08"), HARDWARE + "qx-h100.xml", like="q-x h100 550"),
    "q-x ada 595": _qx(("l40s", "595.84"), "rtx-4000-ada.v13", like="q-x h100 580"),
    "q-x a100 570": _qx(("a100-sxm-80", "570.148.08"), HARDWARE + "qx-a100.xml", like="q-x h100 580"),
    "q-x b200 580": _qx(("b200", "580.105.08"), HARDWARE + "qx-b200.xml", like="q-x h100 580"),
    "q-x gb200 580": _qx(("gb200", "580.173.02"), HARDWARE + "qx-gb200.xml", like="q-x h100 580"),
    "q-x l40s 595": _qx(("l40s", "595.91.07"), HARDWARE + "qx-l40s.xml", like="q-x h100 580"),
    "q h100 550": _smi("-q", H100, shape.lines, "-q.h100.550.txt"),
    # nvidia-smi, the rest
    "query h100 550": _query(FIELDS, H100, "h100.550"),
    "query a100 550": _query(FIELDS, A100, "a100.550"),
    "query h100 550 lost": _query(LOST_FIELDS, H100, "h100.gpu3-lost.550", faults=LOST),
    "query fabric h100 550": _smi(
        "--query-gpu=index,fabric.state,fabric.status --format=csv,noheader,nounits",
        H100,
        shape.lines,
        "-query-gpu-fabric.h100.550.csv",
    ),
    "list h100 550": _smi("-L", H100, shape.lines, "-L.h100.550.txt"),
    "list a100 550": _smi("-L", A100, shape.lines, "-L.a100.550.txt"),
    "list h100 550 lost": _lost("-L", shape.lines, "-L"),
    "table h100 550": _smi("", H100, forms.columns, ".plain.h100.550.txt"),
    "table a100 550": _smi("", A100, forms.columns, ".plain.a100.550.txt"),
    "table h100 550 lost": _lost("", forms.columns, ".plain", status=15),
    "nvlink -s h100 550": _smi("nvlink -s", H100, shape.lines, "-nvlink-s.h100.550.txt", cut=True),
    "nvlink -s a100 550": _smi("nvlink -s", A100, shape.lines, "-nvlink-s.a100.550.txt", cut=True),
    "nvlink -s a100": _smi(
        "nvlink -s",
        A100,
        shape.lines,
        "-nvlink-status.a100.txt",
        edited=lambda text: text.replace(" " * 9, "\t ") + "\n",  # tabs expanded, last newline gone
    ),
    "nvlink -s h100 550 lost": _lost("nvlink -s", shape.lines, "-nvlink-s"),
    "nvlink -e h100 550": _smi("nvlink -e", H100, shape.lines, "-nvlink-e.h100.550.txt", cut=True),
    "nvlink -e a100 550": _smi("nvlink -e", A100, shape.lines, "-nvlink-e.a100.550.txt", cut=True),
    "topo -m h100 550": _smi("topo -m", H100, forms.topology, "-topo-m.h100.550.txt"),
    "topo -m a100 550": _smi("topo -m", A100, forms.topology, "-topo-m.a100.550.txt"),
    "topo -m h100 550 lost": _lost("topo -m", forms.topology, "-topo-m"),
    "topo -p2p h100 550": _smi("topo -p2p r", H100, shape.lines, "-topo-p2p-r.h100.550.txt"),
    "topo -p2p a100 550": _smi("topo -p2p r", A100, shape.lines, "-topo-p2p-r.a100.550.txt"),
    # Load tools; their sources are in printed.yml
    "gpu_burn a100": Surface(
        ("gpu_burn", "-d", "-tc", "60"),
        *A100,
        forms.burn,
        "gpu-burn.8gpu.log",
        environment=(("SILICON_VERSION", "1.0"),),
    ),
    "all_reduce a100": Surface(
        ("all_reduce_perf", "-b", "8", "-e", "8G", "-f", "2", "-g", "8", "-c", "0"),
        *A100,
        forms.collective,
        "nccl-tests.all_reduce.log",
    ),
    "alltoall a100": Surface(
        ("alltoall_perf", "-b", "8", "-e", "8G", "-f", "2", "-g", "8", "-c", "0"),
        *A100,
        forms.collective,
        "nccl-tests.alltoall.log",
    ),
    "nvbandwidth h100": Surface(
        ("nvbandwidth", "-t", *NVBANDWIDTH),
        *H100,
        forms.matrix,
        "nvbandwidth.text.log",
        environment=(("SILICON_VERSION", "0.6"),),
    ),
    "ib_write_bw": Surface(
        ("ib_write_bw", "-d", "mlx5_0", "-F", "localhost"),
        *H100,
        forms.with_blanks_as_one,
        "ib_write_bw.loopback.all-sizes.log",
        server=("ib_write_bw", "-d", "mlx5_0", "-F"),
    ),
    "fabric manager's log": Surface(
        ("nv-fabricmanager",),
        *H100,
        forms.heads,
        "fabricmanager.log",
        environment=(("SILICON_VERSION", "550.90.07"),),  # refused, so the process exits
        file="root/var/log/fabricmanager.log",
        status=1,
    ),
    "sys class infiniband": Surface(
        ("ibv_devinfo",),
        *H100,
        forms.files,
        "sys-class-infiniband.h100.mlx5_0.tsv",
        file="state/sys/class/infiniband/mlx5_0",
    ),
    "kernel log xid 119": Surface(
        ("dmesg", "-T"), *H100, forms.driver_lines, "kernel-log.xid-119.log", faults=("xid gpu=4 code=119",)
    ),
}

# Recordings without a simulated tool: the tool, and the reason.
NOT_SIMULATED = {
    "ibstat.many-nodes.txt": ("ibstat", "the checks read /sys/class/infiniband and ibv_devinfo instead"),
    "lspci-nn.a100.txt": ("lspci", "the checks read /sys/bus/pci/devices instead"),
}

# Forms of nvidia-smi -q -x without a surface: the first driver, and the reason.
NOT_HELD = {
    (530,): "public outputs of 530.30.02 are of a Pascal GPU, shortened by hand",
    (575,): "public outputs of 575.51 are of a laptop's GPU, their clocks left out by hand",
}
