"""dcgm-exporter 4.8.2: a page of a node's GPUs for Prometheus, with the fields of its counters file.

Rebuilt from the source of NVIDIA/dcgm-exporter, tag 4.5.3-4.8.2: options (pkg/cmd/app.go), counters file
(internal/pkg/counters/counter_config.go), lines and labels (internal/pkg/rendermetrics/render_metrics.go;
later commits call the label Hostname `hostname`), texts of Xids (internal/pkg/collector/xid_errors.go).
Samples of its page are in that project's issues 250, 317 (MIG) and 736; by issue 700 a GPU without an Xid has
no line for it since 4.8. Values are current here, not those of the last interval.
"""

import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import telemetry
from nvidia_smi import mig_files
from state import Node

from dcgm import fields, hostengine, web_config

OPTIONS = {
    **dict.fromkeys(("f", "collectors"), "collectors"),
    **dict.fromkeys(("a", "address"), "address"),
    **dict.fromkeys(("c", "collect-interval"), "interval"),
    **dict.fromkeys(("r", "remote-hostengine-info"), "remote"),
    "web-config-file": "web",
}
FLAGS = {**dict.fromkeys(("n", "no-hostname"), "no_hostname"), **dict.fromkeys(("v", "version"), "version")}
TYPES = ("gauge", "counter", "histogram", "summary", "label")
ZERO_WITHOUT_XID = (4, 8)  # before this version of the exporter
XID_TEXTS = {
    0: "No Error", 13: "Graphics Engine Exception", 31: "GPU memory page fault", 43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors -- Most likely to see when running multiple cuda",
    48: "Double Bit ECC Error", 63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure", 74: "NVLINK Error",
    79: "GPU has fallen off the bus", 94: "Contained ECC error", 95: "Uncontained ECC error",
    119: "GSP RPC Timeout", 120: "GSP Error", 149: "NVLINK: NETIR Error", 154: "GPU Recovery Action Changed",
}  # fmt: skip


class StartError(Exception):
    """An error that ends the exporter with status 1; its text is logged."""


def exporter(node, arguments: list) -> int:
    """Run dcgm-exporter, which serves until it is ended or the host engine is gone."""
    options = {"collectors": "/etc/dcgm-exporter/default-counters.csv", "address": ":9400", "web": ""}
    try:
        options.update(_parse(arguments))
        if options.get("version"):
            print(f"DCGM Exporter version {_version()}")
            return 0
        log("INFO", "Starting dcgm-exporter", Version=_version())
        server = _server(node, options)
    except (StartError, web_config.WebConfigError) as error:
        log("ERROR", str(error))
        return 1
    log("INFO", "Listening on", address=options["address"])
    server.serve_forever()
    return 0


def log(level: str, message: str, **more: str) -> None:
    """Print one line in the format of Go's slog (text handler)."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    rest = "".join(f' {key}="{value}"' for key, value in more.items())
    print(f'time={stamp} level={level} msg="{message}"{rest}', file=sys.stderr, flush=True)


def _version() -> str:
    return os.environ.get("SILICON_VERSION") or "4.8.2"


def _parse(arguments: list) -> dict:
    found, words = {}, list(arguments)
    while words:
        name, equals, text = words.pop(0).lstrip("-").partition("=")
        if name in FLAGS:
            found[FLAGS[name]] = True
        elif name in OPTIONS and (equals or words):
            found[OPTIONS[name]] = text if equals else words.pop(0)
        else:
            raise StartError(f"flag provided but not defined: -{name}")
    return found


def _server(node, options: dict):
    if not any(
        (node.root / place / "libdcgm.so.4").exists() for place in ("usr/lib/x86_64-linux-gnu", "usr/lib64")
    ):
        raise StartError("the libdcgm.so.4 library was not found. Install Data Center GPU Manager (DCGM).")
    if "remote" in options and hostengine.since(node) is None:
        raise StartError("Failed to connect to remote hostengine")
    counters = read_counters(node, Path(options["collectors"]))
    server = listening(options["address"], options["web"], _Page)
    server.folder, server.counters, server.options = node.folder, counters, options
    return server


def listening(address: str, web: str, handler):
    """Start a server of pages at `HOST:PORT`, guarded by the rules of the file `web`."""
    config = web_config.read(web) if web else {}
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise StartError(f"listen tcp: address {address}: missing port in address")
    kind = _Server6 if not host or host.startswith("[") else ThreadingHTTPServer
    try:
        server = kind((host.strip("[]"), int(port)), handler)
    except OSError as error:
        raise StartError(f"listen tcp {address}: bind: {(error.strerror or '').lower()}") from None
    tls = web_config.context(config)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads, server.web = True, web
    return server


class _Server6(ThreadingHTTPServer):
    """A server that listens on all addresses of both families, like Go."""

    address_family = 10  # AF_INET6


def read_counters(node, path: Path) -> list:
    """Read (field, Prometheus type, help) of each collectable line of the counters file."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise StartError(f"Could not read metrics file '{path}'; err: {error.strerror}") from None
    module = "libdcgmmoduleprofiling.so.4"
    profiles = any(
        (node.root / place / module).exists() for place in ("usr/lib/x86_64-linux-gnu", "usr/lib64")
    )
    found = []
    for number, line in enumerate(line for line in lines if line and not line.startswith("#")):
        record = [word.strip(" ") for word in line.split(",")]
        if len(record) != 3:
            raise StartError(
                f"malformed CSV record; err: failed to parse line {number} (`{record}`), expected 3 fields"
            )
        if record[0] not in fields.KNOWN:
            raise StartError(f"could not find DCGM field; err: unknown ExporterCounter field '{record[0]}'")
        if fields.profiling(record[0]) and not profiles:
            log("WARN", f"Skipping line {number} ('{record[0]}'): metric not enabled")
            continue
        if record[1] not in TYPES:
            raise StartError(f"could not find Prometheus metric type '{record[1]}'")
        found.append(tuple(record))
    return found


