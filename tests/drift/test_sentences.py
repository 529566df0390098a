"""Descriptions of the facts of roles, and sentences for operators."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provision.desired.expectations import Expectation
from provision.desired.role import all_roles
from provision.drift.drifts import Drift
from provision.drift.sentences import of_service, sentence, subject

FILE = "file./etc/x.conf.content"


def drift(fact: str, found: Any, value: Any, operator: str = "equals", problem: str = "") -> Drift:
    return Drift("a", Expectation("role", fact, operator, value, "why"), found, bool(problem), problem)


SAID: list[tuple[str, Any, Any, str, str]] = [
    ("driver.loaded_version", "570.1", "580.1", "equals",
     "NVIDIA driver: 570.1 is loaded, 580.1 is declared"),
    ("driver.loaded_version", None, "580.1", "equals",
     "NVIDIA driver: none is loaded, 580.1 is declared"),
    ("driver.loaded_version", "580.1", None, "equals",
     "NVIDIA driver: 580.1 is loaded, none may be"),
    ("kernel.headers", ["6.1"], "6.2", "contains",
     "kernel headers: 6.1 are installed, 6.2 are missing"),
    ("package.x.version", "1", "2", "at_least",
     "package x: 1 is installed, at least 2 is declared"),
    ("package.x.version", "1", "2", "version",
     "package x: 1 is installed, 2 is declared"),
    ("package.x.held", False, True, "equals",
     "package x is not held, must be"),
    ("module.nouveau.loaded", True, False, "equals",
     "kernel module nouveau is loaded, must not be"),
    ("kernel.initramfs_stale", True, False, "equals",
     "initramfs is out of date, must be up to date"),
    ("kernel.initramfs_stale", None, False, "equals",
     "initramfs is in no known state, must be up to date"),
    ("clock.state", "unsynchronised", ["synchronised", "host"], "one_of",
     "clock is unsynchronised, must be synchronised or host"),
    ("dkms.nvidia.failed", ["6.1: error"], [], "equals",
     "failed DKMS builds of the NVIDIA module: 6.1: error are found, none may be"),
    ("nvidia_smi.mig.mode.current", ["Disabled"] * 8, ["Enabled"] * 8, "equals",
     "MIG mode of the GPUs: Disabled (8 times) is set, Enabled (8 times) is declared"),
    ("nvidia_smi.power.limit", [*["350.00"] * 7, "300.00"], ["350.00"] * 8, "equals",
     "power limit of the GPUs, in watts: 350.00 (7 times), 300.00 (index 7) is set,"
     " 350.00 (8 times) is declared"),
    ("service.x.active", None, "active", "equals",
     "service x is absent, must be active"),
    ("tcp.9400.listening", False, True, "equals",
     "TCP port 9400 is not listened on, must be"),
    ("file./etc/x.key.sha256", "ab", "cd", "equals",
     "SHA-256 of /etc/x.key: ab is found, cd is declared"),
    ("no.such_fact", "1", "2", "matches",
     "no.such_fact is 1, must match 2"),
    (FILE, None, "a\n", "template",
     "file /etc/x.conf is absent"),
    (FILE, "a\n", None, "equals",
     "file /etc/x.conf must not exist"),
    (FILE, "a\nb\n", "a\nc\n", "template",
     'file /etc/x.conf: line 2 is "b", must be "c"'),
    (FILE, "a\n", "a\nc\n", "template",
     'file /etc/x.conf: line 2 is missing: "c"'),
    (FILE, "a\nb\n", "a\n", "template",
     'file /etc/x.conf: line 2 must not be there: "b"'),
    (FILE, "a", "a\n", "template",
     "file /etc/x.conf differs in its line ends"),
]  # fmt: skip


@pytest.mark.parametrize(("fact", "found", "value", "operator", "said"), SAID)
def test_a_difference_is_a_sentence(fact: str, found: Any, value: Any, operator: str, said: str) -> None:
    assert sentence(drift(fact, found, value, operator)) == said


def test_what_could_not_be_read_says_why() -> None:
    assert (
        sentence(drift("clock.state", None, "x", problem="timed out")) == "clock could not be read: timed out"
    )


def test_a_service_is_one_sentence() -> None:
    both = [drift("service.x.active", "failed", "active"), drift("service.x.enabled", "disabled", "enabled")]
    assert of_service(both) == "service x is failed and disabled, must be active and enabled"


@pytest.mark.parametrize("role", all_roles())
def test_every_fact_that_a_role_promises_has_words(role: str) -> None:
    facts = {re.sub(r"\{\{.*?\}\}", "x", promise.fact) for promise in all_roles()[role].promises}
    assert facts
    assert {fact for fact in facts if subject(fact) == fact} == set()
