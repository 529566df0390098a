"""nv-hostengine: DCGM's service. What it knows is read from the node's state; its mark says that it runs."""

import daemon

MARKER = "nv-hostengine"


def hostengine(node, arguments: list) -> int:
    """`nv-hostengine -n --service-account nvidia-dcgm`: in the foreground until TERM.

    It starts without a driver, too, and then sees no GPU for as long as it runs.
    """
    if "-n" not in arguments:
        print("nv-hostengine: the lab knows only -n (no daemon)")
        return 1
    marker = node.folder / "run" / MARKER
    seen = "driver" if node.driver() else "none"
    daemon.hold(marker, lambda: marker.write_text(f"{marker.read_text().strip()} {seen}\n"))
    return 0


def since(node):
    """When the host engine that runs was started (seconds since the epoch); None when none runs."""
    marker = node.folder / "run" / MARKER
    return marker.stat().st_mtime if node.running(MARKER) else None


def sees_gpus(node) -> bool:
    """Whether the driver was there when it was started."""
    return (node.folder / "run" / MARKER).read_text().split()[1:] == ["driver"]
