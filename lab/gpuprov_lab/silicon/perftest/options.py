"""The command line of perftest's programs, and the selection of a port."""

import sys

import nics

_VALUES = {
    "-d": "device", "--ib-dev": "device", "-i": "ib_port", "--ib-port": "ib_port",
    "-p": "port", "--port": "port",
    "-s": "size", "--size": "size", "-q": "qps", "--qp": "qps", "-n": "iters", "--iters": "iters",
    "-D": "duration", "--duration": "duration", "-x": "gid", "--gid-index": "gid",
    "-m": "mtu", "--mtu": "mtu",
    "--use_cuda": "cuda", "--use_rocm": "rocm",
    "-Q": "cq_mod", "--cq-mod": "cq_mod", "-t": "depth", "--tx-depth": "depth",
}  # fmt: skip
_FLAGS = {
    "-F": "force", "--CPU-freq": "force", "--report_gbits": "gbits", "--perform_warm_up": "warm",
    "--use_cuda_dmabuf": "dmabuf", "--use_rocm_dmabuf": "dmabuf",
    "-b": "both", "--bidirectional": "both", "-a": "all", "--all": "all",
    "-R": "rdma_cm", "--rdma_cm": "rdma_cm", "-N": "no_peak", "--noPeak": "no_peak",
}  # fmt: skip
_CUDA_OPTIONS = ("--use_cuda", "--use_cuda_dmabuf")
_ROCM_OPTIONS = ("--use_rocm", "--use_rocm_dmabuf")
_NUMBERS = ("ib_port", "port", "size", "qps", "iters")


class UsageError(Exception):
    """A rejected command line; the text is getopt's error."""


class UnsupportedError(Exception):
    """GPU memory of a kind that perftest was not built for."""


class RefusedError(Exception):
    """Options that the program does not support; the text is perftest's error."""


def parse(node, arguments: list, defaults: dict) -> dict:
    """Parse the options over `defaults`. Raises UsageError, UnsupportedError."""
    found = dict({"ib_port": "1", "port": "18515", "qps": "1", "host": ""}, **defaults)
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name in _CUDA_OPTIONS and node.fault("perftest_without_cuda"):
            raise UsageError(f"unrecognized option '{name}'")
        # perftest is built for the GPUs of the node.
        if name in _ROCM_OPTIONS and (node.vendor != "amd" or node.fault("perftest_without_cuda")):
            raise UnsupportedError
        if name in _FLAGS:
            found[_FLAGS[name]] = True
        elif name in _VALUES:
            if not equals and not words:
                raise UsageError(f"option requires an argument -- '{name.lstrip('-')}'")
            found[_VALUES[name]] = value if equals else words.pop(0)
        elif name.startswith("-"):
            raise UsageError(f"unrecognized option '{name}'")
        elif found["host"]:
            raise UsageError("too many arguments")
        else:
            found["host"] = name
    for key in _NUMBERS:
        if not found[key].isdigit():
            raise UsageError(f"invalid argument '{found[key]}'")
        found[key] = int(found[key])
    return found


def explain(program: str, why: UsageError) -> None:
    """Print the error and the usage for an invalid command line."""
    print(f"{program}: {why}", file=sys.stderr)
    print(" Invalid Command or flag.", file=sys.stderr)
    print(" Please check command line and run again.\n", file=sys.stderr)
    print(f"Usage:\n  {program}            start a server and wait for connection")
    print(f"  {program} <host>     connect to server at <host>\n")
    print(" Parser function exited with Error", file=sys.stderr)


def card(node, options: dict):
    """Return the requested card; None, after perftest's error, if its port cannot be used."""
    cards = {card["name"]: card for card in nics.working(node)}
    options.setdefault("device", next(iter(cards), ""))
    found = cards.get(options["device"])
    if found is None or options["ib_port"] != 1:
        print(f" IB device {options['device']} not found", file=sys.stderr)
        print(" Unable to find the Infiniband/RoCE device", file=sys.stderr)
        return None
    state = nics.link_of(node, found)[0]
    if not state.startswith("4"):
        print(f" Port number 1 state is {state[3:].capitalize()}", file=sys.stderr)
        print(" Couldn't set the link layer", file=sys.stderr)
        print(" Couldn't get context for the device", file=sys.stderr)
        return None
    return found
