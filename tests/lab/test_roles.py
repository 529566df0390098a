"""Files, packages and services of each role, read by testinfra, independently of the observer."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

import pytest
from testinfra.host import Host

from tests.lab.images import KINDS, Images
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.role_playbook import SOURCES, Playbook

DRIVER, NCCL, TOOLKIT, CUDA = "580.126.09", "2.29.7-1+cuda12.9", "1.19.1-1", "12.9"
DRIVER_PACKAGES = [
    *("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-modprobe"),
    *("nvidia-persistenced", "firmware-nvidia-gsp", "libcuda1", "libcudadebugger1", "libnvidia-cfg1"),
    *("libnvidia-ml1", "libnvidia-nvvm4", "libnvidia-ptxjitcompiler1", "nvidia-opencl-icd"),
]
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def declared(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield one node of each kind after `gpuprov up`."""
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("roles", KINDS, inventory, images=images.declared()) as running:
        yield running


@pytest.fixture(scope="module", params=[node.name for node in KINDS])
def node(request: pytest.FixtureRequest, declared: Any) -> Any:
    return declared.node(request.param)


@pytest.fixture
def host(node: Any) -> Host:
    """Return a testinfra host with one shared connection, since each command would open its own."""
    return node.testinfra(keep=60)


def held(host: Host) -> set[str]:
    return set(host.check_output("apt-mark showhold").split())


def test_repositories_are_signed_by_the_declared_key_and_work(host: Host) -> None:
    for name in ("nvidia-cuda", "nvidia-container-toolkit", "gpuprov-tools"):
        keyring = host.file(f"/usr/share/keyrings/{name}.gpg")
        assert (keyring.mode, keyring.user, keyring.group) == (0o644, "root", "root")
        assert keyring.size > 200
        source = host.file(f"/etc/apt/sources.list.d/{name}.sources").content_string
        assert f"Signed-By: /usr/share/keyrings/{name}.gpg" in source
    refreshed = host.run("apt-get update")
    assert refreshed.rc == 0, refreshed.stderr
    assert not re.search(r"^[WE]:", refreshed.stderr, re.MULTILINE), refreshed.stderr


def test_nvidias_repository_wins_over_the_distribution(host: Host) -> None:
    policy = host.check_output("apt-cache policy nvidia-kernel-open-dkms")
    assert re.search(r"^ +Candidate: 580\.126\.09-1$", policy, re.MULTILINE), policy
    assert re.search(r"595\.71\.05-1 600$", policy, re.MULTILINE), "a newer one is offered, and not chosen"


