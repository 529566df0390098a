"""GPU partitions as listed by nvidia-smi."""

from __future__ import annotations

import pytest

from provision.node.observe.files import ReadError
from provision.node.observe.mig import parse_mig

LISTED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.10gb+me  Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.40gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
  MIG 1c.2g.20gb  Device  2: (UUID: MIG-1b5ff8d1-0c1c-5b27-8d77-9d5a4b1c2f01)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-32c4a2a1-1f0a-5a1b-9c0b-0d8c0a4b1f2e)
"""


def test_one_text_for_each_gpu_large_partitions_first() -> None:
    assert parse_mig(["mig.devices"], LISTED) == {"mig.devices": ["3g.40gb,1g.10gb+me,1c.2g.20gb", ""]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "\x00\x7fELF\n",
    ],
)
def test_anything_else_is_not_taken_for_an_answer(text: str) -> None:
    with pytest.raises(ReadError, match="nvidia-smi answered"):
        parse_mig(["mig.devices"], text)
