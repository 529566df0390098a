"""validation_tools built from source by nvcc 13 from PyPI with Debian's g++, make and cmake.

The sources are small and build like gpu-burn, nccl-tests and nvbandwidth; if one does not compile, the error
quotes the compiler. Compiling needs no GPU. gpu-burn's own source: test_debian_gpu_burn.py.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.real_compiler import BURN, CUDA, GOOD, HOST, KERNEL, Files, declared, offered, put

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
# gpu-burn before November 2025, including Debian's, has the first two by default.
BROKEN: dict[str, tuple[str, Files, str]] = {
    "an architecture that nvcc no longer knows": (
        "gpu_burn",
        {"Makefile": BURN.replace("90", "50")},
        "nvcc fatal : Unsupported gpu architecture 'compute_50'",
    ),
    "a function that takes more arguments in CUDA 13": (
        "gpu_burn",
        {"gpu_burn-drv.cpp": "#include <cuda.h>\nCUcontext it;\nint made = cuCtxCreate(&it, 0, 0);\n"},
        "gpu_burn-drv.cpp:3:23: error: too few arguments to function",
    ),
    "a header of a package that is not installed": (
        "gpu_burn",
        {"gpu_burn-drv.cpp": "#include <cublas_v2.h>\n" + HOST},
        "gpu_burn-drv.cpp:1:10: fatal error: cublas_v2.h: No such file or directory",
    ),
    "a library that is not there": (
        "gpu_burn",
        {"Makefile": BURN.replace("-lcudart", "-lcublas")},
        "/usr/bin/ld: cannot find -lcublas",
    ),
    "a kernel that is wrong": (
        "nccl_tests",
        {"main.cu": KERNEL.replace("faults, 1", "fault, 1") + HOST},
        'main.cu(4): error: identifier "fault" is undefined',
    ),
}


def toolkit(folder: Path) -> Path:
    """Unpack the wheels into a CUDA toolkit's tree: bin, include, lib64, nvvm."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder),
         *(f"{name}>=13,<14" for name in WHEELS)],
        check=True, timeout=600,
    )  # fmt: skip
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    tree = folder / "nvidia/cu13"
    for program in (*(tree / "bin").iterdir(), *(tree / "nvvm/bin").iterdir()):
        program.chmod(0o755)
    (tree / "lib64").symlink_to("lib")
    (tree / "lib/libcudart.so").symlink_to("libcudart.so.13")
    return tree


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"),)
    with running_lab("nvcc", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        put(running, running.node("gpu-01"), toolkit(tmp_path_factory.mktemp("cuda")), CUDA)
        yield running


def test_the_tools_are_built_and_run(lab: Lab, operator: Operator, tmp_path: Path) -> None:
    done = operator.call("up", "--yes", "--no-canary", **declared(lab, tmp_path, "1.0"))
    assert done.returncode == ExitCode.OK, said(done)
    node = lab.node("gpu-01")
    version = node.run(f"{CUDA}/bin/nvcc --version").stdout
    assert "release 13." in version
    assert ".target sm_90" in node.run("cat /usr/share/gpu-burn/compare.ptx").stdout
    for program in ("gpu_burn", "nvbandwidth", "all_reduce_perf", "alltoall_perf"):
        ran = node.run(f"/usr/bin/{program}", check=False)
        assert "CUDA driver version is insufficient" in ran.stdout or "no CUDA-capable" in ran.stdout, ran
    again = operator.call("up", "--yes", "--no-canary", **declared(lab, tmp_path, "1.0"))
    assert "nothing to do" in said(again) or again.returncode == ExitCode.OK, said(again)


@pytest.mark.parametrize("case", sorted(BROKEN))
def test_what_cannot_be_compiled_is_refused_in_the_compilers_words(
    case: str, lab: Lab, operator: Operator, tmp_path: Path
) -> None:
    tool, changed, words = BROKEN[case]
    version = f"2.{sorted(BROKEN).index(case)}"
    variables = declared(lab, tmp_path, "1.0") | offered(lab, tool, version, GOOD[tool] | changed, tmp_path)
    done = operator.call("up", "--yes", "--no-canary", **variables)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert f"validation_tools · Compile {tool.replace('_', '-')}" in said(done)
    assert words in said(done)
    assert "Waiting for unfinished jobs" not in said(done)


def test_a_kernel_of_another_name_is_declared(lab: Lab, operator: Operator, tmp_path: Path) -> None:
    """Since May 2026, gpu-burn makes compare.fatbin."""
    files = GOOD["gpu_burn"] | {"Makefile": BURN.replace("ptx", "fatbin")}
    variables = declared(lab, tmp_path, "1.0") | offered(lab, "gpu_burn", "3.0", files, tmp_path)
    refused = operator.call("up", "--yes", "--no-canary", **variables)
    assert refused.returncode == ExitCode.UNHEALTHY, said(refused)
    assert "gpu-burn 3.0 was compiled, and no compare.ptx came of it" in said(refused)
    variables["validation_tools_gpu_burn_kernel"] = "compare.fatbin"
    done = operator.call("up", "--yes", "--no-canary", **variables)
    assert done.returncode == ExitCode.OK, said(done)
    # 0xBA55ED50 is the magic number of nvcc's packed files for the driver.
    begins = lab.node("gpu-01").run("od -An -tx4 -N4 /usr/share/gpu-burn/compare.fatbin").stdout
    assert begins.strip() == "ba55ed50"
