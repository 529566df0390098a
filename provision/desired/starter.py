"""The commented starter inventory that `gpuprov init` writes; inventory/example.yml is the same text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from provision import paths, yamlfile
from provision.errors import UsageError

_EXAMPLES = ("gpu-01", "gpu-02")
# What Ansible takes for one host; a [range] is one, too.
_HOST = re.compile(r"[\w.-]+(?:\[\w+:\w+(?::\d+)?\][\w.-]*)*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
_PLACE = "@HOSTS@"


def inventory(hosts: Sequence[str] = ()) -> str:
    """The starter's text with these hosts (default: two examples). Raises UsageError on a bad name."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UsageError(
                f"--host {host}: not a host name", "letters, digits, dots and dashes; or gpu-[01:40]"
            )
    template = (paths.DATA / "inventory.yml.in").read_text(encoding="utf-8")
    lines = [f"    {_key(host)}:" for host in dict.fromkeys(hosts or _EXAMPLES)]
    return template.replace(_PLACE, "\n".join(lines))


def _key(host: str) -> str:
    """Quoted where YAML would take it for something else than text."""
    plain = host[0].isalpha() and yamlfile.parse(host, host) == host
    return host if plain else json.dumps(host)
