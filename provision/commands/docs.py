"""gpuprov docs: print a page of the documentation, or the description of a role or check."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPILOG = """\
Without NAME the pages, roles and checks are listed; with `checks` each check's stage, what its findings are
about, and the package it comes from. The text comes from this installation: it describes this
version. On a terminal it goes through $PAGER, where that is set.

examples:
  gpuprov docs
  gpuprov docs errors
  gpuprov docs nvidia_driver
  gpuprov docs gpu_burn
  gpuprov docs checks
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("name", nargs="?", metavar="NAME", help="a page, role or check (default: list them)")


def run(options: argparse.Namespace) -> ExitCode:
    _show("\n".join(_overview() if options.name is None else _about(options.name)) + "\n")
    return ExitCode.OK


def pages() -> dict[str, Path]:
    """Return all pages by name: documents, then the roles' READMEs."""
    from provision import paths

    documents = {file.stem: file for file in sorted(paths.DOCS.glob("*.md"))}
    roles = {file.parent.name: file for file in sorted(paths.ROLES.glob("*/README.md"))}
    return {"readme": paths.README, "changelog": paths.CHANGELOG, **documents, **roles}


def _about(name: str) -> Iterator[str]:
    """Return the lines about a page, role or check. Raises UsageError with similar names."""
    from provision.checks.judging import registry

    page_name = name.removeprefix("docs/").removesuffix(".md")
    files = pages()
    for page in (page_name, page_name.lower()):
        if page in files:
            return iter(files[page].read_text(encoding="utf-8").splitlines())
    if page_name == "checks":
        return _checks()
    if page_name in registry.table():
        from provision.checks.judging import checks_reference

        return checks_reference.explained(page_name)
    from provision.nearest import did_you_mean

    names = [*files, *registry.table()]
    raise UsageError(
        f"no page, role or check is called {name!r}", did_you_mean(name, names, "gpuprov docs lists them")
    )


def _overview() -> Iterator[str]:
    from provision import paths
    from provision.checks.judging import registry

    files = pages()
    width = max(map(len, (*files, *registry.table())))
    yield "pages (gpuprov docs NAME)"
    for name, file in files.items():
        if file.parent.parent != paths.ROLES:
            yield f"  {name:<{width}} {_title(file)}"
    yield ""
    yield "roles"
    for name, file in files.items():
        if file.parent.parent == paths.ROLES:
            yield f"  {name:<{width}} {_what_a_role_is(file.parent)}"
    yield ""
    yield "checks"
    for name, entry in registry.table().items():
        yield f"  {name:<{width}} {entry.load().SUMMARY}"


def _checks() -> Iterator[str]:
    from provision.checks.judging import registry

    table = registry.table()
    width = max(map(len, table))
    for name, one in table.items():
        origin = f" (from {one.source})" if one.source else ""
        yield f"{name:<{width}} {one.stage:<9} {one.scope:<6} {one.load().SUMMARY}{origin}"


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), "")


def _what_a_role_is(role: Path) -> str:
    from provision import yamlfile

    specs = yamlfile.load_mapping(role / "meta" / "argument_specs.yml")
    return str(specs["argument_specs"]["main"]["short_description"])


def _show(text: str) -> None:
    """Print the text, through $PAGER on a terminal."""
    import shlex
    import signal
    import subprocess

    pager = shlex.split(os.environ.get("PAGER", "")) if sys.stdout.isatty() else []
    if not pager:
        sys.stdout.write(text)
        return
    try:
        process = subprocess.Popen(
            pager, stdin=subprocess.PIPE, env={"LESS": "FRX", **os.environ}, text=True, encoding="utf-8"
        )
    except OSError as trouble:
        raise UsageError(
            f"PAGER: {pager[0]} cannot be started: {trouble.strerror}", "correct PAGER, or unset it"
        ) from None
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pager handles Ctrl-C
    try:
        process.communicate(text)
    finally:
        signal.signal(signal.SIGINT, before)
