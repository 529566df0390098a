"""gpuprov docs: every documented name is found and printed, and a typo gets the nearest name."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision import cli, paths
from provision.checks import thresholds
from provision.checks.judging import checks_reference, registry
from provision.commands import docs
from provision.desired.role import all_roles
from provision.errors import ExitCode

HEAVY = ("ansible", "ansible_runner", "jinja2", "matplotlib", "paramiko", "rich")


def printed(capsys: pytest.CaptureFixture[str], *name: str) -> str:
    assert cli.main(["docs", *name]) == ExitCode.OK
    return capsys.readouterr().out


def test_the_overview_names_every_page_role_and_check(capsys: pytest.CaptureFixture[str]) -> None:
    names = re.findall(r"^  (\S+) +\S", printed(capsys), re.MULTILINE)
    assert {path.stem for path in paths.DOCS.glob("*.md")} <= set(names)
    assert {*all_roles(), *registry.table(), "node_facts", "readme"} <= set(names)
    assert len(names) == len(set(names)), "one name, one thing"


def test_no_two_things_have_one_name() -> None:
    every = [*docs.pages(), *registry.table()]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("name", ["connecting", "docs/connecting.md", "connecting.md", "Connecting"])
def test_a_page_is_printed_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, name) == (paths.DOCS / "connecting.md").read_text("utf-8")


def test_a_role_is_its_readme(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "nccl") == (paths.ROLES / "nccl" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("check", sorted(registry.table()))
def test_every_check_says_what_it_finds_when_it_runs_and_its_limits(
    check: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, check)
    assert f"finds    {checks_reference.finds(check)}\n" in text
    assert len(checks_reference.finds(check)) > 20
    assert f"stage    {registry.table()[check].stage}: " in text
    for sku in thresholds.available():
        for metric, limit in thresholds.for_sku(sku).items():
            if metric.startswith(f"{check}."):
                assert f"  {metric}\n" in text
                assert " ".join(limit.cited.split()) in text


def test_every_limit_that_is_no_skus_belongs_to_a_check() -> None:
    shown = {(file, key) for file, keys in checks_reference.FIXED.values() for key in keys}
    kept = {(file, key) for file in ("host_limits", "port_limits") for key in thresholds.limits(file)}
    assert shown == kept


def documented_facts() -> Iterator[re.Pattern[str]]:
    """Yield a pattern per fact in docs/facts.md; `package.NAME.version` matches every package."""
    for cell in re.findall(
        r"^\| ([^|]*`[^|]*) \| .* \|$", (paths.DOCS / "facts.md").read_text("utf-8"), re.M
    ):
        last = ""
        for name in re.findall(r"`([^`{]+)`", cell):
            last = f"{last.rpartition('.')[0]}{name}" if name.startswith(".") else name
            yield re.compile(
                ".+".join(map(re.escape, re.split(r"(?<![A-Za-z_])[A-Z]{2,}(?![A-Za-z])", last)))
            )


def test_every_promise_of_a_role_is_of_a_documented_fact() -> None:
    forms = list(documented_facts())
    for role in all_roles().values():
        for promise in role.promises:
            name = re.sub(r"\{\{.*?\}\}", "x", promise.fact)
            assert any(form.fullmatch(name) for form in forms), promise.where


def test_a_typing_error_gets_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "connectin"]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.endswith("'connectin'\n  → did you mean connecting?\n")
    assert cli.main(["docs", "../../etc/passwd"]) == ExitCode.USAGE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_it_through_the_pager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("PAGER", f"tee {taken}")
    assert cli.main(["docs", "nccl"]) == ExitCode.OK
    assert taken.read_text("utf-8") == (paths.ROLES / "nccl" / "README.md").read_text("utf-8")
    monkeypatch.setenv("PAGER", "true")  # a pager that quits early
    assert cli.main(["docs", "detection"]) == ExitCode.OK
    assert terminal.getvalue() == ""
    monkeypatch.setenv("PAGER", "no-such-pager -R")
    assert cli.main(["docs", "nccl"]) == ExitCode.USAGE
    assert "no-such-pager" in capsys.readouterr().err
    monkeypatch.delenv("PAGER")
    assert cli.main(["docs", "nccl"]) == ExitCode.OK
    assert terminal.getvalue().startswith("# nccl")


@pytest.mark.parametrize("name", [[], ["nccl"], ["gpu_burn"]])
def test_it_loads_neither_ansible_nor_ssh(name: list[str]) -> None:
    program = (
        "import sys\nfrom provision import cli\n"
        f"code = cli.main(['docs', *{name!r}])\n"
        f"assert not (found := [each for each in {HEAVY!r} if each in sys.modules]), found\n"
        "sys.exit(code)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


def test_the_page_of_variables_is_what_the_command_writes(tmp_path: Path) -> None:
    page = paths.DOCS / "variables.md"
    copy = tmp_path / "variables.md"
    copy.write_text(page.read_text("utf-8").partition("<!-- variables: begin -->")[0], "utf-8")
    script = paths.PACKAGE.parent / "scripts" / "variables_page.py"
    subprocess.run([sys.executable, script, "--write", copy], check=True, timeout=60)
    assert copy.read_text("utf-8") == page.read_text("utf-8"), (
        "write it again: python scripts/variables_page.py --write docs/variables.md"
    )
