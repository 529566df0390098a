"""nvidia-persistenced: keeps the driver's state; fails without a driver."""

import sys
from pathlib import Path

import daemon

READY = "persistenced"


def persistenced(node, arguments: list) -> int:
    """Run nvidia-persistenced; its marker enables persistence mode unless --no-persistence-mode is given."""
    if "--version" in arguments or "-v" in arguments:
        print(f"nvidia-persistenced:  version {node.library()}")
        return 0
    if node.driver() is None:
        print("nvidia-persistenced failed to initialize. Check syslog for more details.", file=sys.stderr)
        print(
            "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) "
            "exist, and that user 0 has read and write permissions for those files.",
            file=sys.stderr,
        )
        return 1
    # The last of both options wins; the default is on.
    modes = [word for word in arguments if word in ("--persistence-mode", "--no-persistence-mode")]
    on = not modes or modes[-1] == "--persistence-mode"
    place = (
        Path("/var/run/nvidia-persistenced")
        if str(node.root) == "/"
        else node.root / "run/nvidia-persistenced"
    )
    status = daemon.run_in_background(node.folder / "run" / (READY if on else READY + ".off"))
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / "nvidia-persistenced.pid").write_text(
            (node.folder / "run" / (READY if on else READY + ".off")).read_text()
        )
    except OSError as error:
        print(f"nvidia-persistenced: {error}", file=sys.stderr)
    return status
