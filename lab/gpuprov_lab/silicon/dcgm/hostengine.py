"""nv-hostengine, DCGM's service. Its data is the node's state; a marker file exists while it runs."""

import daemon

MARKER = "nv-hostengine"


def hostengine(node, arguments: list) -> int:
    """Run `nv-hostengine -n --service-account nvidia-dcgm` in the foreground until TERM.

    It also starts without a driver, and then sees no GPU for as long as it runs.
    """
    if "-n" not in arguments:
        print("nv-hostengine: the lab knows only -n (no daemon)")
        return 1
    marker = node.folder / "run" / MARKER
    seen = "driver" if node.driver() else "none"
    daemon.hold(marker, lambda: marker.write_text(f"{marker.read_text().strip()} {seen}\n"))
    return 0


def since(node):
    """Return when the running host engine was started (seconds since the epoch); None if none is running."""
    marker = node.folder / "run" / MARKER
    return marker.stat().st_mtime if node.running(MARKER) else None


def sees_gpus(node) -> bool:
    """Whether the driver was loaded when the host engine started."""
    return (node.folder / "run" / MARKER).read_text().split()[1:] == ["driver"]
