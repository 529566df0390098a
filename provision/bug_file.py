"""Keeps the traceback of a bug, which often is the error of one node alone, so that it can be reported."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import traceback
from pathlib import Path

from provision import __version__
from provision.errors import BugError, GpuprovError

MOST = 20  # files in one folder: a bug may strike every node, or every minute

_folder: Path | None = None


def keep_in(folder: Path) -> None:
    """Keep tracebacks in this folder from now on: that of the run. Without one they go where temporary files
    are."""
    global _folder
    _folder = folder


def named(error: Exception) -> GpuprovError:
    """Why the program ends, as an error with a name; the traceback is kept where that is a bug. A full disk
    of this machine is none."""
    from provision.paths import state_home

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or f"{state_home()}, or the folder for temporary files"
        return GpuprovError(f"{where}: {error.strerror}", "make room there, and run the command again")
    last = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    return BugError(f"a bug in gpuprov: {last}", report(error))


def report(error: BaseException) -> str:
    """Keep the traceback of an exception; returns `please report it with FILE`. The same traceback is kept
    once."""
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
    """What a bug was seen with: `gpuprov 0.1.0, Python 3.11.2, ansible-core 2.18.1, Debian GNU/Linux 12
    (bookworm), Linux 6.1.0 x86_64`, on one line."""
    import platform
    from importlib import metadata

    try:
        ansible = metadata.version("ansible-core")
    except metadata.PackageNotFoundError:
        ansible = "not installed"
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (AttributeError, OSError, KeyError):  # Python 3.9, on nodes, cannot read it
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
