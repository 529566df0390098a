"""MIG partitions of each GPU; `mig.devices` lists texts like "3g.40gb,2g.20gb" in index order."""

from provision.node.observe.probe import FAMILIES, Probe, answered, whole_family


def parse_mig(names, output):
    """Parse `nvidia-smi -L`, with a line per GPU and below it a line per MIG device that programs can use."""
    gpus = []
    for line in output.splitlines():
        words = line.split()
        if line.startswith("GPU "):
            gpus.append([])
        elif words[:1] == ["MIG"] and len(words) > 2 and gpus:
            gpus[-1].append(words[1])
        elif words:
            raise answered("nvidia-smi", line)
    if not gpus:
        raise answered("nvidia-smi", output)
    return {name: [",".join(sorted(gpu, reverse=True)) for gpu in gpus] for name in names}


FAMILIES["mig"] = whole_family(
    {}, tools={"devices": lambda name: Probe([name], command=["nvidia-smi", "-L"], parse=parse_mig)}
)
