"""Perturbations of JSON documents: nvbandwidth, dcgmi, fio, nvme."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from benchmarks.detection.perturb_model import Answer, Change, Op, Row, gpu


def _document(answer: Answer) -> tuple[str, Any] | None:
    begin = answer.text.find("{")
    try:
        return answer.text[:begin], json.loads(answer.text[begin:])
    except ValueError:  # an earlier change broke the document
        return None


def _printed(answer: Answer, head: str, document: Any) -> Answer:
    return answer.with_text(f"{head}{json.dumps(document, indent=2)}\n")


def _places(document: Any, path: tuple[str, ...], *, new: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of each match of a path in which `*` stands for every item.
    `new`: the last member need not exist."""
    if isinstance(document, list):
        numbers = range(len(document))
        keys: list[Any] = [at for at in numbers if path[0] in ("*", str(at))]
    elif isinstance(document, dict):
        there = path[0] in document or (new and len(path) == 1)
        keys = list(document) if path[0] == "*" else [path[0]] if there else []
    else:
        return
    for key in keys:
        if len(path) == 1:
            yield document, key
        else:
            yield from _places(document[key], path[1:], new=new)


def _at(rng: Random, document: Any, row: Row, *, new: bool = False) -> tuple[Any, Any, str] | None:
    found = [
        (container, key, path)
        for path in row.more["paths"]
        for container, key in _places(document, tuple(path.split("/")), new=new)
    ]
    return rng.choice(found) if found else None


