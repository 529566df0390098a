"""Substitute for node_exporter if the lab has no real one (EPEL's): machine name and textfiles only."""

import os
from pathlib import Path

from dcgm.exporter import GuardedPage, StartError, listening, log
from dcgm.web_config import WebConfigError

OPTIONS = {"--web.listen-address": ":9100", "--collector.textfile.directory": "", "--web.config.file": ""}


def node_exporter(node, arguments: list) -> int:
    """Run node_exporter, which serves until it is ended."""
    del node
    options = dict(OPTIONS)
    try:
        for word in arguments:
            name, _, text = word.partition("=")
            if name not in OPTIONS:
                raise StartError(f"unknown long flag '{name}'")
            options[name] = text
        server = listening(options["--web.listen-address"], options["--web.config.file"], _Page)
    except (StartError, WebConfigError) as error:
        log("ERROR", str(error))
        return 1
    server.textfiles = options["--collector.textfile.directory"]
    server.serve_forever()
    return 0


class _Page(GuardedPage):
    def text_of(self, path: str):
        if path != "/metrics":
            return None
        name, machine = os.uname().nodename, os.uname().machine
        lines = [
            "# TYPE node_uname_info gauge",
            f'node_uname_info{{machine="{machine}",nodename="{name}",sysname="Linux"}} 1',
        ]
        files = sorted(Path(self.server.textfiles).glob("*.prom")) if self.server.textfiles else []
        return "\n".join([*lines, *(file.read_text().rstrip() for file in files)]) + "\n"
