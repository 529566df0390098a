"""Judgements of perturbed outputs as tables, with the name of every wrongly judged output."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.detection import perturb
from benchmarks.detection.perturb_trial import SURFACES
from benchmarks.detection.scores import Share

BEGIN, END = "<!-- perturbed: begin -->", "<!-- perturbed: end -->"

Outcome = Mapping[str, Any]

WORDS = {
    "smi_xml": "nvidia-smi -q -x",
    "nvlink_status": "nvidia-smi nvlink -s",
    "nvlink_errors": "nvidia-smi nvlink -e",
    "kernel_log": "kernel log",
    "kernel_delta": "kernel log, during a test",
    "gpu_answers": "nvidia-smi --query-gpu, after a test",
    "telemetry": "nvidia-smi --query-gpu, under load",
    "error_counters": "nvidia-smi dmon, under load",
    "gpu_burn": "gpu_burn",
    "nccl": "nccl-tests",
    "ddp": "ddp_scaling",
    "nvbandwidth_p2p": "nvbandwidth, between GPUs and host",
    "nvbandwidth_memory": "nvbandwidth, GPU memory",
    "dcgm4": "dcgmi diag, DCGM 4",
    "dcgm3": "dcgmi diag, DCGM 3",
    "ib_write_bw": "ib_write_bw",
    "rdma_port": "sysfs of RDMA ports",
    "fio": "fio",
    "nvme": "nvme smart-log",
}


def head(asked: int, judged: int) -> str:
    """Render the command and the generator that produced the figures."""
    command = f"`python -m benchmarks.detection --perturbed {asked}`"
    return f"{command}: {judged} outputs with fixed seeds, of the generator {perturb.digest()}."


def kind(one: Outcome) -> str:
    """Return the kind of error in the judgement of an output; empty if it is correct."""
    if one["crash"]:
        return "traceback"
    if one["wrong_pass"]:
        return "wrong pass"
    if one["alarm"]:
        return "false alarm"
    if one["faults"] and not one["errors"] and not one["named"]:
        return "error, cause not named" if one["verdict"] == "error" else "not named"
    if one["innocent"]:
        return "wrong blame"
    return ""


def misses(outcomes: Iterable[Outcome]) -> list[tuple[str, str, int, str]]:
    """Return (kind of error, surface, number, name) of every wrongly judged output."""
    found = [(kind(one), one["surface"], one["number"], one["name"]) for one in outcomes if kind(one)]
    order = list(SURFACES)
    return sorted(found, key=lambda miss: (miss[0], order.index(miss[1]), miss[2]))


def listed(document: str) -> list[tuple[str, str, int, str]]:
    """Parse the wrong judgements that a document lists."""
    section = document.partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| ([a-z ,]+) \| (\w+) \| (\d+) \| (.+) \|$", section, re.MULTILINE)
    return [(what, surface, int(number), name) for what, surface, number, name in rows]


def lines(outcomes: Sequence[Outcome], how: str) -> list[str]:
    """Render the section of docs/detection.md."""
    by_surface: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        by_surface[one["surface"]].append(one)
    rows = [_row(WORDS[name], by_surface[name]) for name in SURFACES if by_surface[name]]
    return [how, "", *_HEAD, *rows, _row("**all**", outcomes), "", *_missed(outcomes), "", *_hidden(outcomes)]


_HEAD = (
    "| output of | tried | fault named (95 % interval) | nobody else blamed | error, cause not named |"
    " not to be trusted: no pass | harmless: unchanged | wrong pass | traceback |",
    "|---|---:|---|---|---|---|---|---:|---:|",
)


def _row(words: str, outcomes: Sequence[Outcome]) -> str:
    plain = [one for one in outcomes if one["faults"] and not one["errors"]]
    untrusted = [one for one in outcomes if one["errors"]]
    harmless = [one for one in outcomes if not one["faults"] and not one["errors"]]
    named = [one for one in plain if one["named"]]
    unnamed = [one for one in plain if kind(one) == "error, cause not named"]
    cells = (
        words,
        len(outcomes),
        _share(Share(len(named), len(plain)), interval=True),
        Share(sum(not one["innocent"] for one in outcomes), len(outcomes)),
        Share(len(unnamed), len(plain)),
        Share(sum(not one["wrong_pass"] for one in untrusted), len(untrusted)),
        Share(sum(not one["alarm"] for one in harmless), len(harmless)),
        sum(one["wrong_pass"] for one in outcomes),
        sum(one["crash"] for one in outcomes),
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _share(share: Share, *, interval: bool) -> str:
    if not share.of or not interval:
        return str(share)
    low, high = share.interval
    return f"{share} ({low:.1%} to {high:.1%})"


def _missed(outcomes: Iterable[Outcome]) -> list[str]:
    found = misses(outcomes)
    if not found:
        return ["No output was judged wrongly."]
    head = ["Judged wrongly:", "", "| what | output of | number | perturbation |", "|---|---|---:|---|"]
    return [*head, *(f"| {what} | {surface} | {number} | {name} |" for what, surface, number, name in found)]


def _hidden(outcomes: Iterable[Outcome]) -> list[str]:
    """List faults in untrusted answers that were not named: how many, and which change hid them."""
    hidden = [one for one in outcomes if one["faults"] and one["errors"] and not one["named"]]
    both = sum(bool(one["faults"] and one["errors"]) for one in outcomes)
    counted = Counter((one["surface"], " + ".join(one["untrusted"])) for one in hidden)
    order = list(SURFACES)
    by_surface: dict[str, list[str]] = defaultdict(list)
    for (surface, name), count in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
        by_surface[surface].append(f"{name} ({count})")
    head = (
        f"In {both} outputs a fault stands in an answer that cannot be trusted, too; "
        f"in {len(hidden)} it is not named beside the error. What hid it, and how often:"
    )
    names = sorted(by_surface, key=order.index)
    return [head, "", *(f"- {WORDS[name]}: {', '.join(by_surface[name])}" for name in names)]
