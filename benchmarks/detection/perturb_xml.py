"""Perturbations of `nvidia-smi -q -x`, made in its text in place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from benchmarks.detection.perturb_model import Answer, Change, Op, Row, gpu

_TAG = re.compile(r"<(/?)([A-Za-z_][\w.-]*)((?:\s[^<>]*)?)>([^<]*)")


@dataclass(frozen=True)
class Leaf:
    """A text-only element: its GPU, its path in the GPU's block, and the offsets of element and text."""

    gpu: int
    path: str
    start: int
    begin: int
    end: int
    stop: int
    text: str


def leaves(text: str) -> list[Leaf]:
    """Return every leaf of every GPU's block."""
    found: list[Leaf] = []
    stack: list[tuple[str, int, int]] = []
    index = -1
    pending: tuple[str, int, int, int] | None = None
    for match in _TAG.finditer(text):
        closing, tag = match[1], match[2]
        if not closing:
            index += tag == "gpu"
            stack.append((tag, match.start(), match.start(4)))
            pending = (tag, match.start(), match.start(4), match.end())
            continue
        name, start, begin = stack.pop()
        if pending is not None and pending[0] == name == tag and index >= 0:
            path = "/".join([*(one for one, _, _ in stack[2:]), name])
            end = match.start()
            found.append(Leaf(index, path, start, begin, end, match.start(4), text[begin:end]))
        pending = None
    return found


