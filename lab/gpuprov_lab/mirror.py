"""Caching proxy for Debian packages: one for all labs, fed from the mirror that this host uses.

The cache listens on the loopback address; each lab's server (server.py) forwards its nodes' connections to
it. So nodes need no route, no name service and no mirror, and each package is downloaded once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gpuprov_lab import process
from gpuprov_lab.command import call, waiting_lock
from gpuprov_lab.places import CACHE
from provision.errors import LabError

VARIABLE = "GPUPROV_LAB_MIRROR"
_FOLDER = CACHE / "apt-cacher"
PORT_FILE = _FOLDER / "port"  # read by server.py on every connection
_PIDFILE = _FOLDER / "pid"
_USER = "apt-cacher-ng"

# A one-line source: deb [options] URI suite component…
_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.+)$", re.MULTILINE)


def debian_mirror() -> str | None:
    """Return the Debian mirror: $GPUPROV_LAB_MIRROR, else the one in this host's apt sources, else None."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if urlsplit(chosen).scheme not in {"http", "https"} or not urlsplit(chosen).hostname:
            raise LabError(
                f"{VARIABLE}={chosen!r} is not an http or https URL", f"unset {VARIABLE}, or correct it"
            )
        return chosen.rstrip("/")
    return next(mirrors_in(sources_texts(Path("/etc/apt"))), None)


def sources_texts(apt: Path) -> Iterator[str]:
    """Yield the contents of all apt source files under `apt`, in apt's order."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for file in files:
        if file.is_file() and file.suffix in {".list", ".sources"}:
            yield file.read_text(errors="replace")


def mirrors_in(texts: Iterator[str]) -> Iterator[str]:
    """Yield the Debian mirrors named in apt sources of either format; other repositories are skipped."""
    for text in texts:
        active = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        entries = [(uri, suite, parts) for uri, suite, parts in _ONE_LINE.findall(active)]
        for stanza in re.split(r"\n\s*\n", active):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
            if fields.get("Enabled", "yes").strip() != "no" and "deb" in fields.get("Types", "").split():
                suites = fields.get("Suites", "").split()
                entries += [
                    (u, s, fields.get("Components", ""))
                    for u in fields.get("URIs", "").split()
                    for s in suites
                ]
        for uri, suite, components in entries:
            address = urlsplit(uri)
            is_debian = address.path.rstrip("/").endswith("/debian") and "main" in components.split()
            if address.scheme in {"http", "https"} and is_debian and not suite.endswith("-security"):
                yield uri.rstrip("/")


def ensure_cache(mirror: str) -> int:
    """Start the cache in front of `mirror` unless it is running; returns its port on 127.0.0.1."""
    with waiting_lock(CACHE / "apt-cacher.lock"):
        _FOLDER.mkdir(parents=True, exist_ok=True)
        configuration = _FOLDER / "conf" / "acng.conf"
        if process.running(_PIDFILE) and PORT_FILE.exists():
            port = int(PORT_FILE.read_text())
            if configuration.read_text() == _configuration(mirror, port):
                return port
        process.stop(_PIDFILE)
        port = _free_port()
        _prepare_folders()
        configuration.write_text(_configuration(mirror, port))
        PORT_FILE.write_text(f"{port}\n")
        log = _FOLDER / "output.log"
        process.start(["apt-cacher-ng", "-c", configuration.parent], _PIDFILE, log, user=_USER, group=_USER)
        if not process.wait_until(lambda: answers("127.0.0.1", port), 20):
            process.stop(_PIDFILE)
            raise LabError("the package cache (apt-cacher-ng) did not start within 20 s", f"see {log}")
        return port


def stop_cache() -> None:
    """Stop the cache; its downloads stay."""
    process.stop(_PIDFILE)
    PORT_FILE.unlink(missing_ok=True)


def cache_pid() -> int | None:
    return process.running(_PIDFILE)


def _prepare_folders() -> None:
    for name in ("conf", "cache", "log"):
        (_FOLDER / name).mkdir(exist_ok=True)
    call("chown", "-R", f"{_USER}:", _FOLDER / "cache", _FOLDER / "log", timeout=120)


def _configuration(mirror: str, port: int) -> str:
    proxy = call("apt-config", "dump", "--format", "%v", "Acquire::http::Proxy").strip()
    return (
        f"CacheDir: {_FOLDER}/cache\nLogDir: {_FOLDER}/log\nBindAddress: 127.0.0.1\nPort: {port}\n"
        f"ForeGround: 1\nPidFile:\nReportPage:\nVerboseLog: 0\n"
        f"Remap-debian: /debian ; {mirror}\n" + (f"Proxy: {proxy}\n" if proxy and proxy != "DIRECT" else "")
    )


def _free_port() -> int:
    """Return a free loopback port; apt-cacher-ng only accepts ports up to 32767."""
    for port in range(23142, 23342):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise LabError("no free port between 23142 and 23341 on 127.0.0.1", "stop the service that listens there")


def answers(address: str, port: int) -> bool:
    """Whether a program accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0
