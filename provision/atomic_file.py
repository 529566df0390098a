"""Atomic replacement of files through a temporary file and a rename, safe against readers and kills."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path


def write(
    path: Path, content: str | bytes | Iterable[str], *, private: bool = True, sync: bool = True
) -> Path:
    """Replace `path` by `content`: bytes, or UTF-8 text in one or many pieces.

    `private`: mode 0600, otherwise the umask's default, for files to be passed on. `sync`: wait until the
    data is on disk; otherwise a power cut may leave an empty file. Raises OSError.
    """
    pieces: Iterable[str | bytes] = [content] if isinstance(content, (str, bytes)) else content
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)  # mkstemp: mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece.encode("utf-8", "replace") if isinstance(piece, str) else piece)
            file.flush()
            if not private:
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            if sync:
                os.fsync(file.fileno())
        return Path(beside).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(beside).unlink()
        raise


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Yield a path to the absolute `folder` that survives renames, for root's files in users' folders.

    A link on the way is followed only if nobody except root and this user could have created it. Raises
    OSError."""
    at = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        for part in folder.parts[1:]:
            around, entry = os.fstat(at), os.stat(part, dir_fd=at, follow_symlinks=False)
            others = around.st_uid not in (0, os.geteuid()) or around.st_mode & 0o022
            if stat.S_ISLNK(entry.st_mode) and others:
                raise OSError(errno.ELOOP, f"{part} is a link in a folder of others", str(folder))
            flags = os.O_PATH | os.O_DIRECTORY | (os.O_NOFOLLOW if others else 0)
            below = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = below
        yield Path(f"/proc/self/fd/{at}")
    finally:
        os.close(at)


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
