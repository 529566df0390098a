"""Unreadable YAML is reported with file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import yamlfile
from provision.errors import InventoryError, StackError


def test_a_syntax_error_names_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "x.yml"
    file.write_text("a: 1\nb: [1,\nc: }\n")
    with pytest.raises(StackError) as caught:
        yamlfile.load(file, StackError)
    assert caught.value.what.startswith(f"{file}:3:")
    assert caught.value.fix


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="No such file"):
        yamlfile.load(tmp_path / "none.yml", InventoryError)
    binary = tmp_path / "b.yml"
    binary.write_bytes(b"a: \xff\xfe")
    with pytest.raises(InventoryError, match=r"not UTF-8 text \(byte 3\)"):
        yamlfile.load(binary, InventoryError)


def test_a_mapping_is_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "x.yml"
    file.write_text("- a\n")
    with pytest.raises(StackError, match="must be a mapping"):
        yamlfile.load_mapping(file, StackError)
    file.write_text("# nothing\n")
    assert yamlfile.load_mapping(file, StackError) == {}


def test_syntax_is_checked_without_knowing_the_tags() -> None:
    yamlfile.check_syntax("a: !vault |\n  $ANSIBLE_VAULT\n", "x", InventoryError)
    with pytest.raises(InventoryError, match="x:2:"):
        yamlfile.check_syntax("a: 1\n b: 2\n", "x", InventoryError)
