"""Perturbations of any text: truncated, with another exit status, with unexpected lines in between."""

from __future__ import annotations

from random import Random

from benchmarks.detection.perturb_model import Answer, Change, Op, Row


def cut(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Cut at any byte before the mark (`before`) that completes the output."""
    end = answer.text.rfind(row.more["before"]) if row.more.get("before") else len(answer.text.rstrip()) - 1
    if end < 1:
        return None
    return Change(answer.with_text(answer.text[: int(rng.random() * end)]), ("node",), "end")


def status(rng: Random, answer: Answer, row: Row) -> Change:
    """Change the exit status; `words` are appended to the output."""
    words = row.choice(rng, "words") if "words" in row.more else ""
    text = f"{answer.text.rstrip()}\n{words}\n" if words else answer.text
    return Change(Answer(text, row.choice(rng, "values"), answer.gpus), ("node",), "status")


def replace_all(rng: Random, answer: Answer, row: Row) -> Change:
    """Replace the whole output by `words`."""
    values = row.more.get("status", [answer.rc])
    return Change(
        Answer(f"{row.choice(rng, 'words')}\n", rng.choice(values), answer.gpus), ("node",), "everything"
    )


def insert(rng: Random, answer: Answer, row: Row) -> Change:
    """Insert a line, printed by the program or one of its libraries, at some place."""
    lines = answer.text.splitlines(keepends=True)
    at = rng.randrange(int(row.more.get("from", 0)), len(lines) + 1)
    if row.more.get("front"):
        at = 0
    lines.insert(at, f"{row.choice(rng, 'lines')}\n")
    return Change(answer.with_text("".join(lines)), ("node",), f"line {rng.random()}")


def swap(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Replace every occurrence of a text by another, such as a unit or another version's word."""
    pairs = [pair for pair in row.more["pairs"] if pair[0] in answer.text]
    if not pairs:
        return None
    old, new = rng.choice(pairs)
    return Change(answer.with_text(answer.text.replace(old, new)), ("part",), f"swap {old}")


def drop_line(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Drop one of the lines that contain any of these words."""
    lines = answer.text.splitlines(keepends=True)
    found = [at for at, line in enumerate(lines) if any(word in line for word in row.more["words"])]
    if not found:
        return None
    del lines[rng.choice(found)]
    return Change(answer.with_text("".join(lines)), ("node",), f"line {row.more['words'][0]}")


OPS: dict[str, Op] = {
    "cut": cut, "status": status, "replace_all": replace_all, "insert": insert, "swap": swap,
    "drop_line": drop_line,
}  # fmt: skip
