"""Debian's gpu-burn source package, built by the role with Debian's nvcc 12.4 and cuBLAS in /usr.

Its source comes from the Debian mirror that the lab uses. If that mirror has no source packages,
GPUPROV_GPU_BURN_SOURCE may name a tarball of gpu-burn; without it these tests are skipped, and only a small
cuBLAS program is built.
"""

from __future__ import annotations

import base64
import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.real_compiler import BURN, GOOD, declared, offered

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PLACE = "/srv/gpu-burn.tar"
# A program that uses cuBLAS and the driver's library, as gpu_burn does.
MULTIPLIES = """\
#include <cstdio>
#include <cublas_v2.h>
#include <cuda.h>
int main() {
    cublasHandle_t it;
    const char *why = "";
    cuGetErrorString(cuInit(0), &why);
    return !printf("%s, %s\\n", why, cublasGetStatusString(cublasCreate(&it)));
}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a node with Debian's CUDA toolkit: 1.9 GB of packages, nvcc 12.4 and cuBLAS in /usr."""
    nodes = (NodeSpec("gpu-01", "h100-sxm"),)
    with running_lab("nvccdeb", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        running.node("gpu-01").as_root(
            "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq "
            "--no-install-recommends nvidia-cuda-toolkit",
            timeout=1200,
        )
        yield running


def with_usr(lab: Lab, folder: Path) -> dict[str, Any]:
    return declared(lab, folder, "1.0") | {"validation_tools_cuda_home": "/usr"}


@pytest.fixture(scope="module")
def burn(lab: Lab) -> dict[str, Any]:
    """Return the variables with which the role builds the upstream source of Debian's gpu-burn."""
    node, stem = lab.node("gpu-01"), "validation_tools_gpu_burn"
    if given := os.environ.get("GPUPROV_GPU_BURN_SOURCE"):
        packed = base64.b64encode(Path(given).read_bytes()).decode()
        node.as_root(f"mkdir -p /srv && base64 -d > {PLACE}", said=packed)
        url, digest = f"file://{PLACE}", node.run(f"sha256sum {PLACE}").stdout.split()[0]
    else:
        node.as_root(
            "sed 's/^deb /deb-src /' /etc/apt/sources.list > /etc/apt/sources.list.d/sources.list && "
            "apt-get update -qq",
            timeout=300,
        )
        listed = node.run("apt-get source --print-uris gpu-burn").stdout
        found = re.search(r"'(\S+\.orig\.tar\.\w+)' \S+ \d+ SHA256:(\w{64})", listed)
        assert found, listed
        url, digest = found.groups()
        got = node.run(f"sudo /usr/lib/apt/apt-helper download-file {url} {PLACE}", check=False)
        if "404" in got.stdout + got.stderr:
            pytest.skip(f"this mirror of Debian has no source packages ({url})")
        assert got.returncode == 0, got
    return {f"{stem}_version": "20240115", f"{stem}_url": url, f"{stem}_sha256": digest}


def test_debians_toolkit_in_usr_links_cublas(lab: Lab, operator: Operator, tmp_path: Path) -> None:
    makefile = BURN.replace("-lcudart", "-lcublas -lcuda")
    files = GOOD["gpu_burn"] | {"Makefile": makefile, "gpu_burn-drv.cpp": MULTIPLIES}
    variables = with_usr(lab, tmp_path) | offered(lab, "gpu_burn", "1.0", files, tmp_path)
    wrong = operator.call(
        "up", "--yes", "--no-canary", **variables | {"validation_tools_gpu_burn_sha256": "0" * 64}
    )
    assert wrong.returncode == ExitCode.UNHEALTHY, said(wrong)
    assert "validation_tools · Download gpu-burn" in said(wrong)
    assert f"did not match {'0' * 64}; it was {variables['validation_tools_gpu_burn_sha256']}" in said(wrong)
    node = lab.node("gpu-01")
    assert node.run("test -e /usr/bin/gpu_burn", check=False).returncode != 0
    done = operator.call("up", "--yes", "--no-canary", **variables)
    assert done.returncode == ExitCode.OK, said(done)
    ran = node.run("/usr/bin/gpu_burn").stdout
    assert ran == "no CUDA-capable device is detected, the library was not initialized\n"


def test_debians_gpu_burn_is_built_and_says_what_is_missing(
    lab: Lab, operator: Operator, burn: dict[str, Any], tmp_path: Path
) -> None:
    done = operator.call("up", "--yes", "--no-canary", **with_usr(lab, tmp_path) | burn)
    assert done.returncode == ExitCode.OK, said(done)
    node = lab.node("gpu-01")
    assert node.run("head -c 4 /usr/bin/gpu_burn").stdout == "\x7fELF"
    needed = node.run("readelf -d /usr/bin/gpu_burn").stdout
    assert "[libcublas.so.12]" in needed
    assert "[libcuda.so.1]" in needed
    kernel = node.run("cat /usr/share/gpu-burn/compare.ptx").stdout
    assert "Cuda compilation tools, release 12.4" in kernel
    assert ".visible .entry compare(" in kernel
    # This version restarts workers for ever: the group is killed, and the first workers' output is enough.
    node.run("cd /usr/share/gpu-burn && timeout -s KILL 5 gpu_burn -tc 1 > /tmp/said 2>&1", check=False)
    words = r"Error (gpu_burn-drv.cpp:[0-9]*): no CUDA-capable device is detected"
    assert node.run(f"grep -c '{words}' /tmp/said").returncode == 0
    checked = operator.call("validate", "--checks", "gpu_burn", **burn)
    assert checked.returncode == ExitCode.INCOMPLETE, said(checked)
    cause = "ERROR gpu_burn: gpu_burn cannot use the GPUs: no CUDA-capable device is detected"
    assert cause in said(checked)


@pytest.mark.usefixtures("burn")
def test_debians_gpu_burn_with_a_wrong_line_is_refused_with_that_line(
    lab: Lab, operator: Operator, tmp_path: Path
) -> None:
    packed = lab.node("gpu-01").run(f"base64 {PLACE}").stdout
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        texts = {member.name.partition("/")[2]: archive.extractfile(member) for member in members}
        files = {name: text.read().decode() for name, text in texts.items() if text}
    before, call, after = files["gpu_burn-drv.cpp"].partition("cuInit(0)")
    assert call, "this gpu-burn has no such line"
    line = before.count("\n") + 1
    files["gpu_burn-drv.cpp"] = f"{before}cuInit(O){after}"
    variables = with_usr(lab, tmp_path) | offered(lab, "gpu_burn", "20240115.1", files, tmp_path)
    done = operator.call("up", "--yes", "--no-canary", **variables)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert "validation_tools · Compile gpu-burn" in said(done)
    pattern = rf"gpu_burn-drv\.cpp:{line}:\d+: error: .O. was not declared in this scope"
    assert re.search(pattern, said(done)), said(done)