class GuardedPage(BaseHTTPRequestHandler):
    """A page with access control; `text_of` returns its content."""

    server_version, sys_version = "", ""
    timeout = 10

    def do_GET(self) -> None:
        config = web_config.read(self.server.web) if self.server.web else {}
        if not web_config.admits(config, self.headers.get("Authorization", "")):
            return self._answer(401, "Unauthorized\n", {"WWW-Authenticate": "Basic"})
        text = self.text_of(self.path)
        return self._answer(200 if text is not None else 404, text or "")

    def _answer(self, status: int, text: str, more=None) -> None:
        self.send_response(status)
        for name, word in {"Content-Type": "text/plain; charset=utf-8", **(more or {})}.items():
            self.send_header(name, word)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words) -> None:
        """Log nothing: exporters do not log requests."""


class _Page(GuardedPage):
    """The pages /, /health and /metrics."""

    def text_of(self, path: str):
        if path == "/health":
            return "OK"
        if path != "/metrics":
            return "<html><head><title>GPU Exporter</title></head></html>" if path == "/" else None
        node = Node(self.server.folder)
        node.count_run()
        options = self.server.options
        if "remote" in options and hostengine.since(node) is None:
            log("ERROR", "Could not retrieve metrics: Host engine connection invalid/disconnected")
            os._exit(1)  # as the exporter does, in the middle of an answer
        return metrics(node, self.server.counters, not options.get("no_hostname"))


def metrics(node, counters: list, hostname: bool) -> str:
    """Render the text that Prometheus reads."""
    if node.driver() is None or not hostengine.sees_gpus(node):
        return ""
    moment = telemetry.Moment(node)
    ones = [telemetry.read(node, gpu, index, moment) for index, gpu in enumerate(node.present())]
    lines = []
    for name, kind, text in counters:
        if kind == "label":
            continue
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for one in ones:
            for instance in mig_files.instances(node, one["gpu"]) or [None]:
                number = fields.value(node, one, name, instance)
                if name == fields.XID and not number and _release() < ZERO_WITHOUT_XID:
                    number = "0"
                if number:
                    labels = _labels(node, one, instance, counters, hostname)
                    lines.append(f"{name}{{{labels}{_cause(name, number)}}} {number}")
    return "".join(line + "\n" for line in lines)


def _release() -> tuple:
    return tuple(int(word) for word in _version().split(".")[:2])


def _labels(node, one, instance, counters, hostname) -> str:
    gpu, index = one["gpu"], one["index"]
    labels = [
        ("gpu", index),
        ("UUID", gpu["uuid"]),
        ("pci_bus_id", "0000" + gpu["address"].upper()),
        ("device", f"nvidia{index}"),
        ("modelName", node.sku["name"]),
    ]
    if instance:
        labels += [("GPU_I_PROFILE", instance["profile"]), ("GPU_I_ID", instance["id"])]
    if hostname:
        labels.append(("Hostname", os.uname().nodename))
    labels += sorted(
        (field, fields.value(node, one, field, None)) for field, kind, _ in counters if kind == "label"
    )
    return ",".join(f'{key}="{word}"' for key, word in labels)


def _cause(name: str, number: str) -> str:
    """Return the additional labels of an Xid's line."""
    if name != fields.XID:
        return ""
    return f',err_code="{number}",err_msg="{XID_TEXTS.get(int(number), "Unknown Error")}"'