def set_value(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Replace the value of one GPU's field, if it has one; with `unset` also if it reads N/A."""
    found = [leaf for leaf in leaves(answer.text) if leaf.path in row.more["paths"]]
    found = [leaf for leaf in found if row.more.get("unset") or leaf.text.strip() != "N/A"]
    if not found:
        return None
    leaf, value = rng.choice(found), str(row.choice(rng, "values"))
    text = answer.text[: leaf.begin] + value + answer.text[leaf.end :]
    return Change(answer.with_text(text), (gpu(leaf.gpu),), f"{leaf.gpu} {leaf.path.split('/')[0]}")


def shift(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Shift a number slightly and keep its unit."""
    found = [leaf for leaf in leaves(answer.text) if leaf.path in row.more["paths"]]
    numbers = [(leaf, match) for leaf in found if (match := re.fullmatch(r"(\d+)(\.\d+)?(.*)", leaf.text))]
    if not numbers:
        return None
    leaf, match = rng.choice(numbers)
    low, high = row.more["by"]
    value = max(0, int(match[1]) + rng.randint(low, high))
    text = answer.text[: leaf.begin] + f"{value}{match[2] or ''}{match[3]}" + answer.text[leaf.end :]
    return Change(answer.with_text(text), (gpu(leaf.gpu),), f"{leaf.gpu} {leaf.path.split('/')[0]}")


def error_cell(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Replace one reading, or all readings of one GPU in these blocks, by an NVML error text."""
    found = [leaf for leaf in leaves(answer.text) if leaf.path.split("/")[0] in row.more["blocks"]]
    found = [leaf for leaf in found if leaf.text.strip() not in ("N/A", "")]
    if not found:
        return None
    one, value = rng.choice(found), row.choice(rng, "values")
    hit = [one]
    if rng.random() < 0.5:  # all readings of the GPU
        hit = [leaf for leaf in found if leaf.gpu == one.gpu]
    text = answer.text
    for leaf in sorted(hit, key=lambda leaf: -leaf.begin):
        text = text[: leaf.begin] + value + text[leaf.end :]
    spot = f"{one.gpu} error" if len(hit) > 1 else f"{one.gpu} {one.path.split('/')[0]}"
    return Change(answer.with_text(text), (gpu(one.gpu),), spot)


def drop(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Remove one GPU's field."""
    found = [leaf for leaf in leaves(answer.text) if leaf.path in row.more["paths"]]
    found = [leaf for leaf in found if leaf.text.strip() != "N/A"]
    if not found:
        return None
    leaf = rng.choice(found)
    text = answer.text[: leaf.start].rstrip() + answer.text[leaf.stop :]
    return Change(answer.with_text(text), (gpu(leaf.gpu),), f"{leaf.gpu} {leaf.path.split('/')[0]}")


def drop_everywhere(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Remove a field from all GPUs, as in an older version."""
    path = row.choice(rng, "paths")
    found = [leaf for leaf in leaves(answer.text) if leaf.path == path]
    if not found:
        return None
    text = answer.text
    for leaf in reversed(found):
        text = text[: leaf.start].rstrip() + text[leaf.stop :]
    return Change(answer.with_text(text), (), f"all {path}")


def add(rng: Random, answer: Answer, row: Row) -> Change:
    """Add an element of a newer version to each GPU's block or to the head."""
    element = row.choice(rng, "elements")
    if rng.random() < 0.2:
        text = answer.text.replace("<attached_gpus>", f"{element}\n\t<attached_gpus>", 1)
    else:
        before = rng.choice(("<fb_memory_usage>", "<temperature>", "<processes>", "<serial>", "<clocks>"))
        text = answer.text.replace(before, f"{element}\n\t\t{before}")
    return Change(answer.with_text(text), (), f"new {rng.random()}")


def add_said(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Add a newer version's element to each GPU's `block`: `usual` on all GPUs except one."""
    ends = list(re.finditer(rf"</{row.more['block']}>", answer.text))
    if not ends:
        return None
    hit, value, text = rng.randrange(len(ends)), row.choice(rng, "values"), answer.text
    for at, end in reversed(list(enumerate(ends))):
        element = (
            f"<{row.more['element']}>{value if at == hit else row.more['usual']}</{row.more['element']}>"
        )
        text = f"{text[: end.start()]}{element}\n\t\t{text[end.start() :]}"
    return Change(answer.with_text(text), (gpu(hit),), f"{hit} {row.more['block']}")


_BLOCK = re.compile(r"<gpu id=.*?</gpu>\s*", re.DOTALL)
_CHILD = re.compile(r"^\t\t<([a-zA-Z_0-9]+)>.*?(?:</\1>)\n", re.MULTILINE | re.DOTALL)


def block(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Remove or duplicate one GPU's block; with `counted` the head's count is adjusted."""
    blocks = list(_BLOCK.finditer(answer.text))
    one = rng.choice(blocks)
    middle = "" if row.more["how"] == "drop" else one[0] * 2
    text = answer.text[: one.start()] + middle + answer.text[one.end() :]
    if row.more.get("counted"):
        known = len(blocks) - 1 if not middle else len(blocks) + 1
        text = re.sub(r"(?<=<attached_gpus>)\d+", str(known), text)
    return Change(answer.with_text(text), ("node", f"gpu{blocks.index(one)}"), "blocks")


def shuffle(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Shuffle the elements of every GPU's block."""
    del row
    seed = rng.random()

    def mixed(match: re.Match[str]) -> str:
        children = list(_CHILD.finditer(match[0]))
        if not children:
            return match[0]
        texts = [child[0] for child in children]
        Random(seed).shuffle(texts)  # noqa: S311 - nothing here is a secret
        return match[0][: children[0].start()] + "".join(texts) + match[0][children[-1].end() :]

    return Change(answer.with_text(_BLOCK.sub(mixed, answer.text)), (), "order")


def process(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Add a process that uses a GPU."""
    blocks = list(re.finditer(r"<processes>(.*?)</processes>", answer.text, re.DOTALL))
    idle = [at for at, one in enumerate(blocks) if not one[1].strip()]
    if not idle:
        return None
    at = rng.choice(idle)
    name = row.choice(rng, "programs")
    info = (
        "<processes>\n\t\t\t<process_info>\n\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>\n"
        "\t\t\t\t<compute_instance_id>N/A</compute_instance_id>\n"
        f"\t\t\t\t<pid>{rng.randint(1000, 99999)}</pid>\n\t\t\t\t<type>C</type>\n"
        f"\t\t\t\t<process_name>{name}</process_name>\n"
        f"\t\t\t\t<used_memory>{rng.randint(300, 40000)} MiB</used_memory>\n"
        "\t\t\t</process_info>\n\t\t</processes>"
    )
    one = blocks[at]
    text = answer.text[: one.start()] + info + answer.text[one.end() :]
    return Change(answer.with_text(text), (gpu(at),), f"{at} processes")


OPS: dict[str, Op] = {
    "xml_set": set_value, "xml_shift": shift, "xml_error": error_cell, "xml_drop": drop,
    "xml_drop_everywhere": drop_everywhere, "xml_add": add, "xml_block": block, "xml_shuffle": shuffle,
    "xml_process": process, "xml_add_said": add_said,
}  # fmt: skip
