"""Docstrings, comments and task names stay in plain English: marked phrases stay within their ceilings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import prose
from tests.support.prose import Text

pytestmark = pytest.mark.timeout(600)  # it parses all modules, also on a busy host


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, int]]:
    return prose.counts()


@pytest.mark.parametrize("tree", prose.TREES)
def test_each_tree_stays_below_its_ceilings(counted: dict[str, dict[str, int]], tree: str) -> None:
    limits = prose.ceilings()[tree]
    above = {kind: count for kind, count in counted[tree].items() if count > limits[kind]}
    assert not above, (
        f"{tree}: {above} marked phrases, ceilings {limits}: rewrite the new ones (docs/writing.md); "
        f"`python -m tests.support.prose {tree}` lists them"
    )


def test_each_tree_and_kind_has_a_ceiling(counted: dict[str, dict[str, int]]) -> None:
    assert {tree: [*kinds] for tree, kinds in counted.items()} == {
        tree: [*kinds] for tree, kinds in prose.ceilings().items()
    }


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("first lines", "Whose the GPUs are."),
        ("sentences", "What is known of the node."),
        ("comments", "where it is not installed"),
        ("comments", "the program is told the path"),
        ("task names", "Take it out"),
        ("task names", "Start it anew"),
    ],
)
def test_a_phrase_of_the_list_is_marked(kind: str, text: str) -> None:
    assert Text(kind, Path("a.py"), 1, text).is_marked


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("first lines", "The GPU vendor."),
        ("comments", "a CPU copy would measure the CPU"),
        ("task names", "Remove the failed nvidia-dkms package"),
        ("task names", "Restart fabric manager"),
    ],
)
def test_plain_english_is_not_marked(kind: str, text: str) -> None:
    assert not Text(kind, Path("a.py"), 1, text).is_marked


def test_docstrings_comments_and_task_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "main.yml").write_text("- name: Take it out\n  ansible.builtin.file:\n")
    (tmp_path / "one.py").write_text(
        '"""First. Whose?"""\n\nx = 1  # beside the other\ny = "# no comment"\n# noqa\n'
    )
    found = [(text.kind, text.line, text.text) for text in prose.texts(tmp_path)]
    assert found == [
        ("first lines", 1, "First. Whose?"),
        ("sentences", 1, "First."),
        ("sentences", 1, "Whose?"),
        ("comments", 3, "beside the other"),
        ("task names", 1, "Take it out"),
    ]
