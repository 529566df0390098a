"""Builds RPM packages with rpmbuild, each from its own spec file."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov_lab.command import call
from gpuprov_lab.debfile import DATED, PackedFile, unpack

OPERATORS = ("<", ">", "=", "<=", ">=")
RELATIONS = ("requires", "provides", "conflicts", "obsoletes", "recommends")
# Readable by every version of rpm, whatever the host's settings; nothing is compiled, stripped or scanned for
# dependencies. The two hyphens in the release of Debian's kernels are valid.
_MACROS = {
    "_rpmfilename": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
    "_binary_payload": "w1.gzdio",
    "_buildhost": "localhost",
    "_build_id_links": "none",
    "_wrong_version_format_terminate_build": "0",
    "__spec_install_post": "%{nil}",
    "debug_package": "%{nil}",
    "clamp_mtime_to_source_date_epoch": "1",
    "use_source_date_epoch_as_buildtime": "1",
}


@dataclass(frozen=True)
class Rpm:
    """One package; `version` is EPOCH:VERSION-RELEASE, the epoch optional; relations as in a spec file."""

    name: str
    version: str
    summary: str
    architecture: str = "x86_64"
    files: Mapping[str, PackedFile] = field(default_factory=dict)
    configs: tuple[str, ...] = ()
    relations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[str, ...] = ()  # of the package's module

    @property
    def epoch(self) -> str:
        return self.version.partition(":")[0] if ":" in self.version else "0"

    @property
    def upstream(self) -> str:
        return self.version.rpartition(":")[2].rpartition("-")[0]

    @property
    def release(self) -> str:
        return self.version.rpartition("-")[2]

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.upstream}-{self.release}.{self.architecture}.rpm"

    @property
    def nevra(self) -> str:
        """The package's name in modules.yaml, always with the epoch."""
        return f"{self.name}-{self.epoch}:{self.upstream}-{self.release}.{self.architecture}"


def build(rpms: Sequence[Rpm], folder: Path) -> None:
    """Build the .rpm files in `folder` with one rpmbuild per processor in parallel."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        specs = [_spec_file(rpm, Path(made) / str(number)) for number, rpm in enumerate(rpms)]
        processors = os.cpu_count() or 1
        parts = [part for first in range(processors) if (part := specs[first::processors])]
        with ThreadPoolExecutor(processors) as pool:
            list(pool.map(functools.partial(_rpmbuild, folder), parts))


def _rpmbuild(folder: Path, specs: Sequence[Path]) -> None:
    macros = {**_MACROS, "_rpmdir": str(folder), "_topdir": f"{specs[0]}.building"}
    defined = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    words = ("-bb", "--quiet", "--nodeps", "--target", "x86_64")
    call("rpmbuild", *words, *defined, *specs, timeout=600, extra=DATED)


def _spec_file(rpm: Rpm, tree: Path) -> Path:
    unpack(rpm.files, tree)
    spec = tree.with_suffix(".spec")
    spec.write_text("\n".join(_spec(rpm, tree)) + "\n")
    return spec


def _spec(rpm: Rpm, tree: Path) -> Iterator[str]:
    """Yield the lines of a package's spec file; its files are laid out in `tree`."""
    yield from (f"Name: {rpm.name}", f"Version: {rpm.upstream}", f"Release: {rpm.release}")
    yield from (f"Summary: {rpm.summary}", "License: Proprietary", "AutoReqProv: no")
    if rpm.epoch != "0":
        yield f"Epoch: {rpm.epoch}"
    if rpm.architecture == "noarch":
        yield "BuildArch: noarch"
    yield from (f"{kind}: {text}" for kind in RELATIONS for text in rpm.relations.get(kind, ()))
    yield from ("%description", rpm.summary)
    yield from ("%install", f"cp -a {tree}/. %{{buildroot}}")
    for kind, text in rpm.scripts.items():
        yield from (f"%{kind}", text.replace("%", "%%"))
    yield "%files"
    for path in sorted(rpm.files):
        yield f'{"%config(noreplace) " if path in rpm.configs else ""}"{path}"'
