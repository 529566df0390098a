"""Perturbations of sysfs files of RDMA ports. An answer's text holds the files of one port."""

from __future__ import annotations

import json
from random import Random

from benchmarks.detection.perturb_model import Answer, Change, Op, Row


def write(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Replace the content of one of these files of the port."""
    files = json.loads(answer.text)
    known = [name for name in row.more["files"] if name in files]
    if not known:
        return None
    name = rng.choice(known)
    files[name] = f"{row.choice(rng, 'values')}\n"
    return Change(answer.with_text(json.dumps(files)), ("port",), name)


def unlink(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Remove one of these files."""
    files = json.loads(answer.text)
    known = [name for name in row.more["files"] if name in files]
    if not known:
        return None
    name = rng.choice(known)
    files[name] = None
    return Change(answer.with_text(json.dumps(files)), ("port",), name)


OPS: dict[str, Op] = {"file_write": write, "file_unlink": unlink}
