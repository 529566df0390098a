"""Helpers for builds of the tools with a real compiler."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from gpuprov_lab import node as lab_node
from tests.lab.lab_nodes import Lab, LabNode

CUDA = "/opt/cuda"
KERNEL = """\
extern "C" __global__ void compare(const float *one, int *faults, unsigned long iterations) {
    unsigned long at = blockIdx.x * (unsigned long)blockDim.x + threadIdx.x;
    for (unsigned long i = 1; i < iterations; ++i) {
        if (one[at] != one[at + i]) atomicAdd(faults, 1);
    }
}
"""
HOST = """\
#include <cstdio>
#include <cuda_runtime.h>
int main() {
    int gpus = 0;
    return !printf("%s\\n", cudaGetErrorString(cudaGetDeviceCount(&gpus)));
}
"""
# Like gpu-burn's: a g++ program and an nvcc kernel, built in parallel by -j8.
BURN = """\
COMPUTE ?= 90
gpu_burn: gpu_burn-drv.o compare.ptx
	g++ -o $@ $< -L${CUDAPATH}/lib64 -Wl,-rpath=${CUDAPATH}/lib64 -lcudart
%.o: %.cpp
	g++ -O3 -I${CUDAPATH}/include -std=c++17 -c $<
%.ptx: %.cu
	${CUDAPATH}/bin/nvcc -I${CUDAPATH}/include -arch=compute_${COMPUTE} -ptx $< -o $@
"""
COLLECTIVE = """\
all:
	mkdir -p build
	for n in all_reduce all_gather reduce_scatter alltoall; do \\
	${CUDA_HOME}/bin/nvcc -arch=sm_90 -o build/$${n}_perf main.cu || exit 1; done
"""
CMAKE = """\
cmake_minimum_required(VERSION 3.20)
project(nvbandwidth LANGUAGES CUDA CXX)
add_executable(nvbandwidth main.cu)
"""
Files = dict[str, str]
GOOD: dict[str, Files] = {
    "gpu_burn": {"Makefile": BURN, "compare.cu": KERNEL, "gpu_burn-drv.cpp": HOST},
    "nccl_tests": {"Makefile": COLLECTIVE, "main.cu": KERNEL + HOST},
    "nvbandwidth": {"CMakeLists.txt": CMAKE, "main.cu": KERNEL + HOST},
}


def put(lab: Lab, node: LabNode, tree: Path, place: str) -> None:
    """Copy a folder to the node."""
    packed = subprocess.run(
        ["tar", "-C", str(tree), "--mode=go=u-w", "-cf", "-", "."], stdout=subprocess.PIPE, check=True
    ).stdout
    unpack = f"sudo mkdir -p {place} && sudo tar -C {place} --no-same-owner -xf -"
    command = lab_node.ssh(lab.record, lab.record.node(node.name), [unpack])
    subprocess.run(command, input=packed, check=True, timeout=300)


def offered(lab: Lab, tool: str, version: str, files: Files, folder: Path) -> dict[str, Any]:
    """Pack these sources, and return the variables with which the role builds them."""
    archive = folder / f"{tool}-{version}.tar.gz"
    with tarfile.open(archive, "w:gz") as pack:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{tool}-{version}/{name}")
            member.size = len(text.encode())
            pack.addfile(member, io.BytesIO(text.encode()))
    node = lab.node("gpu-01")
    put(lab, node, folder, "/srv/sources")
    path = f"/srv/sources/{archive.name}"
    stem = f"validation_tools_{tool}"
    return {
        f"{stem}_version": version,
        f"{stem}_url": f"file://{path}",
        f"{stem}_sha256": node.run(f"sha256sum {path}").stdout.split()[0],
    }


def declared(lab: Lab, folder: Path, version: str) -> dict[str, Any]:
    """Return the role's variables with good sources of all tools; nvidia_repository refreshes apt."""
    found: dict[str, Any] = {
        "gpuprov_roles": ["nvidia_repository", "validation_tools"],
        "validation_tools_method": "source",
        "validation_tools_cuda_home": CUDA,
    }
    for tool, files in GOOD.items():
        found |= offered(lab, tool, version, files, folder)
    return found
