"""Workflow examples of docs/ci.md: well-formed, runnable unchanged, and careful with the key."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from provision import cli
from provision.commands.formats import outputs
from provision.drift import formats
from provision.errors import ExitCode

DOCUMENT = (Path(cli.__file__).parent.parent / "docs/ci.md").read_text(encoding="utf-8")
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)]


GITHUB, PLAN = (example for example in EXAMPLES if "jobs" in example)
(GITLAB,) = (example for example in EXAMPLES if "stages" in example)


def scripts() -> dict[str, str]:
    job = GITLAB["drift"]
    steps = GITHUB["jobs"]["drift"]["steps"]
    plan = [step for one in PLAN["jobs"].values() for step in one["steps"]]
    return {
        "plan": "\n".join(step.get("run", "") for step in plan),
        "github": "\n".join(step.get("run", "") for step in steps),
        "gitlab": "\n".join([*job["before_script"], *job["script"]]),
    }


def commands(script: str) -> list[list[str]]:
    """Return the arguments of every gpuprov call."""
    calls = []
    for line in script.splitlines():
        match = re.match(r"^\s*(?:\.venv/bin/)?gpuprov (.*?)(?: \|\| .*)?$", line)
        if match:
            calls.append(shlex.split(match[1]))
    return calls


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_command_of_each_example_is_accepted(name: str) -> None:
    (words,) = commands(scripts()[name])
    options = cli.parsed(words)
    assert options.verb == "drift"
    files = dict(outputs(options.format, options.json))
    assert len(files) >= 3
    job = GITHUB["jobs"]["drift"] if name == "github" else GITLAB["drift"]
    for form, file in files.items():
        assert file == "-" or file in str(job), f"{form} is written to {file} and not kept"


def test_a_pull_request_is_planned_without_nodes_first_and_its_changes_are_no_failure() -> None:
    offline, online = (cli.parsed(words) for words in commands(scripts()["plan"].replace("pip ", "# ")))
    assert (offline.verb, offline.offline, online.format, online.exit_code) == (
        "plan",
        True,
        [("github", "-")],
        True,
    )
    assert PLAN["jobs"]["plan"]["needs"] == "inventory"
    assert f'"$code" -eq {int(ExitCode.DRIFT)} ]; then exit 0' in scripts()["plan"]


def test_the_github_example_is_a_workflow() -> None:
    triggers = GITHUB[True]  # YAML 1.1 parses the key `on` as true
    assert re.fullmatch(r"[\d*/,-]+( [\d*/,-]+){4}", triggers["schedule"][0]["cron"])
    assert GITHUB["permissions"] == {"contents": "read", "security-events": "write"}
    job = GITHUB["jobs"]["drift"]
    assert job["timeout-minutes"] <= 60
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@v\d+", step["uses"])
    names = [step.get("name") for step in job["steps"]]
    assert names.index("Look") < names.index("Alerts") < names.index("Verdict")


def test_the_gitlab_example_is_a_pipeline() -> None:
    job = GITLAB["drift"]
    assert job["stage"] in GITLAB["stages"]
    assert job["artifacts"]["when"] == "always"
    assert job["allow_failure"] == {"exit_codes": int(ExitCode.INCOMPLETE)}
    assert job["artifacts"]["reports"]["junit"] in job["script"][0]


@pytest.mark.parametrize("name", ["github", "gitlab", "plan"])
def test_no_example_puts_the_key_into_an_argument_or_a_file(name: str) -> None:
    script = scripts()[name]
    uses = [line for line in script.splitlines() if "FLEET_SSH_KEY" in line and "unset" not in line]
    assert len(uses) == 1
    assert re.search(r"(printf '%s\\n' \"\$FLEET_SSH_KEY\"|< \"\$FLEET_SSH_KEY\") \| ssh-add -q -$", uses[0])
    assert "StrictHostKeyChecking=no" not in DOCUMENT
    assert not re.search(r"^\s*-? *ssh-keyscan", DOCUMENT, re.MULTILINE)
    assert "set -x" not in script


def test_every_exit_code_of_drift_is_explained() -> None:
    told = {
        int(code)
        for row in re.findall(r"^\| ([\d, ]+) \|", DOCUMENT, re.MULTILINE)
        for code in row.split(",")
    }
    assert {0, int(ExitCode.UNHEALTHY), int(ExitCode.DRIFT), int(ExitCode.INCOMPLETE)} <= told


def test_every_form_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)) == set(formats.NAMES)
