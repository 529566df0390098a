"""Facts from the CDI specification, the driver's device files, and the settings of container runtimes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.node.machine import Tree

DRIVER = "580.126.09"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def device(path: str, minor: int | None) -> str:
    numbers = f"              major: 0\n              minor: {minor}\n" if minor is not None else ""
    return f"            - path: {path}\n{numbers}              permissions: rwm\n"


def specification(*gpus: str, driver: str = DRIVER, minor: int | None = 0) -> str:
    """Return a specification in the form of `nvidia-ctk cdi generate` 1.19, shortened."""
    devices = [
        f'    - name: "{index}"\n      containerEdits:\n        deviceNodes:\n{device(path, minor)}'
        for index, path in enumerate(gpus)
    ]
    everything = "".join(device(path, minor) for path in gpus)
    return (
        "---\ncdiVersion: 0.7.0\nkind: nvidia.com/gpu\ndevices:\n" + "".join(devices) + "    - name: all\n"
        f"      containerEdits:\n        deviceNodes:\n{everything}"
        "        additionalGids:\n            - 39\n"
        "containerEdits:\n"
        f"    env:\n        - NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}\n        - NVIDIA_VISIBLE_DEVICES=void\n"
        "    deviceNodes:\n        - path: /dev/nvidiactl\n          major: 0\n          minor: 0\n"
        "    hooks:\n        - hookName: createContainer\n          path: /usr/bin/nvidia-cdi-hook\n"
        "          args:\n            - nvidia-cdi-hook\n            - create-symlinks\n"
        f"            - --link\n            - libcuda.so.1::{LIBRARIES}/libcuda.so\n"
        "          env:\n            - NVIDIA_CTK_DEBUG=false\n"
        f"    mounts:\n        - hostPath: {LIBRARIES}/libcuda.so.{driver}\n"
        f"          containerPath: {LIBRARIES}/libcuda.so.{driver}\n          options:\n            - ro\n"
    )


class Machine(Tree):
    """Two GPUs. Plain files replace device files, which only root can create; their numbers are 0:0."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for minor in ("0", "1"):
            self.gpu(f"0000:{minor}b:00.0", minor)
        self.file("/usr/bin/nvidia-cdi-hook", "", 0o755)
        self.file(f"{LIBRARIES}/libcuda.so.{DRIVER}", "")
        for name in ("nvidia0", "nvidia1", "nvidiactl"):
            self.device(name)

    def gpu(self, address: str, minor: str) -> None:
        text = f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n"
        self.file(f"/proc/driver/nvidia/gpus/{address}/information", text)

    def device(self, name: str) -> None:
        self.file(f"/dev/{name}", "")

    def write(self, text: str) -> None:
        self.file("/var/run/cdi/nvidia.yaml", text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_fresh_specification(machine: Machine) -> None:
    machine.write(specification("/dev/nvidia0", "/dev/nvidia1"))
    names = ("version", "devices", "driver_version", "missing", "stale", "elsewhere")
    found = ["0.7.0", ["0", "1", "all"], DRIVER, [], [], []]
    assert list(machine.values(*(f"container.cdi.{name}" for name in names)).values()) == found


def test_without_a_specification_there_is_nothing_to_compare(machine: Machine) -> None:
    for name in ("version", "devices", "driver_version", "missing", "stale"):
        assert machine.value(f"container.cdi.{name}") is None


def test_a_gpu_it_lacks_is_named(machine: Machine) -> None:
    machine.write(specification("/dev/nvidia0"))
    assert machine.value("container.cdi.missing") == ["/dev/nvidia1"]
    assert machine.value("container.cdi.stale") == []


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        (specification("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"), ["/dev/nvidia2"]),
        (specification("/dev/nvidia0", "/dev/nvidia1", minor=5), ["/dev/nvidia0", "/dev/nvidia1"]),
        (
            specification("/dev/nvidia0", "/dev/nvidia1", driver="570.124.06"),
            [f"{LIBRARIES}/libcuda.so.570.124.06"],
        ),
        (specification("/dev/nvidia0", "/dev/nvidia1", minor=None), []),
    ],
    ids=["a GPU that left", "other numbers", "the last driver's library", "numbers not told"],
)
def test_what_it_names_and_the_machine_has_not(machine: Machine, text: str, stale: list[str]) -> None:
    machine.write(text)
    assert machine.value("container.cdi.stale") == stale


