"""The systemd unit of the watch on its controller."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from provision import atomic_file, paths
from provision.errors import GpuprovError
from provision.fleet import Fleet

PLACE = Path("/etc/systemd/system/gpuprov-watch.service")
_SANDBOX = (
    "# Exposure above 5.0: the fleet may include this machine, whose devices, /proc and kernel log are then",
    "# read from here, and hooks and ssh_config may use home, /tmp, namespaces and devices.",
    "NoNewPrivileges=yes",
    "ProtectSystem=full",
    "ProtectControlGroups=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "LockPersonality=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_VSOCK",
    "CapabilityBoundingSet=~CAP_SYS_TIME CAP_SYS_BOOT CAP_SYS_PACCT CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM \\",
    "  CAP_BLOCK_SUSPEND CAP_LINUX_IMMUTABLE CAP_LEASE CAP_BPF CAP_SETFCAP CAP_NET_BROADCAST \\",
    "  CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_AUDIT_CONTROL CAP_AUDIT_READ",
)
_TAKEN_OVER = ("GPUPROV_RUNS", "XDG_STATE_HOME", "ANSIBLE_CONFIG", "SSL_CERT_FILE", "https_proxy", "no_proxy")


def text(fleet: Fleet, options: Sequence[str], user: str) -> str:
    """The unit for this interpreter, inventory and user. Raises GpuprovError for what it cannot hold."""
    words = [*paths.own_command(), "watch", fleet.place, *options]
    values = {name: os.environ[name] for name in _TAKEN_OVER if os.environ.get(name)}
    if hidden := [name for name, value in values.items() if re.search(r"://.*@", value, re.DOTALL)]:
        raise GpuprovError(
            f"{hidden[0]} has a password, and everyone may read a unit",
            f"unset it here, write it into a file that root alone may read (0600), and name that file with "
            f"`systemctl edit {PLACE.name}`: [Service] EnvironmentFile=FILE",
        )
    return "\n".join(
        [
            "# Written by `gpuprov watch install`.",
            "[Unit]",
            f"Description=gpuprov watch of {_escaped(Path(fleet.place).name)}",
            "Wants=network-online.target",
            "After=network-online.target",
            # Without an end to its tries: a controller that was rebuilt must not stay without its watch.
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            f"User={user}",
            # Ready after its first round; an inventory that a program makes takes minutes.
            "Type=notify",
            "TimeoutStartSec=600",
            # A watch whose rounds hang or fail is killed and started again. A round may wait for a scheduler
            # that does not answer, a minute at a time.
            "WatchdogSec=300",
            f"ExecStart={' '.join(map(_quoted, words))}",
            *(f"Environment={_quoted(f'{name}={value}')}" for name, value in values.items()),
            "Restart=always",
            "RestartSec=5",
            # It ends the checks it has begun, and goes on with them at its next start.
            "KillMode=mixed",
            "TimeoutStopSec=60",
            # The program holds passwords of the inventory.
            "LimitCORE=0",
            *_SANDBOX,
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def _escaped(word: str) -> str:
    """A word with what systemd would expand in it doubled."""
    if any(ord(sign) < 32 for sign in word):
        raise GpuprovError(f"a unit cannot name {word!r}", "rename it: it has a control character")
    return word.replace("%", "%%")


def _quoted(word: str) -> str:
    plain = _escaped(word).replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


def install(fleet: Fleet, options: Sequence[str], place: Path = PLACE) -> str:
    """Write the unit, and have systemd read it; what a person does next. Raises GpuprovError."""
    user = os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    unit = text(fleet, options, user)
    try:
        atomic_file.write(place, unit, private=False)
        place.chmod(0o644)
    except OSError as error:
        raise GpuprovError(
            f"{place} cannot be written: {error.strerror}", "sudo gpuprov watch install …"
        ) from None
    try:
        subprocess.run(["systemctl", "daemon-reload"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"{place} is written, but systemd did not reload\nnext: systemctl daemon-reload\n"
    return f"{place} is written; it runs as {user}\nnext: systemctl enable --now {place.name}\n"
