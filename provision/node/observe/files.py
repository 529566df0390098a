"""Helpers that read files. Paths are bytes, so that the locale of the login does not matter."""

import os

FILE_LIMIT = 64 * 1024
TOTAL_LIMIT = 1024 * 1024
ROOT = [b""]  # prefix of every path; not empty only in tests


class ReadError(Exception):
    """A fact that exists but could not be read; the message is the reason."""


def at(path):
    return ROOT[0] + path.encode("utf-8", "surrogateescape")


def because(error):
    """Return an OSError as a few lower-case words."""
    return (error.strerror or str(error)).lower()


def is_absent(error):
    return isinstance(error, (FileNotFoundError, NotADirectoryError))


def read_bytes(path, limit=FILE_LIMIT, tail=False):
    """Return the content of a regular file of at most `limit` bytes; None if there is no file.
    With `tail`, return the last `limit` bytes of a file of any size."""
    try:
        # O_NONBLOCK, because opening a FIFO would wait for a writer.
        handle = os.open(at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if is_absent(error):
            return None
        raise ReadError(because(error)) from None
    try:
        status = os.fstat(handle)
        if status.st_mode & 0o170000 != 0o100000:
            raise ReadError("not a regular file")
        if tail:
            os.lseek(handle, max(0, status.st_size - limit), os.SEEK_SET)
        parts = []
        left = limit + (not tail)
        while left > 0:
            part = os.read(handle, min(left, 1 << 20))
            if not part:
                break
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise ReadError(because(error)) from None
    finally:
        os.close(handle)
    if left <= 0 and not tail:
        raise ReadError("larger than %d KiB" % (limit // 1024))
    return b"".join(parts)


def read_text(path, limit=FILE_LIMIT):
    data = read_bytes(path, limit)
    return None if data is None else data.decode("utf-8", "replace")


def read_line(path):
    text = read_text(path)
    return None if text is None else text.strip()


def names_in(path):
    try:
        return sorted(name.decode("utf-8", "replace") for name in os.listdir(at(path)))
    except OSError as error:
        if is_absent(error):
            return []
        raise ReadError(because(error)) from None


def link_target(path):
    try:
        return os.readlink(at(path)).decode("utf-8", "replace")
    except OSError as error:
        if is_absent(error) or error.errno == 22:  # EINVAL: the path exists but is not a link
            return None
        raise ReadError(because(error)) from None


def status_of(path):
    """Return the result of stat(2); None if there is no such file."""
    try:
        return os.stat(at(path))
    except OSError as error:
        if is_absent(error):
            return None
        raise ReadError(because(error)) from None


def labelled(text, label):
    """Return the text after `label:` in the first line that has it; None if no line has."""
    for line in (text or "").splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == label:
            return value.strip()
    return None
