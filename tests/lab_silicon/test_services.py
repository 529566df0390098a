"""The daemons, and the small programs of the CUDA toolkit and container toolkit."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import gpuprov_lab
from tests.lab_silicon.silicon import Silicon
from tests.support.processes import until

Make = Callable[..., Silicon]
DRIVER = "580.126.09"


def stop(marker: Path) -> None:
    """Stop the daemon that owns the marker file, and wait until the file is gone."""
    os.kill(int(marker.read_text()), signal.SIGTERM)
    until(lambda: not marker.exists(), 20)


def fabricmanager(node: Silicon, version: str = DRIVER) -> Any:
    node.file("fm.cfg", "LOG_FILE_NAME=/var/log/fabricmanager.log\nDAEMONIZE=1\n")
    return node.run("nv-fabricmanager", "-c", str(node.root / "fm.cfg"), SILICON_VERSION=version)


def test_fabric_manager_brings_the_fabric_up_until_it_is_stopped(node: Make) -> None:
    one = node(fabric=False)
    done = fabricmanager(one)
    assert done.returncode == 0
    assert "Successfully configured all the available NVSwitches" in done.stdout
    assert "<state>Completed</state>" in one.run("nvidia-smi", "-q", "-x").stdout
    stop(one.state / "run/fabricmanager.ready")
    assert "<state>In Progress</state>" in one.run("nvidia-smi", "-q", "-x").stdout


def test_fabric_manager_of_another_version_refuses(node: Make) -> None:
    one = node(fabric=False)
    done = fabricmanager(one, "580.95.05")
    assert done.returncode == 1
    said = f"GPU driver interface version 580.95.05 don't match with driver version {DRIVER}."
    assert said in done.stderr
    assert said in (one.root / "var/log/fabricmanager.log").read_text()
    assert not (one.state / "run/fabricmanager.ready").exists()


def test_fabric_manager_has_nothing_to_do_without_switches(node: Make) -> None:
    one = node("l40s")
    (one.state / "run/fabricmanager.ready").unlink()
    done = fabricmanager(one)
    assert done.returncode == 0
    log = (one.root / "var/log/fabricmanager.log").read_text()
    assert "NV_WARN_NOTHING_TO_DO" in log
    assert not (one.state / "run/fabricmanager.ready").exists()


def test_blackwell_needs_nvlsm_and_ib_umad(node: Make) -> None:
    one = node("b200", fabric=False)
    assert '"/opt/nvidia/nvlsm/sbin/nvlsm" does not exist' in fabricmanager(one).stderr
    one.file("opt/nvidia/nvlsm/sbin/nvlsm", "#!/bin/sh\n")
    assert "ib_umad" in fabricmanager(one).stderr
    one.run("modprobe", "ib_umad")
    assert fabricmanager(one).returncode == 0
    stop(one.state / "run/fabricmanager.ready")


def test_persistenced_keeps_persistence_mode_on(node: Make) -> None:
    one = node("l40s")
    assert one.run("nvidia-persistenced", "--user", "nvpd", "--verbose").returncode == 0
    assert one.column("persistence_mode") == ["Enabled"] * 8
    stop(one.state / "run/persistenced")
    assert one.column("persistence_mode") == ["Disabled"] * 8


def test_persistence_mode_of_one_gpu_beside_the_daemon(node: Make) -> None:
    one = node("l40s")
    assert one.run("nvidia-persistenced").returncode == 0
    one.smi("-i", "2", "-pl", "300")
    done = one.smi("-i", "2", "-pm", "0").splitlines()
    assert done == ["Disabled persistence mode for GPU 00000000:38:00.0.", "All done."]
    kept = ["Enabled, 350.00"] * 8
    off = [*kept[:2], "Disabled, 350.00", *kept[3:]]  # the driver also lost its settings
    assert one.column("persistence_mode,power.limit") == off
    one.smi("-i", "2", "-pm", "1")
    assert one.column("persistence_mode,power.limit") == kept
    stop(one.state / "run/persistenced")


def test_persistenced_as_packaged_leaves_the_mode_off(node: Make) -> None:
    one = node("l40s")
    as_packaged = ("--user", "nvpd", "--no-persistence-mode", "--verbose")
    assert one.run("nvidia-persistenced", *as_packaged).returncode == 0
    assert one.column("persistence_mode") == ["Disabled"] * 8
    assert one.run("rmmod", "nvidia_uvm").returncode == 1
    stop(one.state / "run/persistenced.off")


def test_persistenced_needs_a_driver(bare: Make) -> None:
    done = bare().run("nvidia-persistenced")
    assert done.returncode == 1
    assert "Failed to query NVIDIA devices" in done.stderr


def test_nvcc(bare: Make) -> None:
    node = bare()
    text = node.run("nvcc", "--version", SILICON_VERSION="12.9.86").stdout
    assert re.search(r"^Cuda compilation tools, release 12\.9, V12\.9\.86$", text, re.MULTILINE)
    assert node.run("nvcc", SILICON_VERSION="12.9.86").returncode == 1


def test_container_toolkit_writes_what_runtimes_read(node: Make) -> None:
    one = node("a100-pcie-80")
    one.file("etc/docker/daemon.json", '{"log-driver": "journald"}')
    assert one.run("nvidia-ctk", "runtime", "configure", "--runtime=docker").returncode == 0
    settings = json.loads((one.root / "etc/docker/daemon.json").read_text())
    assert settings["log-driver"] == "journald"
    assert settings["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert one.run("nvidia-ctk", "runtime", "configure", "--runtime=containerd").returncode == 0
    assert "nvidia-container-runtime" in (one.root / "etc/containerd/conf.d/99-nvidia.toml").read_text()
    assert "conf.d/*.toml" in (one.root / "etc/containerd/config.toml").read_text()
    assert one.run("nvidia-ctk", "runtime", "configure", "--runtime=lxc").returncode == 1


def test_cdi_lists_what_was_generated(node: Make) -> None:
    one = node("a100-pcie-80")
    assert one.run("nvidia-ctk", "cdi", "list").stdout == ""
    assert one.run("nvidia-ctk", "cdi", "generate", "--output=/var/run/cdi/nvidia.yaml").returncode == 0
    names = one.run("nvidia-ctk", "cdi", "list").stdout.split()
    assert {"nvidia.com/gpu=0", "nvidia.com/gpu=3", "nvidia.com/gpu=all"} <= set(names)
    assert len(names) == 9


def test_cdi_needs_a_driver(bare: Make) -> None:
    done = bare().run("nvidia-ctk", "cdi", "generate")
    assert (done.returncode, "ERROR_LIBRARY_NOT_FOUND" in done.stderr) == (1, True)


def test_the_specification_has_the_form_of_the_toolkits_own(node: Make) -> None:
    """Check keys, their order and the indentation, on which the observer and other readers depend."""
    one = node("a100-pcie-80")
    library = (one.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").readlink().name
    one.file(f"usr/lib/x86_64-linux-gnu/{library}", "")
    text = one.run("nvidia-ctk", "cdi", "generate").stdout
    spec = yaml.safe_load(text)
    assert list(spec) == ["cdiVersion", "kind", "devices", "containerEdits"]
    assert text.startswith(
        '---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n    - name: "0"\n      containerEdits:\n'
    )
    hook = "        - hookName: createContainer\n          path: /usr/bin/nvidia-cdi-hook\n"
    assert f"{hook}          args:\n            - nvidia-cdi-hook\n" in text
    assert spec["devices"][0]["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidia0"
    assert spec["devices"][-1]["name"] == "all"
    assert all(isinstance(device["name"], str) for device in spec["devices"])
    mounts = [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]]
    assert f"/usr/lib/x86_64-linux-gnu/{library}" in mounts
    assert f"{library}::/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1" in text


def test_mig_devices_stand_in_place_of_their_gpu(node: Make) -> None:
    one = node("a100-pcie-80")
    one.smi("-i", "1", "-mig", "1")
    one.smi("-i", "1", "--gpu-reset")
    one.smi("mig", "-i", "1", "-cgi", "3g.40gb", "-C")
    shown = list((one.state / "proc_driver/nvidia/capabilities/gpu1/mig").glob("gi*/ci0/access"))
    minor = int(shown[0].read_text().splitlines()[0].partition(":")[2])
    spec = yaml.safe_load(one.run("nvidia-ctk", "cdi", "generate").stdout)
    found = {
        each["name"]: [one["path"] for one in each["containerEdits"]["deviceNodes"]]
        for each in spec["devices"]
    }
    rights = [f"/dev/nvidia-caps/nvidia-cap{minor - 1}", f"/dev/nvidia-caps/nvidia-cap{minor}"]
    assert found["1:0"] == ["/dev/nvidia1", *rights]
    assert "1" not in found
    assert "0" in found


def test_settings_of_the_toolkit_are_written_in_place(node: Make) -> None:
    one = node("a100-pcie-80")
    change = ("nvidia-ctk", "config", "--in-place")
    assert one.run(*change, "--set", "nvidia-container-runtime.mode=cdi").returncode == 0
    text = (one.root / "etc/nvidia-container-runtime/config.toml").read_text()
    assert '[nvidia-container-runtime]\n#debug = "/var/log/nvidia-container-runtime.log"\n' in text
    assert text.count('mode = "cdi"') == 1
    assert one.run(*change, "--set=nvidia-container-runtime.mood=good").returncode == 1


def test_tools_use_the_standard_library_of_old_pythons() -> None:
    """Parse everything as Python 3.6, and allow only imports of the standard library and of these tools."""
    folder = Path(gpuprov_lab.__file__).with_name("silicon")
    ours = {path.stem for path in folder.iterdir()}
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 6))
        for statement in ast.walk(tree):
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            if isinstance(statement, ast.ImportFrom):
                names = [statement.module or ""]
            for name in names:
                assert name.partition(".")[0] in ours | sys.stdlib_module_names, f"{path.name} imports {name}"
