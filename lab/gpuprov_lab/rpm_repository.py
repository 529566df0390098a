"""Builds an rpm repository: packages, and repodata/ with indexes and the module's streams."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuprov_lab import rpmfile
from gpuprov_lab.command import call
from gpuprov_lab.rpmfile import Rpm

MODULE = "nvidia-driver"
# The stream of a machine that enabled none.
_DEFAULT_STREAM = "latest-dkms"
_MODULE_VERSION = 20251201000000


def write(
    folder: Path, rpms: list[Rpm], sign: Callable[[Path], None] | None, major: str, modules: bool
) -> Path:
    """Build the packages and their indexes in `folder`; returns repomd.xml, not signed yet.

    `sign` signs the packages of a folder; None: packages are not signed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rpmfile.build(rpms, folder)
    if sign is not None:
        sign(folder)
    call("createrepo_c", "--quiet", "--no-database", "--general-compress-type=gz", folder)
    repodata = folder / "repodata"
    if modules and any(rpm.streams for rpm in rpms):
        with tempfile.TemporaryDirectory() as place:
            text = Path(place) / "modules.yaml"
            text.write_text(modules_yaml(rpms, major))
            call("modifyrepo_c", "--mdtype=modules", "--compress-type=gz", text, repodata)
    return repodata / "repomd.xml"


def modules_yaml(rpms: Iterable[Rpm], major: str) -> str:
    """Render modules.yaml: one document per stream of the module, and the default stream."""
    streams: dict[str, list[Rpm]] = {}
    for rpm in rpms:
        for stream in rpm.streams:
            streams.setdefault(stream, []).append(rpm)
    documents = [_stream(stream, found, major) for stream, found in sorted(streams.items())]
    defaults = (
        "---\ndocument: modulemd-defaults\nversion: 1\ndata:\n"
        f"  module: {MODULE}\n  stream: {_DEFAULT_STREAM}\n  profiles:\n"
        + "".join(f"    {stream}: [default]\n" for stream in sorted(streams))
        + "...\n"
    )
    return "".join([*documents, defaults])


def _stream(stream: str, rpms: list[Rpm], major: str) -> str:
    names = {rpm.name for rpm in rpms}
    manager = sorted(name for name in names if name.startswith("nvidia-fabric"))
    profiles = {"default": ["nvidia-driver-cuda"], "fm": ["nvidia-driver-cuda", *manager[:1]]}
    context = hashlib.sha256(f"{stream} {major}".encode()).hexdigest()[:8]
    lines = [
        "---",
        "document: modulemd",
        "version: 2",
        "data:",
        f"  name: {MODULE}",
        f'  stream: "{stream}"',
        f"  version: {_MODULE_VERSION}",
        f'  context: "{context}"',
        "  arch: x86_64",
        f"  summary: Nvidia driver for {stream} branch",
        "  description: >-",
        "    This package provides the most recent NVIDIA display driver of this branch.",
        "  license:",
        "    module: [MIT]",
        "  dependencies:",
        "  - requires:",
        f"      platform: [el{major}]",
        "  profiles:",
        *(f"    {name}: {{rpms: [{', '.join(members)}]}}" for name, members in profiles.items()),
        "  artifacts:",
        "    rpms:",
        *(f"    - {nevra}" for nevra in sorted(rpm.nevra for rpm in rpms)),
        "...",
    ]
    return "\n".join(lines) + "\n"
