"""Suggestions for mistyped names: the closest existing ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def did_you_mean(wrong: str, known: Collection[str], otherwise: str = "", limit: int = 3) -> str:
    """Return a question that suggests close matches; `otherwise` without any.

    >>> did_you_mean("nccl_verison", ["nccl_version", "rdma_hosts"])
    'did you mean nccl_version?'
    """
    bare = {name.lstrip("-"): name for name in known}  # common leading dashes must not make options similar
    near = [bare[name] for name in difflib.get_close_matches(wrong.lstrip("-"), bare, n=limit, cutoff=0.6)]
    return f"did you mean {' or '.join(near)}?" if near else otherwise
