"""A real Prometheus and real node exporters on loopback, unpacked from Debian's packages."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.monitoring import two_nodes
from tests.monitoring.panel_queries import api
from tests.support.sshd import free_port

PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-node-exporter": "prometheus-node-exporter",
}


def program(name: str, folder: Path) -> str:
    """Return the program's path: installed here, or unpacked from its Debian package below `folder`."""
    if own := shutil.which(name):
        return own
    unpacked = folder / "usr" / "bin" / name
    if not unpacked.exists():
        if os.geteuid() != 0:
            pytest.skip(f"{name} is not installed: apt install {PACKAGES[name]}")
        _unpack(PACKAGES[name], folder)
    return str(unpacked)


def _unpack(package: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    download = ["apt-get", "download", "-qq", package]
    done = subprocess.run(download, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:  # the package lists may be outdated or missing
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, timeout=200, check=False)
        done = subprocess.run(download, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    files = sorted(folder.glob(f"{package}_*.deb"))
    if not files:
        pytest.fail(f"apt-get cannot download {package}: {done.stderr.strip()[-300:]}")
    subprocess.run(["dpkg-deb", "-x", files[0], folder], check=True, timeout=120)


@dataclass(frozen=True)
class Fleet:
    """A Prometheus that has scraped all nodes, and the time to query."""

    address: str
    now: float


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def serving(text: Callable[[int], str]) -> Iterator[int]:
    """Serve text(n) as the answer to the n-th request; yields the port."""
    lock, times = threading.Lock(), [0]

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with lock:
                times[0] += 1
                body = text(times[0]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Suppress the server's log."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def scraped_fleet(folder: Path) -> Iterator[Fleet]:
    """Scrape the healthy, broken and silent nodes, one that is off, and a controller, once per second."""
    programs = folder.parent / "programs"
    node_exporter, prometheus = (
        program(name, programs) for name in ("prometheus-node-exporter", "prometheus")
    )
    nodes = (two_nodes.HEALTHY, two_nodes.BROKEN, two_nodes.SILENT)
    jobs: dict[str, list[dict[str, object]]] = {"node": [], "dcgm": [], "controller": []}

    def add(job: str, port: int, name: str, rack: str) -> None:
        labels = {"instance": name, "rack": rack, "sku": "h100-sxm"}
        jobs[job].append({"targets": [f"127.0.0.1:{port}"], "labels": labels})

    with ExitStack() as stack:

        def export(name: str, text: str) -> int:
            textfiles, port = folder / name, free_port()
            textfiles.mkdir()
            (textfiles / "gpuprov.prom").write_text(text, encoding="utf-8")
            command = [
                node_exporter,
                f"--collector.textfile.directory={textfiles}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            stack.enter_context(running(command, folder / f"{name}.log"))
            return port

        for node in nodes:
            add("node", export(node.name, two_nodes.textfile(node)), node.name, node.rack)
        for node in (two_nodes.HEALTHY, two_nodes.BROKEN):
            port = stack.enter_context(serving(partial(two_nodes.dcgm, node)))
            add("dcgm", port, node.name, node.rack)
        add("node", free_port(), "off", "r2")
        written = two_nodes.controller(two_nodes.HEALTHY, two_nodes.BROKEN)
        add("controller", export("controller", written), "controller", "")

        address = f"http://127.0.0.1:{free_port()}"
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": job, "static_configs": targets} for job, targets in jobs.items()],
        }
        (folder / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")  # JSON is YAML
        command = [
            prometheus,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address.removeprefix('http://')}",
        ]
        server = stack.enter_context(running(command, folder / "prometheus.log"))
        yield Fleet(address, _scraped(address, server, folder / "prometheus.log"))


def _scraped(address: str, server: subprocess.Popen[bytes], log: Path) -> float:
    """Wait until all targets have enough scrapes for a rate, and return the time to query."""
    deadline = time.monotonic() + 60
    query = "count(count_over_time(up[10s]) >= 9) == 7 and count(up == 1) == 6"
    while time.monotonic() < deadline and server.poll() is None:
        try:
            result = api(address, "query", query=query)["result"]
        except OSError:  # still starting
            result = []
        if result:
            return float(result[0]["value"][0])
        time.sleep(0.5)
    pytest.fail(f"Prometheus did not scrape all targets within a minute:\n{log.read_text()[-3000:]}")