def put(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Put another value at one of these places; `*0.5` scales the present number."""
    read = _document(answer)
    place = _at(rng, read[1], row, new=True) if read else None
    if read is None or place is None:
        return None
    container, key, path = place
    value = row.choice(rng, "values")
    if isinstance(value, str) and value[:1] == "*":
        number = float(container[key]) * float(value[1:])
        value = f"{number:.6g}" if isinstance(container[key], str) else type(container[key])(number)
    container[key] = value
    return Change(_printed(answer, *read), ("part",), path)


def remove(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Remove one of these members."""
    read = _document(answer)
    place = _at(rng, read[1], row) if read else None
    if read is None or place is None:
        return None
    del place[0][place[1]]
    return Change(_printed(answer, *read), ("part",), place[2])


def add(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Add a member that a newer version has."""
    read = _document(answer)
    place = _at(rng, read[1], row) if read else None
    if read is None or place is None or not isinstance(place[0][place[1]], dict):
        return None
    name, value = row.choice(rng, "members")
    place[0][place[1]][name] = value
    return Change(_printed(answer, *read), (), f"new {name}")


def mix(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Shuffle the members of every object."""
    del row
    read = _document(answer)
    if read is None:
        return None

    def mixed(value: Any) -> Any:
        if isinstance(value, list):
            return [mixed(one) for one in value]
        if not isinstance(value, dict):
            return value
        names = list(value)
        rng.shuffle(names)
        return {name: mixed(value[name]) for name in names}

    return Change(_printed(answer, read[0], mixed(read[1])), (), "order")


def _matrices(document: Any, words: list[str]) -> list[Any]:
    cases = document.get("nvbandwidth", {}).get("testcases", [])
    return [
        case["bandwidth_matrix"] for case in cases if case.get("name") in words and "bandwidth_matrix" in case
    ]


def gpu_rate(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change nvbandwidth's cells of one GPU in all of these test cases; `values` as in `put`."""
    read = _document(answer)
    matrices = _matrices(read[1], row.more["cases"]) if read else []
    if read is None or not matrices:
        return None
    hit, value = rng.randrange(len(answer.gpus)), row.choice(rng, "values")
    for cells in matrices:
        for number, line in enumerate(cells):
            for at in range(len(line)):
                if (at == hit or (len(cells) > 1 and number == hit)) and line[at] != "N/A":
                    line[at] = _cell(line[at], value)
    return Change(_printed(answer, *read), (gpu(hit),), f"gpu{hit}")


def pair_rate(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change nvbandwidth's cells of one pair of GPUs in both directions."""
    read = _document(answer)
    matrices = [cells for cells in _matrices(read[1], row.more["cases"]) if len(cells) > 1] if read else []
    if read is None or not matrices:
        return None
    a, b = sorted(rng.sample(range(len(matrices[0])), 2))
    value = row.choice(rng, "values")
    for cells in matrices:
        for one, other in ((a, b), (b, a)):
            if cells[one][other] != "N/A":
                cells[one][other] = _cell(cells[one][other], value)
    devices = (f"gpu{a}-gpu{b}", f"gpu{a}->gpu{b}", f"gpu{b}->gpu{a}")
    return Change(_printed(answer, *read), devices, f"pair {a} {b}")


def _cell(cell: object, value: str) -> object:
    if value[:1] != "*":
        return value
    try:
        return f"{float(str(cell)) * float(value[1:]):.6g}"
    except ValueError:  # an earlier change broke the number
        return cell


def dcgm(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change the status of one GPU's result in one of dcgmi's hardware tests, or remove the result."""
    read = _document(answer)
    if read is None:
        return None
    body = next((value for key, value in read[1].items() if key.startswith("DCGM")), None)
    if not isinstance(body, dict) or not isinstance(body.get("test_categories"), list):
        return None  # an earlier change broke the document
    found = [
        (results, at)
        for category in body.get("test_categories", [])
        if isinstance(category, dict)
        for test in category.get("tests", [])
        if isinstance(test, dict)
        for results in [test.get("results") or []]
        for at, result in enumerate(results)
        if result
        and ("entity_id" in result or "gpu_id" in result)
        and (category.get("category") != "Deployment") is not bool(row.more.get("deployment"))
        and str(result["status"]).lower() == "pass"
    ]
    if not found:
        return None
    results, at = rng.choice(found)
    device = gpu(int(results[at].get("entity_id", results[at].get("gpu_id"))))
    old = "gpu_id" in results[at]
    if row.more.get("gone"):
        del results[at]
        return Change(_printed(answer, *read), (device,), device)
    status = row.choice(rng, "status")
    results[at]["status"] = status.upper() if old else status
    if "severity" in row.more:
        severity, words = row.choice(rng, "severity"), row.choice(rng, "words").format(device[3:])
        warning = {"warning": words, "error_id": 43, "error_category": 10, "error_severity": severity}
        results[at]["warnings"] = [warning]
    return Change(_printed(answer, *read), (device,), device)


def rank(rng: Random, answer: Answer, row: Row) -> Change | None:
    """Change numbers of one rank in some phases of ddp_scaling's output, a JSON object per line.
    `times`: multiply by this factor, with a step of all ranks that is `longer`, too; `one`: in one of the
    phases and lists put one of `values`, or remove the number (`gone`)."""
    lines = answer.text.splitlines()
    try:
        documents = [json.loads(line) for line in lines]
    except ValueError:  # an earlier change broke the document
        return None
    hit = rng.randrange(len(answer.gpus))
    places = [
        (at, name)
        for at, document in enumerate(documents)
        if document.get("phase") in row.more["phases"]
        for name in row.more["names"]
        if len(document.get(name) or ()) > hit
    ]
    if not places:
        return None
    factor = row.choice(rng, "times") if "times" in row.more else 0.0
    for at, name in [rng.choice(places)] if row.more.get("one") else places:
        if "longer" in row.more:
            steps = documents[at]["step_ms"]
            documents[at]["step_ms"] = [round(step * row.more["longer"], 4) for step in steps]
        if row.more.get("gone"):
            del documents[at][name][hit]
        elif factor:
            documents[at][name][hit] = round(documents[at][name][hit] * factor, 4)
        else:
            documents[at][name][hit] = row.choice(rng, "values")
        lines[at] = json.dumps(documents[at])
    return Change(answer.with_text("\n".join(lines) + "\n"), (gpu(hit),), f"gpu{hit}")


OPS: dict[str, Op] = {
    "json_put": put, "json_remove": remove, "json_add": add, "json_mix": mix, "gpu_rate": gpu_rate,
    "pair_rate": pair_rate, "dcgm": dcgm, "rank": rank,
}  # fmt: skip
