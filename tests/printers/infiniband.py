"""Fabrics of ibsim, and the output of the real infiniband-diags on their hosts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprov_lab import debian
from tests.printers.root import Root

PACKAGES = ("ibsim-utils", "libumad2sim0", "infiniband-diags", "ibverbs-utils", "opensm", "dash", "coreutils")
_SYSFS = "/sys/class/infiniband"
_LIBRARY = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so"
_FILES = (
    *("node_type", "node_guid", "sys_image_guid", "fw_ver", "hw_rev", "hca_type"),
    *(f"ports/1/{name}" for name in ("state", "phys_state", "rate", "lid", "sm_lid", "sm_sl", "cap_mask")),
    *("ports/1/lid_mask_count", "ports/1/gids/0", "ports/1/pkeys/0", "ports/1/link_layer"),
)
# Programs reach ibsim through a preloaded library, which also shows them files of sysfs.
_FABRIC = """\
cd /tmp; rm -f console; mkfifo console; mkdir -p /var/cache/opensm
ibsim -s fabric <console >ibsim.log 2>&1 &
exec 9>console
for _ in 1 2 3 4 5 6 7 8 9 10; do case $(cat ibsim.log) in *ready*) break;; esac; sleep 0.2; done
"""


@dataclass(frozen=True)
class Host:
    """A host of a fabric: the files that its kernel would show, and the output of two programs."""

    files: dict[str, str]
    ibstat: str
    printed: str

    def write(self, root: Path) -> None:
        """Write the files below a root so that they can be observed."""
        for name, text in self.files.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")


def fabric(
    root: Root,
    hosts: Sequence[str],
    orders: Sequence[str] = (),
    *,
    manager: bool = True,
    first: str = "ibstat",
) -> dict[str, Host]:
    """Run the hosts on a switch of ibsim, send it the `orders`, and then examine each host.

    `first` runs on the first host only: programs that need a fabric wait long on a host without one.
    """
    ports = "\n".join(f'[{number}] "{host}"[1]' for number, host in enumerate(hosts, 1))
    cards = "\n\n".join(f'Hca 1 "{host}"\n[1] "leaf"[{number}]' for number, host in enumerate(hosts, 1))
    (root.own / "tmp/fabric").write_text(f'Switch 36 "leaf"\n{ports}\n\n{cards}\n', encoding="utf-8")
    inside = f"env LD_PRELOAD={_LIBRARY} SIM_HOST="
    script = [_FABRIC]
    if manager:
        script.append(f"{inside}leaf opensm -o -f /tmp/opensm.log >/dev/null 2>&1")
    script += [f"echo '{order}' >&9" for order in orders]
    script.append("sleep 0.3")
    files = " ".join(f"{_SYSFS}/ibsim0/{name}" for name in _FILES)
    for host in hosts:
        script.append(f"{inside}{host} head -n 1 {files} >{host}.files 2>/dev/null")
        script.append(f"{inside}{host} ibstat >{host}.ibstat")
    script.append(f"{inside}{hosts[0]} {first} >first")
    done = root.run("sh", "-c", "\n".join(script), timeout=120)
    assert done.returncode == 0, done.stderr + (root.own / "tmp/ibsim.log").read_text()
    return {host: _host(root.own / "tmp", host) for host in hosts}


def _host(folder: Path, host: str) -> Host:
    # head prints ==> PATH <== above the line of each file. The kernel names ibsim's IB InfiniBand
    # (drivers/infiniband/core/sysfs.c, link_layer_show).
    files = re.findall(r"^==> (\S+) <==\n(.*)$", (folder / f"{host}.files").read_text(), re.MULTILINE)
    shown = dict(files) | {f"{_SYSFS}/ibsim0/ports/1/link_layer": "InfiniBand"}
    return Host(shown, (folder / f"{host}.ibstat").read_text(), (folder / "first").read_text())


def fields(text: str) -> dict[str, dict[str, str]]:
    """Parse ibstat's output for cards with one port: card → field → value."""
    cards: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name = re.fullmatch(r"(?:CA|Switch) '(\S+)'", line)
        if name:
            card = cards.setdefault(name[1], {})
        elif line.startswith("\t") and not line.endswith(":"):
            key, _, value = line.strip().partition(": ")
            card[key] = value
    return cards


def counters(text: str) -> dict[str, int]:
    """Parse perfquery's output: counter → value, from lines like `SymbolErrorCounter:..............3`."""
    return {name: int(value) for name, value in re.findall(r"^(\w+):\.+(\d+)$", text, re.MULTILINE)}


def verbs(folder: Path) -> Path:
    """Build the replacement for libibverbs below ibv_devinfo."""
    headers = debian.unpacked("libibverbs-dev", "trixie", "main") / "usr/include"
    source, library = Path(__file__).with_name("verbs_library.c"), folder / "verbs.so"
    words = ["gcc", "-std=gnu99", "-D_GNU_SOURCE", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*words, f"-I{headers}", "-o", str(library), str(source)], check=True)
    return library
