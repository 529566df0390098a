"""Perturbations of rows that nvidia-smi samples: `--query-gpu` as CSV, and `dmon`."""

from __future__ import annotations

import re
from random import Random

from benchmarks.detection.perturb_model import Answer, Change, Op, Row, gpu


def _csv(answer: Answer) -> tuple[list[str], list[list[str]]]:
    lines = answer.text.splitlines()
    return lines[0].split(", "), [line.split(", ") for line in lines[1:]]


def _joined(header: list[str], rows: list[list[str]]) -> str:
    return "".join(f"{', '.join(cells)}\n" for cells in [header, *rows])


def _column(header: list[str], name: str) -> int | None:
    names = [cell.split(" [")[0] for cell in header]
    return names.index(name) if name in names else None


def cells(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Replace cells in one GPU's rows: one of `columns`, or all with `all: true`, by one of `values`.
    All rows change, those from some row on (`middle`), or only one (`once`)."""
    header, rows = _csv(answer)
    index = _column(header, "index")
    known = [at for name in row.more["columns"] if (at := _column(header, name)) is not None]
    if index is None or not known:
        return None
    hit = rng.randrange(len(answer.gpus))
    own = [cells for cells in rows if len(cells) == len(header) and cells[index] == str(hit)]
    if len(own) < (5 if row.more.get("once") else 4 if row.more.get("middle") else 0):
        return None  # an earlier change removed the rest
    if row.more.get("once"):
        own = [rng.choice(own[2:-2])]
    elif row.more.get("middle"):
        own = own[rng.randrange(1, int(len(own) * 0.6)) :]
    columns = known if row.more.get("all") else [rng.choice(known)]
    value = str(row.choice(rng, "values"))
    try:
        for cells_of in own:
            for at in columns:
                cells_of[at] = _moved(cells_of[at], value)
    except ValueError:  # an earlier change replaced the numbers
        return None
    return Change(answer.with_text(_joined(header, rows)), (gpu(hit),), f"gpu{hit}")


def _moved(cell: str, value: str) -> str:
    """Return the new cell; `*0.5` and `+30` change the present number."""
    if value[:1] == "*":
        return f"{float(cell) * float(value[1:]):.2f}"
    if value[:1] == "+":
        return f"{float(cell) + float(value[1:]):.0f}"
    return value


def leaves_off(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Omit a GPU from some row on; a line may report it."""
    header, rows = _csv(answer)
    index = _column(header, "index")
    if index is None:
        return None
    hit = rng.randrange(len(answer.gpus))
    at = rng.randrange(len(rows) // 5, len(rows) // 2)
    kept = [c for number, c in enumerate(rows) if number < at or len(c) <= index or c[index] != str(hit)]
    if "lines" in row.more:
        kept.insert(at, [row.choice(rng, "lines").format(address=answer.gpus[hit], index=hit)])
    return Change(answer.with_text(_joined(header, kept)), (gpu(hit),), f"gpu{hit}")


def stops(rng: Random, answer: Answer, row: Row) -> Change:
    """End the sampler on its own within the first tenth."""
    lines = answer.text.splitlines(keepends=True)
    kept = lines[: rng.randrange(len(answer.gpus) + 1, max(len(answer.gpus) + 2, len(lines) // 10))]
    text, devices = "".join(kept), ["node"]
    if "words" in row.more:
        text += row.choice(rng, "words").format(address=answer.gpus[0]) + "\n"
        devices.append("gpu0")
    return Change(Answer(text, row.choice(rng, "status"), answer.gpus), tuple(devices), "end")


def order(rng: Random, answer: Answer, row: Row) -> Change:
    """Shuffle the GPUs of each sample."""
    del row
    header, rows = _csv(answer)
    size = len(answer.gpus)
    mixed = []
    for at in range(0, len(rows), size):
        sample = rows[at : at + size]
        whole = len(sample) == size and all(len(cells) == len(header) for cells in sample)
        mixed += rng.sample(sample, size) if whole else sample
    return Change(answer.with_text(_joined(header, mixed)), (), "order")


def column(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Append one more column, as a newer version may print it."""
    header, rows = _csv(answer)
    name, value = row.choice(rng, "added")
    more = [[*cells, value] if len(cells) == len(header) else cells for cells in rows]
    return Change(answer.with_text(_joined([*header, name], more)), (), "columns")


_DMON = re.compile(r"^\s+(\d+)\s")


def counter(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Let a dmon counter grow from some row on, or keep an earlier value."""
    lines = answer.text.splitlines(keepends=True)
    head = next((line for line in lines if line.startswith("# gpu")), "")
    names = head.split()[1:]
    if row.more["column"] not in names:
        return None
    at, hit = names.index(row.more["column"]), rng.randrange(len(answer.gpus))
    own = [n for n, line in enumerate(lines) if (m := _DMON.match(line)) and m[1] == str(hit)]
    first = 0 if row.more.get("before") else rng.randrange(1, max(2, len(own) // 2))
    value, step = row.choice(rng, "values"), 0 if row.more.get("before") else 1
    for turn, number in enumerate(own[first:]):
        words = lines[number].split()
        if len(words) != len(names):
            continue
        words[at] = str(value if isinstance(value, str) else value + turn * step)
        lines[number] = "".join(f"{word:>5}  " for word in words).rstrip() + " \n"
    return Change(answer.with_text("".join(lines)), (gpu(hit),), f"gpu{hit} {row.more['column']}")


def dmon_leaves(rng: Random, answer: Answer, row: Row) -> Change:
    """Omit a GPU from dmon, always or from some sample on (`middle`); a line may report it."""
    lines = answer.text.splitlines(keepends=True)
    hit = rng.randrange(len(answer.gpus))
    own = [n for n, line in enumerate(lines) if (m := _DMON.match(line)) and m[1] == str(hit)]
    gone = own[rng.randrange(1, max(2, len(own) // 2)) :] if row.more.get("middle") else own
    words = ""
    if "lines" in row.more:
        words = f"{row.choice(rng, 'lines').format(address=answer.gpus[hit], index=hit)}\n"
    kept = [words if n == gone[0] else line for n, line in enumerate(lines) if n not in gone[1:]]
    return Change(answer.with_text("".join(kept)), (gpu(hit),), f"gpu{hit}")


def reply(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change one GPU's line of `index, pci.bus_id, serial, temperature.gpu` without a header.
    Other `cells`, or no line; `instead`: a text in place of all lines."""
    lines = answer.text.splitlines(keepends=True)
    known = [at for at, line in enumerate(lines) if line.count(", ") == 3]
    if not known:
        return None
    at = rng.choice(known)
    hit = next(n for n, address in enumerate(answer.gpus) if address.lower() in lines[at].lower())
    if "instead" in row.more:
        words = row.choice(rng, "instead").format(address=answer.gpus[hit], index=hit)
        return Change(Answer(f"{words}\n", 255, answer.gpus), (gpu(hit),), f"gpu{hit}")
    cells = lines[at].rstrip("\n").split(", ")
    value = row.choice(rng, "values") if "values" in row.more else ""
    for cell in row.more.get("cells", ()):
        cells[cell] = value
    lines[at] = f"{', '.join(cells)}\n" if value else ""
    return Change(answer.with_text("".join(lines)), (gpu(hit),), f"gpu{hit}")


def dmon_column(rng: Random, answer: Answer, row: Row) -> Change:
    """Append one more column to dmon's output."""
    name, unit = row.choice(rng, "added")
    lines = []
    for line in answer.text.splitlines():
        words = line.split()
        more = name if words[:2] == ["#", "gpu"] else unit if words[:1] == ["#"] else "0"
        lines.append(f"{line.rstrip()}  {more:>5} " if words else line)
    return Change(answer.with_text("\n".join(lines) + "\n"), (), "columns")


OPS: dict[str, Op] = {
    "csv_cells": cells, "csv_leaves_off": leaves_off, "csv_stops": stops, "csv_order": order,
    "csv_column": column, "dmon_counter": counter, "dmon_column": dmon_column,
    "dmon_leaves": dmon_leaves, "answer": reply,
}  # fmt: skip