def test_another_driver_than_the_one_in_use_is_stale(machine: Machine) -> None:
    """Its libraries may still exist; a mismatch of loaded driver and libraries is a separate fault."""
    line = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sat Aug 19 01:15:15 UTC 2023\nGCC version: x\n"
    )
    machine.write(specification("/dev/nvidia0", "/dev/nvidia1"))
    machine.link(f"{LIBRARIES}/libnvidia-ml.so.1", "libnvidia-ml.so.570.124.06")
    machine.file("/proc/driver/nvidia/version", line.format(DRIVER))
    assert machine.value("container.cdi.stale") == []
    machine.file("/proc/driver/nvidia/version", line.format("570.124.06"))
    assert machine.value("container.cdi.stale") == [f"driver {DRIVER}"]


def test_of_a_partitioned_gpu_its_instances_count(machine: Machine) -> None:
    folder = "/proc/driver/nvidia/capabilities/gpu1/mig/gi2"
    machine.file(f"{folder}/access", "DeviceFileMinor: 156\nDeviceFileMode: 292\n")
    machine.file(f"{folder}/ci0/access", "DeviceFileMinor: 157\n")
    machine.file("/proc/driver/nvidia/capabilities/gpu1/mig/gi3/access", "DeviceFileMinor: 165\n")
    machine.write(specification("/dev/nvidia0", "/dev/nvidia1"))
    caps = ["/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap157"]
    assert machine.value("container.cdi.missing") == caps
    for path in (*caps, "/dev/nvidia-caps/nvidia-cap138"):
        machine.file(path, "")
    machine.write(specification("/dev/nvidia0", "/dev/nvidia1", *caps, "/dev/nvidia-caps/nvidia-cap138"))
    assert machine.value("container.cdi.missing") == []
    assert machine.value("container.cdi.stale") == ["/dev/nvidia-caps/nvidia-cap138"], "its instance is gone"


def test_long_lists_are_cut_and_counted(machine: Machine) -> None:
    for minor in range(2, 60):
        machine.gpu(f"0001:{minor:02x}:00.0", str(minor))
    machine.write(specification("/dev/nvidia0"))
    missing = machine.value("container.cdi.missing")
    assert len(missing) == 33
    assert missing[-1] == "and 27 more"


def test_another_specification_of_the_same_devices_is_named(machine: Machine) -> None:
    machine.file("/etc/cdi/nvidia.yaml", specification("/dev/nvidia0"))
    machine.file("/etc/cdi/old.json", json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}))
    machine.file("/etc/cdi/vendor.yaml", "cdiVersion: 0.5.0\nkind: vendor.com/net\n")
    assert machine.value("container.cdi.elsewhere") == ["/etc/cdi/nvidia.yaml", "/etc/cdi/old.json"]


@pytest.mark.parametrize("text", ["", "<html>404</html>", "{}", "- a\n- b\n"])
def test_what_is_no_specification_is_a_problem(machine: Machine, text: str) -> None:
    machine.write(text)
    assert "not a CDI specification" in machine.problem("container.cdi.devices")


