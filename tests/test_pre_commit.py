"""Linters of .pre-commit-config.yaml match scripts/test and are pinned to allowed versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALLOWED = {
    requirement.name: requirement
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"])
    for requirement in [Requirement(text)]
}
CONFIG = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
HOOKS: list[dict[str, Any]] = [hook for repository in CONFIG["repos"] for hook in repository["hooks"]]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_is_pinned_to_a_version_that_the_project_allows(hook: dict[str, Any]) -> None:
    if hook["language"] == "system":
        assert hook["entry"] == ".venv/bin/mypy"
        return
    for text in hook["additional_dependencies"]:
        name, pinned, version = text.partition("==")
        assert pinned, f"{text} is not pinned"
        assert ALLOWED[name].specifier.contains(version)


def test_the_hooks_are_the_linters_of_scripts_test() -> None:
    script = (ROOT / "scripts/test").read_text(encoding="utf-8")
    ran = set(re.findall(r'^(?:say "|lint )([\w-]+)', script, re.MULTILINE)) - {"pytest"}
    assert ran == {hook["id"].removesuffix("-format") for hook in HOOKS}
