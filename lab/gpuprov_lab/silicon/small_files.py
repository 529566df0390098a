"""Fast writer of the kernel's small files: more than a thousand per node each time a fault is set."""

import os
from pathlib import Path


def put(folder, files) -> None:
    """Write name -> line below a folder, in place, since existing files may be mounted elsewhere."""
    for name, line in files.items():
        path, data = f"{folder}/{name}", (line + "\n").encode()
        try:
            handle = _opened(path)
        except FileNotFoundError:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            handle = _opened(path)
        os.write(handle, data)
        os.close(handle)


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
