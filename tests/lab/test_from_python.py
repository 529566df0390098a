"""The examples of docs/python.md on two lab nodes, which are brought up and validated from Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
READS, CHANGES, _ = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL
)
EVENTS = """
told = []
fleet = gpuprov.load(source, on_event=told.append)
again = gpuprov.up(fleet, on_event=told.append)
print(again.text().splitlines()[0])
print(sorted({type(event).__name__ for event in told}))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "l40s", "debian12"), NodeSpec("gpu-02", "l40s", "debian12"))
    with running_lab("python", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", speed=50.0) as running:
        yield running


def test_the_examples_plan_drift_bring_up_and_validate(lab: Lab, tmp_path: Path) -> None:
    declared = yaml.safe_load(lab.inventory.read_text(encoding="utf-8"))
    declared["gpu_nodes"].setdefault("vars", {})["gpuprov_roles"] = ["nvidia_repository", "nvidia_driver"]
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    for name in ("json.py", "yaml.py", "provision/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('a module of this folder was run')\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", READS + CHANGES + EVENTS],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GPUPROV_RUNS": str(tmp_path / "runs"),
            "XDG_STATE_HOME": str(tmp_path / "state"),
        },
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "('gpu-01', 'gpu-02')"
    assert any(line.startswith("error nvidia_driver/") for line in lines)
    assert {"gpu-01 done", "gpu-02 done", "gpu-01 pass ", "gpu-02 pass "} <= set(lines), done.stdout
    assert lines[-2] == "2 nodes already as declared"
    assert lines[-1] == "['Began', 'Ended', 'PartEnded', 'RunBegan']"