def test_device_files_without_their_link_are_named(machine: Machine) -> None:
    machine.device("nvidia-nvswitch0")
    machine.device("nvidia-caps/nvidia-cap1")
    found = ["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
    assert machine.value("container.dev_char.missing") == found
    machine.link("/dev/char/0:0", "../nvidia0")  # all replacements of device files have the same number
    assert machine.value("container.dev_char.missing") == []


# --- runtimes


@pytest.fixture
def host(tree: Tree) -> Tree:
    return tree


def test_docker_knows_the_runtime_and_cdi(host: Tree) -> None:
    assert host.value("container_runtime.docker.path") is None
    assert host.value("container_runtime.docker.cdi") is None
    settings = {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "features": {"cdi": True}}
    host.file("/etc/docker/daemon.json", json.dumps(settings))
    assert host.value("container_runtime.docker.path") == "nvidia-container-runtime"
    assert host.value("container_runtime.docker.cdi") is True


@pytest.mark.parametrize(
    ("text", "about"),
    [('{\n "a": 1,\n}', "line 3 column 1"), ("[]", "not an object"), ("{'a': 1}", "line 1 column 2")],
)
def test_broken_settings_of_docker_are_a_problem_with_the_line(host: Tree, text: str, about: str) -> None:
    host.file("/etc/docker/daemon.json", text)
    problem = host.problem("container_runtime.docker.path")
    assert "/etc/docker/daemon.json" in problem
    assert about in problem


def containerd(version: int, plugin: str, quote: str = '"') -> str:
    name = f"plugins.{quote}{plugin}{quote}"
    return (
        f"version = {version}\n\n[plugins]\n\n  [{name}]\n    enable_cdi = true\n\n"
        f"    [{name}.containerd.runtimes.nvidia]\n      runtime_type = 'io.containerd.runc.v2'\n"
        f"      [{name}.containerd.runtimes.nvidia.options]\n"
        '        BinaryName = "/usr/bin/nvidia-container-runtime"  # ours\n'
    )


@pytest.mark.parametrize(
    "text",
    [
        containerd(2, "io.containerd.grpc.v1.cri"),
        containerd(3, "io.containerd.cri.v1.runtime"),
        containerd(3, "io.containerd.cri.v1.runtime", "'"),
    ],
)
def test_containerd_in_both_formats(host: Tree, text: str) -> None:
    """Files alone decide on a machine without the program."""
    host.file("/etc/containerd/conf.d/99-nvidia.toml", text)
    assert host.value("container_runtime.containerd.imported") is False
    assert host.value("container_runtime.containerd.path") is None
    main = text.partition("\n")[0]
    host.file("/etc/containerd/config.toml", f'# imports = ["/etc/containerd/conf.d/*.toml"]\n{main}\n')
    assert host.value("container_runtime.containerd.imported") is False
    host.file("/etc/containerd/config.toml", f'{main}\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    assert host.value("container_runtime.containerd.imported") is True
    assert host.value("container_runtime.containerd.path") == "/usr/bin/nvidia-container-runtime"
    assert host.value("container_runtime.containerd.cdi") is True
    assert host.value("container_runtime.containerd.keeps_runc") is False
    with_runc = text.replace("runtimes.nvidia]", "runtimes.runc]") + text
    host.file("/etc/containerd/conf.d/99-nvidia.toml", with_runc)
    assert host.value("container_runtime.containerd.keeps_runc") is True
    host.file("/etc/containerd/conf.d/zz-site.toml", main)
    assert "zz-site.toml may override our drop-in" in host.problem("container_runtime.containerd.path")


TYPE, UNCONFIGURED = "container_runtime.containerd.runtime_type", "container_runtime.all.unconfigured"
# containerd 1.6.20 config dump, shortened: a drop-in without runtime_type; format 3 next to a main file of 2.
WITHOUT_TYPE = """version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          runtime_engine = ""
          runtime_type = ""

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
"""
IGNORED = WITHOUT_TYPE.replace("nvidia", "runc").replace(
    'runtime_type = ""', 'runtime_type = "io.containerd.runc.v2"'
)
RIGHT = IGNORED + IGNORED.partition("runtimes]")[2].replace("runc", "nvidia").replace("nvidia.v2", "runc.v2")


@pytest.mark.parametrize(
    ("dump", "kind", "known"),
    [
        (WITHOUT_TYPE, None, False),
        (IGNORED, None, False),
        (RIGHT, "io.containerd.runc.v2", True),
        # containerd 2.3.2 and 2.3.4
        *[("containerd: drop-in config version 4 higher than root config version 2\n",) * 2 + (False,)],
    ],
)
def test_containerds_effective_configuration_decides(host: Tree, dump: str, kind: str, known: bool) -> None:
    host.file("/etc/containerd/config.toml", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    text = containerd(2, "io.containerd.grpc.v1.cri")
    host.file(
        "/etc/containerd/conf.d/99-nvidia.toml", text.replace("runtimes.nvidia]", "runtimes.runc]") + text
    )
    host.file("/etc/dump", dump)
    host.tool("containerd", f"cat {host.root}/etc/dump")
    assert host.value(TYPE) == (kind.strip() if kind else None)
    assert host.value(UNCONFIGURED) == ([] if known else ["containerd"])


def test_files_are_merged_as_containerd_does_where_it_cannot_be_run(host: Tree) -> None:
    host.tool(
        "containerd", "echo 'containerd: open /etc/containerd/config.toml: permission denied' >&2; exit 1"
    )
    text = containerd(3, "io.containerd.cri.v1.runtime")
    host.file(
        "/etc/containerd/conf.d/99-nvidia.toml", text.replace("runtimes.nvidia]", "runtimes.runc]") + text
    )
    for main, kind in (
        ('version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n', "io.containerd.runc.v2"),
        ('version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n', None),
        ("version = 3\n", None),
    ):
        host.file("/etc/containerd/config.toml", main)
        assert host.value(TYPE) == kind
        assert host.value(UNCONFIGURED) == ([] if kind else ["containerd"])


def test_crio_and_the_mode_of_the_runtime(host: Tree) -> None:
    crio = '[crio]\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    host.file("/etc/crio/conf.d/99-nvidia.toml", crio)
    assert host.value("container_runtime.crio.path") == "/usr/bin/nvidia-container-runtime"
    mode = '[nvidia-container-cli]\nmode = "no"\n[nvidia-container-runtime]\n#mode = "x"\nmode = "legacy"\n'
    host.file("/etc/nvidia-container-runtime/config.toml", mode)
    assert host.value("container_runtime.nvidia.mode") == "legacy"


def test_which_runtimes_there_are_and_which_were_not_told(host: Tree) -> None:
    assert host.value("container_runtime.all.installed") == []
    for name in ("podman", "dockerd", "containerd"):
        host.file(f"/usr/bin/{name}", "", 0o755)
    assert host.value("container_runtime.all.installed") == ["containerd", "docker", "podman"]
    assert host.value("container_runtime.all.unconfigured") == ["docker"], "its containerd is its own affair"
    host.file("/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    assert host.value("container_runtime.all.unconfigured") == []
    assert host.value("container_runtime.all.without_cdi") == ["docker"]
    host.file("/usr/bin/kubelet", "", 0o755)
    assert host.value("container_runtime.all.unconfigured") == ["containerd"]


def test_a_service_older_than_its_settings_needs_a_restart(host: Tree) -> None:
    fact = "container_runtime.docker.restart_required"
    assert host.value(fact) is False
    host.link("/run/systemd/units/invocation:docker.service", "0de9b82ea42f4a97ab9b69b09ae4120d")
    host.file("/run/gpuprov/restart-required/docker.service", "0de9b82ea42f4a97ab9b69b09ae4120d\n")
    assert host.value(fact) is True
    (host.root / "run/systemd/units/invocation:docker.service").unlink()
    assert host.value(fact) is False, "it does not run"
    host.link("/run/systemd/units/invocation:docker.service", "11111111111111111111111111111111")
    assert host.value(fact) is False, "it was restarted since"
