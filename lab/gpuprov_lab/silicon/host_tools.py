"""Tools of the host, nvme (nvme-cli) and docker, limited to what health checks use."""

import json
import sys

import host
from amd import readings
from amd.rocminfo import rocminfo


def nvme(node, arguments: list) -> int:
    """Run `nvme smart-log -o json /dev/nvme0`."""
    words = [
        word for word in arguments if word not in ("-o", "--output-format", "json", "--output-format=json")
    ]
    if words[:1] != ["smart-log"] or len(words) != 2 or len(words) == len(arguments):
        print("ERROR: only smart-log DEVICE -o json is simulated", file=sys.stderr)
        return 1
    name = words[1].rpartition("/")[2]
    number = name[len("nvme") :]
    if name[:4] != "nvme" or not number.isdigit() or int(number) not in host.drives(node):
        print(f"{words[1]}: No such file or directory", file=sys.stderr)
        return 1
    if node.fault("nvme_dead", drive=int(number)):
        print("smart log: Resource temporarily unavailable", file=sys.stderr)
        return 1
    print(json.dumps(host.smart(node, int(number)), indent=2))
    return 0


def docker(node, arguments: list) -> int:
    """Run `docker run --rm --device nvidia.com/gpu=all IMAGE nvidia-smi -L`; rocminfo for AMD GPUs."""
    amds = node.vendor == "amd"
    kind, program = ("amd.com/gpu", ["rocminfo"]) if amds else ("nvidia.com/gpu", ["nvidia-smi", "-L"])
    if arguments[:1] != ["run"] or arguments[-len(program) :] != program:
        print(f"docker: only a run of {' '.join(program)} is simulated", file=sys.stderr)
        return 125
    broken = node.fault("container_broken")
    if broken and broken["how"] == "refused":
        print(
            "docker: Error response from daemon: CDI device injection failed: unresolvable CDI devices "
            f"{kind}=all",
            file=sys.stderr,
        )
        return 125
    gpus = readings.answering(node) if amds else node.usable()
    if broken:
        gpus = gpus[: len(gpus) // 2] if broken["how"] == "some" else []
    if amds:
        node.gpus = gpus
        return rocminfo(node, [])
    if not gpus:
        print("Failed to initialize NVML: Unknown Error")
        return 255
    for index, gpu in enumerate(gpus):
        print("GPU {}: {} (UUID: {})".format(index, node.sku["name"], gpu["uuid"]))
    return 0
