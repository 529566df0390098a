"""Perturbations of tables and lines: NVLinks, nccl-tests, gpu_burn, perftest, the kernel log."""

from __future__ import annotations

import re
from random import Random

from benchmarks.detection.perturb_model import Answer, Change, Op, Row, gpu

_GPU = re.compile(r"^GPU (\d+): ", re.MULTILINE)


def link(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Replace one GPU's line of link `{n}`, with its counter `{c}`; an empty text drops the line."""
    found = list(re.finditer(row.more["line"], answer.text, re.MULTILINE))
    if not found:
        return None
    one = rng.choice(found)
    hit = int([match[1] for match in _GPU.finditer(answer.text[: one.start()])][-1])
    words = str(row.choice(rng, "values")).format(n=one[1], before=one[0], c=one[one.lastindex or 0])
    end = one.end() + (not words)
    text = answer.text[: one.start()] + words + answer.text[end:]
    return Change(answer.with_text(text), (gpu(hit),), f"gpu{hit}")


def links_all(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Add a line after, or replace the line of, every link of every GPU."""
    words = str(row.choice(rng, "values"))
    text = re.sub(
        row.more["line"], lambda m: words.format(n=m[1], before=m[0]), answer.text, flags=re.MULTILINE
    )
    return Change(answer.with_text(text), (), "all links") if text != answer.text else None


def links_of_one(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Replace all links of one GPU by a sentence, or drop that GPU."""
    blocks = list(re.finditer(r"^(GPU (\d+): .*\n)((?:[ \t].*\n|\n)*)", answer.text, re.MULTILINE))
    blocks = [one for one in blocks if one[3].strip()]
    if not blocks:
        return None
    one = rng.choice(blocks)
    how = row.choice(rng, "values")
    middle = {"nothing": "", "head": one[1], "twice": one[0] * 2}.get(how, f"{one[1]}{how}\n")
    text = answer.text[: one.start()] + middle + answer.text[one.end() :]
    return Change(answer.with_text(text), (f"gpu{one[2]}",), f"gpu{one[2]}")


_TABLE = re.compile(r"^ +\d+ +\d+ +float.*$", re.MULTILINE)


def nccl_cell(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change cells of nccl-tests' table. `slow`: all rates fall by this factor.
    `wrong`: wrong elements in a row; `unchecked`: no verification; `word`: replaces one number."""
    rows = list(_TABLE.finditer(answer.text))
    if not rows:
        return None
    hit, text = rng.choice(rows).start(), answer.text
    factor = row.choice(rng, "slow") if "slow" in row.more else 0.0
    for one in reversed(rows):
        words = one[0].split()
        if factor:
            for at in (5, 9):
                words[at] = f"{float(words[at]) / factor:.1f}"
                words[at + 1 : at + 3] = [f"{float(word) * factor:.2f}" for word in words[at + 1 : at + 3]]
        elif row.more.get("unchecked"):
            words[8] = words[12] = "N/A"
        elif one.start() != hit:
            continue
        elif "word" in row.more:
            words[rng.choice(row.more["columns"])] = row.choice(rng, "word")
        else:
            words[rng.choice((8, 12))] = str(row.choice(rng, "wrong"))
        text = text[: one.start()] + "  ".join(words) + text[one.end() :]
    if "wrong" in row.more:
        text = text.replace("values : 0 OK", f"values : {rng.randint(1, 9)} FAILED")
    return Change(answer.with_text(text), ("node",), "table")


_PROGRESS = re.compile(r"proc'd: (.*?)(\s+errors: )(.*?)(\s+temps: )([^\r\n]*)")
_SPLIT = re.compile(r"(?<=\S) - (?=\S)")


def burn(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change one GPU of gpu_burn.
    `slow`: its rate falls by this factor, from the beginning or from some report on (`middle`); `errors`:
    wrong results from some report on; `died`: its worker died; `ends`: its line in the result."""
    reports = list(_PROGRESS.finditer(answer.text))
    if not reports:
        return None
    hit, text = rng.randrange(len(answer.gpus)), answer.text
    first = rng.randrange(len(reports) // 10, int(len(reports) * 0.45)) if row.more.get("middle") else 0
    factor = row.choice(rng, "slow") if "slow" in row.more else 1.0
    for one in reversed(reports[first:]):
        rates, errors = _SPLIT.split(one[1]), one[3].split(" - ")
        if hit >= len(rates) or hit >= len(errors):
            continue
        if factor != 1.0:
            rates[hit] = re.sub(r"\((\d+) ", lambda m: f"({int(int(m[1]) * factor)} ", rates[hit])
        if "errors" in row.more:
            errors[hit] = f"{row.more['errors'][0]} (WARNING!)" if one is reports[first] else errors[hit]
        if row.more.get("died"):
            rates[hit], errors[hit] = "-1 (0 Gflop/s)", f"{row.choice(rng, 'died')}  (DIED!)"
        heat = " - ".join("--" for _ in rates) + " " if row.more.get("without_heat") else one[5]
        if row.more.get("power"):
            heat = (
                heat.rstrip() + "   power: " + " - ".join(f"{rng.randint(600, 699)} W" for _ in rates) + " "
            )
        changed = f"proc'd: {' - '.join(rates)}{one[2]}{' - '.join(errors)}{one[4]}{heat}"
        text = text[: one.start()] + changed + text[one.end() :]
    if "ends" in row.more:
        ended = row.choice(rng, "ends")
        text = re.sub(
            rf"^\tGPU {hit}: OK\n", f"\tGPU {hit}: {ended}\n" if ended else "", text, flags=re.MULTILINE
        )
    return Change(answer.with_text(text), (gpu(hit),), f"gpu{hit}")


def perftest(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change the row of ib_write_bw: its average falls by a factor, or a word replaces a cell."""
    one = re.search(r"^ (\d+ +\d+ +)(\S+)( +)(\S+)( .*)$", answer.text, re.MULTILINE)
    if one is None:
        return None
    if "slow" in row.more:
        factor = row.choice(rng, "slow")
        if "---" in (one[2], one[4]):  # an earlier change replaced the number
            return None
        cells = f"{float(one[2]) * factor:.2f}", f"{float(one[4]) * factor:.2f}"
    else:
        cells = one[2], row.choice(rng, "values")
    text = (
        f"{answer.text[: one.start()]} {one[1]}{cells[0]}{one[3]}{cells[1]}{one[5]}{answer.text[one.end() :]}"
    )
    return Change(answer.with_text(text), ("port",), "row")


def kernel(rng: Random, answer: Answer, row: Row) -> Change:
    """Add kernel log lines at some moment after the driver was loaded.
    `{a}`: a GPU's address (0000:1b:00), `{s}` an NVSwitch's, `{c}` one of the Xids `codes`, `{pid}` a number.
    """
    lines = answer.text.splitlines(keepends=True)
    hit = rng.randrange(len(answer.gpus))
    address = answer.gpus[hit].lower().rpartition(".")[0][-10:]
    at = rng.randrange(min(len(lines), max(1, len(lines) - 2)), len(lines) + 1)  # a log may be empty
    began = rng.uniform(1000, 400000)
    switch = next(f"0000:{bus:02x}:00" for bus in range(5, 255) if f"0000:{bus:02x}:00.0" not in answer.gpus)
    words = {
        "a": address,
        "s": switch,
        "c": rng.choice(row.more.get("codes", [0])),
        "pid": rng.randint(500, 99999),
    }
    many = int(rng.choice(row.more.get("times", [1])))
    text = str(row.choice(rng, "lines")).format(**words).rstrip("\n").split("\n")
    new = [f"[{began + turn * 0.2:12.6f}] {one}\n" for turn in range(many) for one in text]
    lines[at:at] = new
    devices = ("node",) if row.more.get("node") else (gpu(hit), f"gpu@{address}")
    return Change(answer.with_text("".join(lines)), devices, f"gpu{hit}")


OPS: dict[str, Op] = {
    "link": link, "links_all": links_all, "links_of_one": links_of_one, "nccl_cell": nccl_cell,
    "burn": burn, "perftest": perftest, "kernel": kernel,
}  # fmt: skip
