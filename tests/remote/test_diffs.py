"""Rendering of Ansible's diffs as text, without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from provision.remote.ansible import diffs

SECRET = "corr3ct-h0rse"
KEY = "-----BEGIN KEY-----\nMIIabcdefgh\nQRSTuvwxyz12\n-----END KEY-----"


@pytest.mark.parametrize(
    ("diff", "shown"),
    [
        (None, ""),
        ([], ""),
        ({"before": "a\n", "after": "a\n"}, ""),
        (
            {"before": "a\nb\n", "after": "a\nc\n", "before_header": "/etc/x", "after_header": "/etc/x"},
            "--- before: /etc/x\n+++ after: /etc/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n",
        ),
        (
            {"before": "", "after": "a"},
            "--- before\n+++ after\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n",
        ),
        (
            [{"before": {"mode": "0600"}, "after": {"mode": "0644"}}, {"prepared": "Inst libnccl2"}],
            '--- before\n+++ after\n@@ -1,3 +1,3 @@\n {\n-    "mode": "0600"\n+    "mode": "0644"\n }\n'
            "Inst libnccl2\n",
        ),
        ({"dst_binary": True, "after": "x"}, "the file that is there is binary: no difference shown\n"),
    ],
)  # fmt: skip
def test_the_shapes_that_modules_return(diff: Any, shown: str) -> None:
    assert diffs.text({"diff": diff}) == shown


@pytest.mark.parametrize(
    ("headers", "result", "name"),
    [
        ({"before_header": "/etc/x"}, {"dest": "/etc/y"}, "/etc/x"),
        ({}, {"dest": "/etc/y"}, "/etc/y"),
        ({}, {"path": "/etc/z"}, "/etc/z"),
        ({}, {}, "x.conf"),
    ],
)
def test_a_file_is_named_as_it_is_called_on_the_node(
    headers: dict[str, str], result: dict[str, str], name: str
) -> None:
    """A temporary file has a different name on each node, so equal changes would look different."""
    diff = {"before": "", "after": "a\n", "after_header": "/dev/shm/gpuprov-1/tmp2/x.conf.j2", **headers}
    assert f"--- before: {name}\n+++ after: {name}\n" in diffs.text({"diff": diff, **result})


def test_a_secret_is_masked_and_so_is_the_one_it_replaces() -> None:
    before = "user=bob\npassword=0ld-w0rd\nurl=http://bob:0ld-w0rd@mirror/\nport=1\n"
    after = f"user=bob\npassword={SECRET}\nurl=http://bob:{SECRET}@mirror/\nport=2\n"
    shown = diffs.text({"diff": {"before": before, "after": after}}, [SECRET])
    assert "w0rd" not in shown
    assert SECRET not in shown
    assert "-port=1\n+port=2\n" in shown


def test_where_only_a_secret_differs_it_is_said_so() -> None:
    diff = {"before": "password=0ld-w0rd\n", "after": f"password={SECRET}\n", "before_header": "/etc/x"}
    assert diffs.text({"diff": diff}, [SECRET]) == "after: /etc/x: only masked values differ\n"


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("indent", ["", "  "])
def test_no_line_of_a_key_is_left_behind_a_sign(side: str, indent: str) -> None:
    """Ansible would prefix each line with a sign, so the text would no longer match the secret."""
    text = "\n".join(indent + line for line in KEY.splitlines()) + "\n"
    shown = diffs.text({"diff": {"before": "x\n", "after": "x\n", side: f"x\n{text}"}}, [KEY])
    assert "********" in shown
    assert not [line for line in KEY.splitlines() if line in shown]
    assert not [line for line in KEY.splitlines() if line in diffs.text({"diff": {"prepared": text}}, [KEY])]
