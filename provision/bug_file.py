"""Storage of a bug's traceback, often from the error of a single node, so that it can be reported."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import traceback
from pathlib import Path

from provision import __version__
from provision.errors import BugError, GpuprovError

MOST = 20  # files per folder: a bug may affect every node, or recur every minute

_folder: Path | None = None


def keep_in(folder: Path) -> None:
    """Store further tracebacks in `folder`, that of the run; by default they are temporary files."""
    global _folder
    _folder = folder


def named(error: Exception) -> GpuprovError:
    """Convert an unexpected exception to an error, storing its traceback if it is a bug.

    A full disk of this machine is no bug."""
    from provision.paths import state_home

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or f"{state_home()}, or the folder for temporary files"
        return GpuprovError(f"{where}: {error.strerror}", "make room there, and run the command again")
    last = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    return BugError(f"a bug in gpuprov: {last}", report(error))


def report(error: BaseException) -> str:
    """Store an exception's traceback once; return `please report it with FILE`."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = "".join(lines).encode("utf-8", "backslashreplace")
    name = f"bug-{hashlib.sha256(text).hexdigest()[:12]}.txt"
    text = f"{versions()}\n\n".encode("utf-8", "backslashreplace") + text
    try:
        return f"please report it with {_written(_folder, name, text)}"
    except OSError:
        pass
    try:
        return f"please report it with {_written(None, name, text)}"
    except OSError as full:
        return f"please report it; its traceback cannot be kept: {full.strerror}"


def versions() -> str:
    """Return the versions for a bug report on one line.

    `gpuprov 0.1.0, Python 3.11.2, ansible-core 2.18.1, Debian GNU/Linux 12 (bookworm), Linux 6.1.0 x86_64`"""
    import platform
    from importlib import metadata

    try:
        ansible = metadata.version("ansible-core")
    except metadata.PackageNotFoundError:
        ansible = "not installed"
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (AttributeError, OSError, KeyError):  # Python 3.9, used on nodes, lacks this function
        system = "unknown system"
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    python = platform.python_version()
    return f"gpuprov {__version__}, Python {python}, ansible-core {ansible}, {system}, {kernel}"


def _written(folder: Path | None, name: str, text: bytes) -> str:
    if folder is None:
        handle, path = tempfile.mkstemp(prefix="gpuprov-bug-", suffix=".txt")
    else:
        path = str(folder / name)
        kept = sorted(folder.glob("bug-*.txt"))
        if os.path.lexists(path) or len(kept) >= MOST:
            return path if os.path.lexists(path) else str(kept[0])
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
    return path
