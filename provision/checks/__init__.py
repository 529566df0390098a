"""The checks, by id. Adding one: its module, a line here, its fixture folder, a README row (CONTRIBUTING.md)."""

from __future__ import annotations

from provision.checks.check import Check

CHECKS: dict[str, Check] = {}
