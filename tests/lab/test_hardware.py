"""`scripts/hardware` on a lab node: a complete recording, from a pack, on a machine with only Python."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import ROOT, Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import LabNode, running_lab
from tests.support import hardware

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
SHIPPED = ("provision", "roles", "playbooks", "scripts", "tests/support", "pyproject.toml")
IDENTITIES = (
    "nvidia-smi --query-gpu=serial,uuid --format=csv,noheader; nvidia-smi -q | sed -n 's/.*GPU PDI *: //p';"
    "cat /etc/machine-id /sys/class/net/[!l]*/address; hostname -I"
)


@pytest.fixture(scope="module")
def node(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabNode]:
    """Yield an H100 node as declared, with this checkout and a pack; its Python has no libraries."""
    folder = tmp_path_factory.mktemp("hardware")
    wanted = (NodeSpec("gpu-01", "h100-sxm", "debian13"),)
    with running_lab("hard", wanted, folder / "lab.yml", speed=20, images={"gpu-01": images.h100()}) as lab:
        done = Operator(lab.inventory, folder / "runs").call("up")
        assert done.returncode == ExitCode.OK, said(done)
        node = lab.node("gpu-01")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hardware.script, "role_sources", list)  # the node has the tools
            hardware.script.make_pack(folder / "pack.tar.gz", None, "3.13")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name in SHIPPED:
                tar.add(ROOT / name, name, filter=lambda info: None if "__pycache__" in info.name else info)
            tar.add(folder / "pack.tar.gz", "pack.tar.gz")
        text = base64.b64encode(packed.getvalue()).decode()
        node.as_root("mkdir /opt/gpuprov && base64 -d | tar xz -C /opt/gpuprov", said=text)
        yield node


def test_one_machine_is_recorded_masked_and_unpacked(node: LabNode, tmp_path: Path) -> None:
    identities = set(node.as_root(IDENTITIES).stdout.replace(",", " ").split())
    assert len(identities) > 2 * 8
    begun = time.monotonic()
    command = "cd /opt/gpuprov && scripts/hardware --pack pack.tar.gz --out /root/hardware"
    done = node.run(f"sudo sh -c '{command}'", check=False, timeout=660)
    assert time.monotonic() - begun < 600, done.stderr
    archive = tmp_path / "hardware.tar.gz"
    archive.write_bytes(base64.b64decode(node.as_root("base64 -w0 /root/hardware/hardware.tar.gz").stdout))
    assert 0 < archive.stat().st_size <= hardware.script.ARCHIVE_MAX

    files = {
        name: data.decode()
        for name, data in hardware.script.members(archive, hardware.script.ARCHIVE_MAX).items()
    }
    summary = json.loads(files["summary.json"])
    steps = {step["name"]: step for step in summary["steps"]}
    for name in ("selftest", "validate", "burnin", "burnin-remove", "nccl-all-reduce", "health"):
        shown = files.get(steps[name]["file"], "")[-3000:]
        assert steps[name]["rc"] == 0, (name, steps[name], shown)
    for name in ("drift", "plan"):
        # The script declares no roles, so these results depend on gpuprov's defaults.
        ended = (ExitCode.OK, ExitCode.UNHEALTHY, ExitCode.DRIFT, ExitCode.INCOMPLETE)
        assert steps[name]["rc"] in ended, steps[name]
    assert not summary["interrupted"]
    whole = "\n".join(files.values())
    assert not {identity for identity in identities if identity in whole}
    assert "PRIVATE KEY" not in whole

    folder = hardware.script.unpack(archive, tmp_path / "recorded")
    comparison = json.loads((folder / "comparison.json").read_text())
    assert len(comparison["shapes"]) >= 15, comparison["why"]
    # The node has persistence mode on, unlike a bare simulated machine, and three tables print it.
    differing = {shape["output"] for shape in comparison["shapes"] if not shape["same"]}
    assert differing <= {"nvidia-smi/plain", "nvidia-smi/q", "nvidia-smi/query-facts"}, comparison
    assert {"facts.json", "gpu_burn.json", "gpu_inventory.json"} <= {path.name for path in folder.iterdir()}
    assert done.returncode in (0, 1), done.stderr
