"""Constructors for the parameters of a fault, shared by the families of faults."""

TOOLS = (
    "nvidia-smi",
    "gpu_burn",
    "nvbandwidth",
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "alltoall_perf",
    "dmesg",
    "nvcc",
    "nvidia-ctk",
    "nv-fabricmanager",
    "nvidia-persistenced",
    "ib_write_bw",
    "ib_write_lat",
    "ibv_devinfo",
    "dcgmi",
    "fio",
    "nvme",
    "amd-smi",
    "rocm-smi",
    "rocminfo",
    "rvs",
    "TransferBench",
)
REQUIRED = object()


def gpu(meaning="which GPU (its index on a healthy node)", name="gpu"):
    return {"name": name, "type": "gpu", "default": REQUIRED, "meaning": meaning}


def factor(default, low=0.01, high=1.0):
    meaning = "what remains of the healthy rate"
    return {
        "name": "factor",
        "type": "number",
        "default": default,
        "low": low,
        "high": high,
        "meaning": meaning,
    }


def number(name, default, low, high, meaning):
    return {"name": name, "type": "integer", "default": default, "low": low, "high": high, "meaning": meaning}


def choice(name, default, allowed, meaning):
    return {"name": name, "type": "choice", "default": default, "allowed": list(allowed), "meaning": meaning}


def text(name, default, meaning):
    return {"name": name, "type": "text", "default": default, "meaning": meaning}


def telling(parameter):
    """Mark an optional parameter as part of a fault's identity, as all required ones are."""
    return dict(parameter, telling=True)


def tool():
    return [
        choice("tool", REQUIRED, TOOLS, "which program"),
        text("args", "", "only when its arguments contain this"),
    ]


YES_NO = ("no", "yes")


def onset():
    """Return the parameter for the time from which a fault appears."""
    return number("onset", 0, 0, 10**6, "seconds into a load; 0: from the beginning, without a load as well")
