"""Facts about all packages with names that match a pattern, on dpkg and rpm."""

from __future__ import annotations

import os

from provision.remote import node_program
from tests.node.machine import Tree

DPKG = """\
Package: libnccl2
Status: hold ok installed
Architecture: amd64
Version: 2.29.7-1+cuda12.9

Package: libnccl-dev
Status: install ok half-configured
Architecture: amd64
Version: 2.29.7-1+cuda12.9

Package: libnccl-old
Status: deinstall ok config-files
Architecture: amd64
Version: 1-1

Package: bash
Status: install ok installed
Architecture: amd64
Version: 5-1
Description: Package: libnccl9
"""
RPM = "libnccl|(none)|2.29.7-1\\ncuda-drivers|3|580.126.09-1.el9\\nkernel|(none)|5\\nkernel|(none)|6\\n"


def test_dpkg_says_what_is_installed_whole_and_matches(tree: Tree) -> None:
    native = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    tree.file("/var/lib/dpkg/status", DPKG.replace("amd64", native))
    names = ("packages.libnccl*.versions", "packages.b?sh.versions", "packages.none*.versions")
    found = [{"libnccl2": "2.29.7-1+cuda12.9"}, {"bash": "5-1"}, {}]
    assert tree.values(*names) == dict(zip(names, found, strict=True))


def test_rpm_says_the_same_with_epochs_and_nothing_of_what_is_there_twice(tree: Tree) -> None:
    tree.tool("rpm", f"printf '{RPM}'")
    assert tree.values("packages.*.versions", "packages.cuda-*.versions") == {
        "packages.*.versions": {"libnccl": "2.29.7-1", "cuda-drivers": "3:580.126.09-1.el9"},
        "packages.cuda-*.versions": {"cuda-drivers": "3:580.126.09-1.el9"},
    }


def test_a_family_brings_the_family_it_is_built_on_and_no_other() -> None:
    text = node_program.text_for(["packages.x*.versions"])
    assert "def dpkg_paragraphs" in text
    assert "def driver_loaded" not in text
    assert "def dpkg_versions" not in node_program.text_for(["package.x.version"])


def test_a_database_that_cannot_be_read_whole_answers_nobody(tree: Tree) -> None:
    """Several families share one read, and none may take the part before the error for the whole."""
    tree.file("/var/lib/dpkg/status", DPKG)
    (tree.root / "var/lib/dpkg/updates/0001").mkdir(parents=True)
    facts = ["fabric.manager_package", "package.bash.version", "packages.b?sh.versions"]
    problems = tree.ask(*facts)[1]
    assert {fact: problems[fact] for fact in facts} == dict.fromkeys(facts, "not a regular file")
