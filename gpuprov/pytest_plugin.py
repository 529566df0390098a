"""Pytest plug-in that turns a fleet's expectations into tests: `pytest -p gpuprov.pytest_plugin`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from provision.drift.testinfra.fleet import Case, Suite

_UNREAD = "not read independently: "
_SUITE = pytest.StashKey["Suite"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpuprov", "a fleet's expectations, with --pyargs provision.drift.testinfra")
    group.addoption(
        "--gpuprov-inventory", metavar="FILE", help="any Ansible inventory (as gpuprov drift takes it)"
    )
    group.addoption("--gpuprov-nodes", metavar="PATTERN", default="all", help="Ansible host pattern")
    group.addoption(
        "--gpuprov-set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a variable (repeatable)",
    )
    group.addoption(
        "--gpuprov-vault-password-file",
        metavar="FILE",
        action="append",
        default=[],
        help="of vaulted variables",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate one test for each node and fact; the nodes' properties are observed here, once."""
    if "gpuprov_case" in metafunc.fixturenames:
        cases = _suite(metafunc.config).cases
        metafunc.parametrize("gpuprov_case", cases, ids=_names(cases))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SUITE in config.stash:
        config.stash[_SUITE].close()


def _names(cases: list[Case]) -> list[str]:
    """Return unique test names: several items of a role may concern one fact, and get numbers."""
    seen: Counter[str] = Counter()
    names = []
    for case in cases:
        seen[case.name] += 1
        names.append(case.name if seen[case.name] == 1 else f"{case.name}#{seen[case.name]}")
    return names


def _suite(config: pytest.Config) -> Suite:
    from provision.api import fleets
    from provision.api.source import Source, overrides
    from provision.drift.testinfra.fleet import Suite
    from provision.errors import GpuprovError

    if _SUITE not in config.stash:
        inventory = config.getoption("--gpuprov-inventory")
        try:
            loaded = fleets.load(
                Source(
                    inventories=(inventory,) if inventory else (),
                    nodes=config.getoption("--gpuprov-nodes"),
                    variables=overrides(config.getoption("--gpuprov-set")),
                    vault_password_files=tuple(config.getoption("--gpuprov-vault-password-file")),
                    last_used=True,
                )
            )
            config.stash[_SUITE] = Suite(loaded.fleet, loaded.overrides)
        except GpuprovError as error:
            raise pytest.UsageError(f"gpuprov: {error.what} → {error.fix}") from None
    return config.stash[_SUITE]


@pytest.fixture
def gpuprov_check(gpuprov_case: Case, pytestconfig: pytest.Config) -> Any:
    """Return a function that reads and judges a case's fact, failing or skipping the test."""
    from provision.drift.testinfra.readers import Unreadable
    from provision.secrets_mask import masked
    from provision.terminal import printable
    from provision.text import one_line

    def check() -> None:
        if gpuprov_case.expectation is None:
            pytest.fail(f"{gpuprov_case.node}: {gpuprov_case.trouble}", pytrace=False)
        wanted = gpuprov_case.expectation
        try:
            value = _suite(pytestconfig).readers[gpuprov_case.node].read(wanted.fact)
        except Unreadable as why:
            pytest.skip(f"{_UNREAD}{one_line(str(why), 200)}")
        if not wanted.holds(value):
            # Templates are long; `gpuprov drift` shows the differing line of a file.
            values = "" if wanted.operator == "template" else f" {wanted.value!r:.200}, found {value!r:.200}"
            reason = f"({wanted.role}: {wanted.why})"
            message = f"{gpuprov_case.node}: {wanted.fact}: expected {wanted.operator}{values} {reason}"
            pytest.fail(str(masked(printable(message), _suite(pytestconfig).secrets)), pytrace=False)

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many facts had no second reader, and why, since unread facts are not verified."""
    skipped: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if _UNREAD in reason:
            skipped[reason.partition(_UNREAD)[2]] += 1
    for reason, count in skipped.most_common():
        terminalreporter.write_line(f"gpuprov: {count} facts {_UNREAD}{reason}")