def test_the_driver_has_one_version_everywhere_and_is_held(host: Host) -> None:
    for name in DRIVER_PACKAGES:
        package = host.package(name)
        assert package.is_installed, name
        assert package.version == f"{DRIVER}-1", name
    assert set(DRIVER_PACKAGES) <= held(host)
    assert DRIVER in host.file("/proc/driver/nvidia/version").content_string
    assert host.check_output("modinfo -F version nvidia") == DRIVER
    library = host.check_output("readlink -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    assert library.endswith(f"libnvidia-ml.so.{DRIVER}")
    assert f"Driver Version: {DRIVER}" in host.check_output("nvidia-smi")


def test_an_upgrade_moves_nothing_of_the_stack(host: Host) -> None:
    simulated = host.check_output("apt-get --simulate dist-upgrade")
    assert not re.search(
        r"^(Inst|Remv) \S*(nvidia|nccl|cuda|nvlsm|gpu-burn|nvbandwidth)", simulated, re.MULTILINE
    )


def test_nouveau_is_kept_away(host: Host) -> None:
    assert "blacklist nouveau" in host.file("/etc/modprobe.d/blacklist-nouveau.conf").content_string
    assert not host.file("/sys/module/nouveau/initstate").exists
    assert not host.file("/run/reboot-required").exists


def test_the_persistence_daemon_runs_in_persistence_mode(host: Host) -> None:
    service = host.service("nvidia-persistenced")
    assert service.is_running
    assert service.is_enabled
    started = host.check_output("systemctl show --property=ExecStart --value nvidia-persistenced")
    assert "--persistence-mode" in started
    assert "--no-persistence-mode" not in started
    modes = host.check_output("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").splitlines()
    assert len(modes) == 8
    assert set(modes) == {"Enabled"}


def test_fabric_manager_runs_where_there_are_switches_and_only_there(host: Host, node: Any) -> None:
    service = host.service("nvidia-fabricmanager")
    if node.sku != "h100-sxm":
        assert not host.package("nvidia-fabricmanager-580").is_installed
        assert not service.exists
        return
    assert host.package("nvidia-fabricmanager-580").version == f"{DRIVER}-1"
    assert "nvidia-fabricmanager-580" in held(host)
    assert service.is_running
    assert service.is_enabled
    assert host.check_output("nvidia-smi -q -x").count("<state>Completed</state>") == 8


def test_the_declared_toolkit_is_the_default_and_stays_it(host: Host) -> None:
    assert host.package(f"cuda-toolkit-{CUDA.replace('.', '-')}").version == "12.9.1-1"
    assert {"cuda-toolkit-12-9", "cuda-nvcc-12-9", "cuda-cudart-12-9", "libcublas-12-9"} <= held(host)
    assert host.check_output("readlink -f /usr/local/cuda") == f"/usr/local/cuda-{CUDA}"
    assert "Status: manual" in host.check_output("update-alternatives --query cuda").splitlines()
    assert f"release {CUDA}," in host.check_output("bash --login -c 'nvcc --version'")


def test_nccl_is_the_declared_build(host: Host) -> None:
    for name in ("libnccl2", "libnccl-dev"):
        assert host.package(name).version == NCCL
        assert name in held(host)
    assert "NCCL_" not in host.file("/etc/nccl.conf").content_string


def test_the_container_toolkit_is_whole_and_its_specification_written(host: Host) -> None:
    packages = {
        *("nvidia-container-toolkit", "nvidia-container-toolkit-base"),
        *("libnvidia-container-tools", "libnvidia-container1"),
    }
    assert {host.package(name).version for name in packages} == {TOOLKIT}
    assert packages <= held(host)
    assert host.service("nvidia-cdi-refresh.path").is_running
    assert host.service("nvidia-cdi-refresh.path").is_enabled
    assert host.file("/var/run/cdi/nvidia.yaml").size > 0
    assert not host.file("/etc/docker/daemon.json").exists, "no runtime was asked for"


def test_sessions_and_services_may_lock_memory(host: Host) -> None:
    for name in ("rdma-core", "ibverbs-utils", "infiniband-diags", "perftest"):
        assert host.package(name).is_installed
    limits = host.file("/etc/security/limits.d/90-gpuprov-rdma.conf").content_string
    wanted = re.findall(r"^\* +hard memlock (\w+)$", limits, re.MULTILINE)
    assert [host.check_output("ulimit -l")] == wanted, "what a login gets"
    shown = host.check_output("systemctl show --property=DefaultLimitMEMLOCK --value")
    kibibytes = "unlimited" if shown == "infinity" else str(int(shown) // 1024)
    assert [kibibytes] == wanted, "systemd reads the setting, not only has the file"


def test_the_validation_tools_answer_where_the_checks_look_for_them(host: Host) -> None:
    for name, version in (("gpu-burn", "1.1-1"), ("nccl-tests", "2.18.3-1"), ("nvbandwidth", "0.8-1")):
        assert host.package(name).version == version
        assert name in held(host)
    for name in ("gpu_burn", "nvbandwidth", "all_reduce_perf", "all_gather_perf", "alltoall_perf"):
        assert host.file(f"/usr/bin/{name}").mode == 0o755
    assert host.file("/usr/share/gpu-burn/compare.ptx").exists


# --- the playbook itself, started by hand as an Ansible user would


@pytest.fixture(scope="module")
def playbook(declared: Any, tmp_path_factory: pytest.TempPathFactory) -> Playbook:
    return Playbook(declared, tmp_path_factory.mktemp("playbook"))


@pytest.mark.long
def test_a_second_run_changes_nothing(playbook: Playbook) -> None:
    status, output, counts = playbook.run()
    assert status == 0, output
    assert counts.keys() == {node.name for node in KINDS}
    assert {name: each["changed"] for name, each in counts.items()} == dict.fromkeys(counts, 0), output
    assert all(each["ok"] > 60 for each in counts.values()), "the roles did run"


@pytest.mark.long
def test_check_mode_names_what_a_repair_would_change_and_touches_nothing(
    playbook: Playbook, declared: Any
) -> None:
    node = declared.node("gpu-02")
    node.run("echo 'options nouveau modeset=1' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf")
    node.run("sudo apt-mark unhold libcuda1")
    before = node.run(
        "sudo find /etc /usr/share/keyrings -newer /etc/modprobe.d/blacklist-nouveau.conf"
    ).stdout
    status, output, counts = playbook.run("--check", "--limit", "gpu-02")
    assert status == 0, output
    assert counts["gpu-02"]["changed"] == 2, output
    assert node.run("cat /etc/modprobe.d/blacklist-nouveau.conf").stdout == "options nouveau modeset=1\n"
    assert "libcuda1" not in node.run("apt-mark showhold").stdout.split()
    assert (
        node.run("sudo find /etc /usr/share/keyrings -newer /etc/modprobe.d/blacklist-nouveau.conf").stdout
        == before
    )

    status, output, counts = playbook.run("--limit", "gpu-02", "--tags", "nvidia_driver")
    assert status == 0, output
    assert counts["gpu-02"]["changed"] == 2, output
    assert "libcuda1" in node.run("apt-mark showhold").stdout.split()


REFUSALS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "an unknown version lists what there is": (
        "nvidia_driver",
        {"nvidia_driver_version": "999.99.99"},
        ["nvidia-driver-cuda 999.99.99 is not offered", "595.71.05-1"],
    ),
    "a build of NCCL that does not exist": (
        "nccl",
        {"nccl_version": "2.29.7-1+cuda11.0"},
        ["libnccl2 2.29.7-1+cuda11.0 is not offered", "2.29.7-1+cuda12.9"],
    ),
    "a wrong key": (
        "nvidia_repository",
        {"nvidia_repository_cuda_key_fingerprint": "0123456789" * 4},
        ["is not the expected one and was not installed", "0123456789" * 4],
    ),
    "a repository without a key": (
        "nvidia_repository",
        {"nvidia_repository_tools_key_fingerprint": ""},
        ["unsigned repositories are not used"],
    ),
    "a runtime that is not there": (
        "container_toolkit",
        {"container_toolkit_runtimes": ["docker"]},
        ["requests docker, which is not installed"],
    ),
    "sources without a checksum": (
        "validation_tools",
        {"validation_tools_method": "source", "validation_tools_gpu_burn_sha256": ""},
        ["its SHA-256 is not declared", "validation_tools_gpu_burn_sha256"],
    ),
    "a limit that is none": ("rdma", {"rdma_memlock": "lots"}, ['rdma_memlock is "lots"']),
    "a kernel module the GPUs cannot use": (
        "nvidia_driver",
        {"nvidia_driver_flavour": "closed"},
        ["value of nvidia_driver_flavour must be one of"],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_what_cannot_work_is_refused_in_a_sentence_before_anything_changes(
    playbook: Playbook, case: str
) -> None:
    role, variables, sentences = REFUSALS[case]
    status, output, counts = playbook.run("--limit", "gpu-02", "--tags", role, **variables)
    assert status != 0, output
    words = " ".join(output.replace("\\n", " ").replace('\\"', '"').split())
    for sentence in sentences:
        assert sentence in words, output
    assert counts["gpu-02"]["changed"] == 0, output


@pytest.mark.long
def test_a_driver_from_another_source_is_refused(playbook: Playbook, declared: Any) -> None:
    node = declared.node("gpu-02")
    node.run("sudo install -m 755 /dev/null /usr/bin/nvidia-uninstall")
    try:
        status, output, _ = playbook.run("--limit", "gpu-02", "--tags", "nvidia_driver")
    finally:
        node.run("sudo rm /usr/bin/nvidia-uninstall")
    assert status != 0
    assert "A driver from another source is on this machine" in output


@pytest.mark.long
def test_an_upgrade_asks_for_a_reboot_and_a_way_back_is_clean(playbook: Playbook, declared: Any) -> None:
    """Go down one release and up again, on the node with fabric manager; nothing is left behind."""
    node = declared.node("gpu-01")
    tags = ("--limit", "gpu-01", "--tags", "nvidia_driver,nvlink")
    status, output, _ = playbook.run(*tags, nvidia_driver_version="580.95.05")
    assert status == 0, output
    assert "580.126.09" in node.run("cat /proc/driver/nvidia/version").stdout, (
        "a loaded module is not pulled out"
    )
    assert "nvidia-driver 580.95.05" in node.run("cat /run/reboot-required.pkgs").stdout
    mixed = node.run(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Want}\\n' '*nvidia*' libcuda1"
    ).stdout
    assert "580.126.09" not in mixed
    drivers = [line.split() for line in mixed.splitlines() if "580.95.05-1" in line]
    assert len(drivers) >= len(DRIVER_PACKAGES)
    assert {line[2] for line in drivers} == {"hold"}, "every package of the driver is held, none forgotten"

    node.reboot()
    node.run("sudo timeout 120 systemctl is-system-running --wait", check=False, timeout=150)
    assert "580.95.05" in node.run("cat /proc/driver/nvidia/version").stdout
    assert (
        node.run("systemctl is-active nvidia-fabricmanager nvidia-persistenced").stdout.split()
        == ["active"] * 2
    )

    status, output, _ = playbook.run(*tags)
    assert status == 0, output
    node.reboot()
    node.run("sudo timeout 120 systemctl is-system-running --wait", check=False, timeout=150)
    status, output, counts = playbook.run(*tags)
    assert status == 0, output
    assert counts["gpu-01"]["changed"] == 0, output


@pytest.mark.long
def test_new_module_options_ask_for_a_reboot_and_a_comment_does_not(
    playbook: Playbook, declared: Any
) -> None:
    node = declared.node("gpu-02")
    tags = ("--limit", "gpu-02", "--tags", "nvidia_driver")
    node.run("echo '# mine' | sudo tee -a /etc/modprobe.d/gpuprov-nvidia.conf")
    status, output, counts = playbook.run(*tags)
    assert (status, counts["gpu-02"]["changed"]) == (0, 1), output
    assert node.run("test -e /run/reboot-required", check=False).returncode != 0

    options = {"NVreg_RestrictProfilingToAdminUsers": 0}
    status, output, _ = playbook.run(*tags, nvidia_driver_module_options=options)
    assert status == 0, output
    assert "other options" in node.run("cat /run/reboot-required.pkgs").stdout
    status, output, _ = playbook.run(*tags)
    assert status == 0, output
    node.run("sudo rm /run/reboot-required /run/reboot-required.pkgs")


@pytest.mark.long
def test_tools_are_built_from_verified_sources_once(playbook: Playbook, declared: Any) -> None:
    """Real tarballs, checksums, make and installation into a site's own paths; the sources are small."""
    node = declared.node("gpu-02")
    prefix = "/opt/site/bin"
    variables: dict[str, Any] = {
        "validation_tools_method": "source",
        "__validation_tools_build_packages": ["make"],  # needs no compiler
        "validation_tools_gpu_burn_dir": "/opt/site/gpu-burn",
        **{
            f"validation_tools_{name}_path": f"{prefix}/{name}"
            for name in (
                *("gpu_burn", "nvbandwidth", "all_reduce_perf"),
                *("all_gather_perf", "reduce_scatter_perf", "alltoall_perf"),
            )
        },
    }
    node.run("sudo mkdir -p /srv/sources /opt/site/bin && sudo chown ops /srv/sources")
    node.run("sudo install -m 755 /bin/true /usr/local/bin/cmake")
    for name, (version, makefile) in SOURCES.items():
        tree = f"{name}-{version}"
        text = base64.b64encode(makefile.encode()).decode()
        node.run(
            f"mkdir -p /srv/sources/{tree} && cd /srv/sources && echo {text} | base64 -d > {tree}/Makefile "
            f"&& tar czf {tree}.tar.gz {tree}"
        )
        stem = f"validation_tools_{name.replace('-', '_')}"
        variables[f"{stem}_url"] = f"file:///srv/sources/{tree}.tar.gz"
        variables[f"{stem}_sha256"] = node.run(f"sha256sum /srv/sources/{tree}.tar.gz").stdout.split()[0]

    limits = ("--limit", "gpu-02", "--tags", "validation_tools")
    wrong = {**variables, "validation_tools_nvbandwidth_sha256": "0" * 64}
    status, output, _ = playbook.run(*limits, **wrong)
    assert status != 0
    assert "checksum" in output
    assert node.run(f"test -e {prefix}/nvbandwidth", check=False).returncode != 0

    status, output, _ = playbook.run(*limits, **variables)
    assert status == 0, output
    assert (
        node.run(f"stat -c '%a %U' {prefix}/gpu_burn {prefix}/alltoall_perf").stdout == "755 root\n755 root\n"
    )
    assert node.run("cat /opt/site/gpu-burn/compare.ptx").stdout == "ptx\n"
    status, output, counts = playbook.run(*limits, **variables)
    assert (status, counts["gpu-02"]["changed"]) == (0, 0), output

    node.run(f"sudo rm {prefix}/all_gather_perf")
    status, output, _ = playbook.run(*limits, **variables)
    assert status == 0, output
    assert node.run(f"test -x {prefix}/all_gather_perf").returncode == 0
    assert node.run(f"cat {prefix}/all_reduce_perf").stdout.splitlines()[1].startswith("# 0 ")

    with_mpi = {**variables, "validation_tools_mpi": True, "__validation_tools_mpi_build_packages": []}
    status, output, _ = playbook.run(*limits, **with_mpi, validation_tools_mpirun_path="/opt/none/mpirun")
    assert status != 0
    assert "validation_tools_mpirun_path is /opt/none/mpirun, which is not on the machine" in output
    status, output, _ = playbook.run(*limits, **with_mpi)
    assert status == 0, output
    built = node.run(f"cat {prefix}/all_reduce_perf").stdout
    assert built.endswith("# 1 /usr/lib/x86_64-linux-gnu/openmpi\n")
    node.run("sudo rm /usr/bin/mpirun")
    status, output, _ = playbook.run(*limits, **with_mpi)
    assert status == 0, output
    assert "Open MPI" in node.run("mpirun --version").stdout
    status, output, counts = playbook.run(*limits, **with_mpi)
    assert (status, counts["gpu-02"]["changed"]) == (0, 0), output
    node.run("sudo rm -r /opt/site /opt/gpuprov /srv/sources /usr/local/bin/cmake")
