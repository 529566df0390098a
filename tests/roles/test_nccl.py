"""NCCL's expectations, and the lint of its settings: the role's own tasks, run by Ansible locally."""

from __future__ import annotations

from typing import Any

import pytest

from tests.roles.promises import promised_by, values
from tests.support.described import machine


def promised(system: str = "debian 13", **settings: Any) -> dict[str, Any]:
    return values(promised_by("nccl", machine(system), **settings))


@pytest.mark.parametrize(
    ("system", "packages"),
    [
        ("debian 13", ("libnccl2", "libnccl-dev")),
        ("ubuntu 22.04", ("libnccl2", "libnccl-dev")),
        ("rocky 9.4", ("libnccl", "libnccl-devel")),
    ],
)
def test_runtime_and_headers_have_one_version(system: str, packages: tuple[str, str]) -> None:
    facts = promised(system)
    assert {facts[f"package.{name}.version"] for name in packages} == {"2.29.7-1+cuda12.9"}
    assert ("file./etc/apt/preferences.d/nccl.content" in facts) == (not system.startswith("rocky"))


def test_settings_are_one_line_each_in_order() -> None:
    facts = promised(settings={"NCCL_IB_TC": 106, "NCCL_IB_HCA": "=mlx5_0,mlx5_1"})
    assert facts["file./etc/nccl.conf.content"].splitlines()[1:] == [
        "NCCL_IB_HCA==mlx5_0,mlx5_1",
        "NCCL_IB_TC=106",
    ]
