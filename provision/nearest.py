"""Did-you-mean suggestions: the existing names nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def did_you_mean(wrong: str, known: Collection[str], otherwise: str = "", limit: int = 3) -> str:
    """A sentence with the near misses, or `otherwise` when nothing is near.

    >>> did_you_mean("nccl_verison", ["nccl_version", "rdma_hosts"])
    'did you mean nccl_version?'
    """
    bare = {name.lstrip("-"): name for name in known}  # that both begin with dashes makes no options alike
    near = [bare[name] for name in difflib.get_close_matches(wrong.lstrip("-"), bare, n=limit, cutoff=0.6)]
    return f"did you mean {' or '.join(near)}?" if near else otherwise
