"""Mutations of samples, with which every registered check is run: no tool output can fool a check."""

from __future__ import annotations

import copy
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import Output
from provision.checks.gpu import telemetry
from provision.checks.judge import Verdict
from provision.checks.judging.registry import CHECKS
from tests.support.scenarios import ON_NVIDIA, UNREAD, Scenario, judged, scenarios
from tests.support.seed import SEED, times

# Number of positions at which text is cut or a line removed, per output and per check.
PLACES = times(5, 40)
ALL_PLACES = times(30, 1200)

# A log is the sum of its lines, so no parser can notice that one is missing. Losses are noticed by the
# transport (see test_a_cut_log_is_no_quiet_log) and at the end of the log, but not for each line.
LOGS = {"journal", "dmesg", "kernel_log_delta"}
# nvidia-smi -L is a list without an end marker. Cut between two lines it is a shorter list, exactly like that
# of a container without all GPUs, and only the transport can tell them apart.
LISTS = {"container"}

every_check = pytest.mark.parametrize("check", ON_NVIDIA)


class Dice(random.Random):
    """Seeded random numbers, so that hypothesis can find and repeat a case."""


Mutation = Callable[[Dice, str], str]


def stream(output: Output) -> str:
    """Return the name of the stream that holds the program's text."""
    return "stderr" if output.stderr and not output.stdout else "stdout"


def text_of(output: Output) -> str:
    return str(getattr(output, stream(output)))


def answers(one: Scenario, name: str, text: str, **more: Any) -> tuple[Output, ...]:
    """Return the outputs of a scenario with another text in one of them."""
    return tuple(replace(o, **{stream(o): text, **more}) if o.name == name else o for o in one.outputs)


def spoken(one: Scenario, logs: bool = True) -> list[Output]:
    return [o for o in one.outputs if text_of(o) and (logs or o.name not in LOGS)]


def one_of_each_kind(outputs: tuple[Output, ...]) -> list[Output]:
    """Return one output per kind of command, since some run once for each card or drive."""
    return list({re.sub(r"\d+", "", output.name): output for output in outputs}.values())


def of(check: str, *verdicts: Verdict) -> list[Scenario]:
    return [one for one in scenarios(check) if one.verdict in verdicts]


# --- mutations: damage that real output suffers ---


def _lines(change: Callable[[Dice, list[str]], list[str]]) -> Mutation:
    def mutate(dice: Dice, text: str) -> str:
        return "".join(change(dice, text.splitlines(keepends=True)))

    return mutate


def _drop(dice: Dice, lines: list[str]) -> list[str]:
    share = dice.choice((0.02, 0.1, 0.5))
    return [line for line in lines if dice.random() > share]


def _drop_block(dice: Dice, lines: list[str]) -> list[str]:
    start = dice.randrange(len(lines) + 1)
    return lines[:start] + lines[start + dice.randrange(1, 40) :]


def _double(dice: Dice, lines: list[str]) -> list[str]:
    return [line for line in lines for _ in range(1 + (dice.random() < 0.1))]


def _shuffle(dice: Dice, lines: list[str]) -> list[str]:
    start, size = dice.randrange(len(lines) + 1), dice.randrange(2, 20)
    block = lines[start : start + size]
    dice.shuffle(block)
    return lines[:start] + block + lines[start + size :]


NOISE = (
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n",
    "bash: warning: setlocale: LC_ALL: cannot change locale (de_DE.UTF-8)\n",
    "gpu-01:4711:4711 [0] NCCL WARN Call to connect failed\n",
    "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n",
    "0 0 0 0\n",
    "\x1b[31mERROR\x1b[0m\n",
    "\x00\x00\x00\n",
)


def _interleave(dice: Dice, lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        if dice.random() < 0.05:
            at = dice.randrange(len(line) + 1)
            found += [line[:at], dice.choice(NOISE), line[at:]]
        else:
            found.append(line)
    return found


def _cut(dice: Dice, text: str) -> str:
    return text[: dice.randrange(len(text) + 1)]


def _behead(dice: Dice, text: str) -> str:
    return text[dice.randrange(len(text) + 1) :]


LOSSES: dict[str, Mutation] = {
    "cut": _cut,
    "behead": _behead,
    "drop": _lines(_drop),
    "drop block": _lines(_drop_block),
}
DISORDER: dict[str, Mutation] = {
    "double": _lines(_double),
    "shuffle": _lines(_shuffle),
    "interleave": _lines(_interleave),
}


def _flip(dice: Dice, text: str) -> str:
    raw = bytearray(text.encode())
    for _ in range(dice.randrange(1, 20)):
        if raw:
            raw[dice.randrange(len(raw))] = dice.randrange(256)
    return raw.decode("utf-8", "replace")


# Replacements for numbers and words: other locales, other types, other versions, attacks.
STRANGE = (
    "N/A", "[N/A]", "-", "", "nan", "NaN", "-NaN", "inf", "-inf", "1e999", "0x10", "1,5", "1.234,56", "-1",
    "\uff11\uff12", "\u0663", "99999999999999999999999999", '"12.5"', "null", "true", "{}", "[]", "[[]]",
    '{"a": 1}', "Nicht verfügbar", "Aktiv", "non pris en charge", "<x/>", "&a;", "&#0;", "<![CDATA[1]]>",
    "\x00", "\ufeff", "\u202e12", "%s", "'" * 50, "(", "1" * 5000, "[" * 3000, "ERR!", "Unknown Error",
    "[Unknown Error]",
)  # fmt: skip


def _strange(dice: Dice, text: str) -> str:
    """Replace up to five words of the text with strange ones."""
    words = list(re.finditer(r"[\d.]+|\w+", text))
    for word in sorted(dice.sample(words, min(len(words), dice.randrange(1, 6))), key=lambda w: -w.start()):
        text = text[: word.start()] + dice.choice(STRANGE) + text[word.end() :]
    return text


def _commas(dice: Dice, text: str) -> str:
    return re.sub(r"(\d)\.(\d)", r"\1,\2", text, count=dice.choice((0, 1, 5)))


GONE = object()
OTHERS: tuple[Any, ...] = (
    GONE, None, "N/A", "", "\x00\x1b[31m\n", "1,5", [], {}, True, -1, 10**400, 1e308, float("nan"),
    "x", [[]], {"": 0},
)  # fmt: skip


def _altered(dice: Dice, document: Any) -> Any:
    """Return a document with up to three values of another type, as text, or missing."""
    document = copy.deepcopy(document)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys = (
            list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        )
        for key in keys:
            places.append((value, key))
            walk(value[key])

    walk(document)
    chosen = dice.sample(places, min(len(places), dice.randrange(1, 4)))
    for holder, key in chosen:
        holder[key] = dice.choice((*OTHERS, str(holder[key]), copy.deepcopy(holder[key])))
    for holder, _ in chosen:
        if isinstance(holder, dict):
            for name in [name for name, value in holder.items() if value is GONE]:
                del holder[name]
        else:
            holder[:] = [value for value in holder if value is not GONE]
    return document


def _retype(dice: Dice, text: str) -> str:
    """Change types in a JSON document, or append a column to each line of other text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return "".join(line.rstrip("\n") + f" {dice.choice(STRANGE)}\n" for line in text.splitlines(True))
    return json.dumps(_altered(dice, document))


def _bomb(dice: Dice, text: str) -> str:
    entity = '<!DOCTYPE b [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    deep = dice.choice(("[" * 100_000, '{"a":' * 50_000, "<a>" * 50_000, entity + "&b;" * 1000))
    return dice.choice((deep, text[: len(text) // 2] + deep + text[len(text) // 2 :], deep + text))


VANDALISM: dict[str, Mutation] = {
    "flip": _flip,
    "strange": _strange,
    "commas": _commas,
    "retype": _retype,
    "bomb": _bomb,
}


def mutated(dice: Dice, one: Scenario, kinds: dict[str, Mutation], logs: bool) -> tuple[Output, ...]:
    outputs = spoken(one, logs)
    if not outputs:
        return one.outputs
    output = dice.choice(outputs)
    text = text_of(output)
    for _ in range(dice.choice((1, 1, 2))):
        text = kinds[dice.choice(list(kinds))](dice, text)
    return answers(one, output.name, text)


# --- nothing crashes ---


@every_check
@given(seed=st.integers(0, 2**32))
def test_mutated_samples_raise_nothing_but_parse_errors(check: str, seed: int) -> None:
    dice = Dice(seed)
    one = dice.choice(scenarios(check))
    judged(check, one.node, mutated(dice, one, {**LOSSES, **DISORDER, **VANDALISM}, logs=True))


@every_check
@given(text=st.text(max_size=400), seed=st.integers(0, 2**32))
def test_any_text_raises_nothing_but_parse_errors(check: str, text: str, seed: int) -> None:
    dice = Dice(seed)
    one = dice.choice(scenarios(check))
    for output in one_of_each_kind(one.outputs):
        judged(check, one.node, answers(one, output.name, text))
        judged(check, one.node, answers(one, output.name, text, rc=dice.choice((None, 1, 14, 139))))


@every_check
@given(seed=st.integers(0, 2**32))
def test_any_fate_of_a_program_raises_nothing_but_parse_errors(check: str, seed: int) -> None:
    """Programs are killed at their deadline, missing, cut at the size limit or ended by a signal."""
    dice = Dice(seed)
    one = dice.choice(scenarios(check))
    fates: tuple[dict[str, Any], ...] = (
        {"rc": None, "timed_out": True, "seconds": 90.0},
        {"rc": None, "not_started": "No such file or directory"},
        {"rc": 0, "truncated": True},
        {"rc": -9, "stderr": "Killed"},
        {"rc": 255, "stderr": "\x00"},
    )
    outputs = [replace(o, **dice.choice(fates)) if dice.random() < 0.6 else o for o in one.outputs]
    outputs = [o for o in outputs if dice.random() > 0.1]
    judged(check, one.node, tuple(outputs))


@every_check
def test_silence_is_no_health(check: str) -> None:
    """Neither programs that print nothing, with any status, nor programs that never ran can pass."""
    for one in scenarios(check):
        for rc in (0, 1):
            if one.outputs:
                silent = tuple(replace(o, stdout="", rc=rc) for o in one.outputs)
                assert judged(check, one.node, silent) not in (Verdict.PASS, Verdict.WARN), one
                known = (Verdict.FAIL,) if one.node.facts and one.verdict is Verdict.FAIL else ()
                assert judged(check, one.node, ()) in (Verdict.ERROR, *known), one


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@every_check
@given(values=st.data(), seed=st.integers(0, 2**32))
def test_strange_facts_raise_nothing_but_parse_errors(check: str, values: st.DataObject, seed: int) -> None:
    names = getattr(CHECKS[check], "FACTS", ())
    if not names:
        return
    dice = Dice(seed)
    one = dice.choice(scenarios(check))
    facts = dict(one.node.facts)
    for name in dice.sample(list(names), dice.randrange(1, len(names) + 1)):
        facts.pop(name, None)
        if dice.random() < 0.8:
            facts[name] = values.draw(JSON)
    other = replace(one.node, facts=facts)
    CHECKS[check].commands(other, {})
    judged(check, other, one.outputs)


@every_check
@given(seed=st.integers(0, 2**32))
def test_altered_facts_raise_nothing_but_parse_errors(check: str, seed: int) -> None:
    """One fact has a text for a number, a list for a map, or a missing key."""
    dice = Dice(seed)
    one = dice.choice(scenarios(check))
    if one.node.facts:
        other = replace(one.node, facts=_altered(dice, dict(one.node.facts)))
        CHECKS[check].commands(other, {})
        judged(check, other, one.outputs)


@every_check
def test_facts_nobody_could_read_are_no_health(check: str) -> None:
    for one in scenarios(check):
        if getattr(CHECKS[check], "FACTS", ()) and not one.outputs:
            assert judged(check, replace(one.node, facts={}), ()) is Verdict.ERROR, one


# --- lost output does not turn a failure into a pass ---


@every_check
def test_every_check_has_a_healthy_and_a_sick_sample(check: str) -> None:
    """The tests below would otherwise try nothing; scenarios.py explains how samples are found."""
    assert of(check, Verdict.PASS), f"tests/fixtures/{check} has no sample that passes: {scenarios(check)}"
    assert of(check, Verdict.FAIL, Verdict.WARN), f"tests/fixtures/{check} has no sample that is flagged"


@every_check
def test_no_cut_and_no_lost_line_turns_fail_into_pass(check: str) -> None:
    """Failing outputs are cut at every position, or at as many as time permits."""
    acquitted = []
    failing = of(check, Verdict.FAIL)
    outputs = sum(len(spoken(one, logs=False)) for one in failing)
    places = max(1, min(PLACES, ALL_PLACES // max(1, outputs)))
    for one in failing:
        for output in spoken(one, logs=False):
            lines = text_of(output).splitlines(keepends=True)
            step = max(1, len(lines) // places)
            offset = Dice(f"{SEED}{one}{text_of(output)}").randrange(step)
            for place in range(offset, len(lines), step):
                less = {
                    "without line": lines[:place] + lines[place + 1 :],
                    "cut before line": lines[:place],
                    "cut inside line": [*lines[:place], lines[place][: len(lines[place]) // 2]],
                }
                acquitted += [
                    f"{one}: {output.name} {how} {place + 1}: {lines[place].strip()[:80]!r}"
                    for how, left in less.items()
                    if judged(check, one.node, answers(one, output.name, "".join(left))) is Verdict.PASS
                ]
    assert acquitted == []


# Facts that only explain or relax a limit, and facts that the check itself reports as unread.
ANY_TEXT = {"pci.hypervisor", "driver.loaded_version", "fabric.manager_version"}  # names and versions
HARMLESS_FACTS = {
    "host_health": {
        *("clock.uptime_s", "clock.largest_error_us", "kernel.release", "boot.required"),
        "driver.flavour",
    },
    # Compared with other nodes only; and IMEX, which the sample nodes do not need.
    "versions": {
        *("driver.flavour", "driver.userspace_version", "kernel.release", "boot.required"),
        *("firmware.gpu_vbios", "firmware.gpu_gsp", "firmware.bios_version", "firmware.system"),
        *("firmware.rdma", "fabric.imex_version", "fabric.imex_matches_driver"),
        "service.nvidia-imex.active",
    },
    "network_ports": {"clock.uptime_s", "hca.mtus"},
    "rdma_loopback": {"firmware.rdma", "module.nvidia_peermem.loaded"},  # the GPU nearby, and the route to it
}


@every_check
def test_no_lost_fact_turns_fail_into_pass(check: str) -> None:
    """A fact that is missing or of another type is unknown, and its former value must not count."""
    acquitted = []
    for one in of(check, Verdict.FAIL, Verdict.PASS):
        for name in set(one.node.facts) - HARMLESS_FACTS.get(check, set()):
            others: dict[str, Any] = {
                how: {**one.node.facts, name: value}
                for how, value in (("a number", 7), ("a text", "N/A"), ("lists", [[]]), ("a map", {"": {}}))
                if not (name in ANY_TEXT and how == "a text")
            }
            others["gone"] = {key: value for key, value in one.node.facts.items() if key != name}
            acquitted += [
                f"{one}: {name} {how}"
                for how, facts in others.items()
                if judged(check, replace(one.node, facts=facts), one.outputs) is Verdict.PASS
            ]
    assert acquitted == []


def _without_some(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the list once for each key and value of its entries, without that key or value."""
    for at, row in enumerate(value) if isinstance(value, list) else ():
        for key in row if isinstance(row, dict) else ():
            yield (
                f"[{at}] without {key}",
                [*value[:at], {k: row[k] for k in row if k != key}, *value[at + 1 :]],
            )


@every_check
def test_no_entry_that_lost_a_key_turns_fail_into_pass(check: str) -> None:
    acquitted = [
        f"{one}: {name}{how}"
        for one in of(check, Verdict.FAIL)
        for name in one.node.facts
        for how, less in _without_some(one.node.facts[name])
        if judged(check, replace(one.node, facts={**one.node.facts, name: less}), one.outputs) is Verdict.PASS
    ]
    assert acquitted == []


# One kernel log is enough if it reaches back to the boot. Samplers are optional here, since results of
# runs before they existed are judged again. A reply that lacks one is refused: see
# tests/validate/test_validate.py.
OPTIONAL = LOGS | {telemetry.NAME, telemetry.COUNTERS, "nvlink_errors"}


@every_check
def test_a_missing_output_is_no_health(check: str) -> None:
    for one in of(check, Verdict.PASS):
        for output in one.outputs:
            rest = tuple(o for o in one.outputs if o is not output)
            if output.name not in OPTIONAL and not UNREAD.fullmatch(output.name):
                assert judged(check, one.node, rest) is not Verdict.PASS, (one, output.name)


@every_check
@given(seed=st.integers(0, 2**32))
def test_no_loss_turns_fail_into_pass(check: str, seed: int) -> None:
    dice = Dice(seed)
    sick = of(check, Verdict.FAIL)
    if sick:
        one = dice.choice(sick)
        less = mutated(dice, one, {**LOSSES, **DISORDER}, logs=False)
        assert judged(check, one.node, less) is not Verdict.PASS, one


@every_check
@given(seed=st.integers(0, 2**32))
def test_nothing_turns_what_could_not_be_measured_into_pass(check: str, seed: int) -> None:
    dice = Dice(seed)
    unmeasured = of(check, Verdict.ERROR)
    if unmeasured:
        one = dice.choice(unmeasured)
        other = mutated(dice, one, {**LOSSES, **DISORDER, "commas": _commas}, logs=True)
        assert judged(check, one.node, other) is not Verdict.PASS, one


@every_check
@given(seed=st.integers(0, 2**32))
def test_half_an_output_is_no_verdict(check: str, seed: int) -> None:
    """A truncated healthy output is not a measurement and must not fail a healthy part."""
    dice = Dice(seed)
    healthy = of(check, Verdict.PASS)
    outputs = spoken(one := dice.choice(healthy), logs=False) if healthy else []
    if outputs:
        output = dice.choice(outputs)
        body = text_of(output).rstrip()
        length = dice.randrange(len(body))
        if output.name in LISTS and (not length or "\n" in body[length - 1 : length + 1]):
            return
        cut = answers(one, output.name, body[:length])
        assert judged(check, one.node, cut) is not Verdict.FAIL, (one, output.name)


@every_check
@pytest.mark.parametrize("mark", [{"truncated": True}, {"rc": None, "timed_out": True}, {"rc": 1}])
def test_a_cut_log_is_no_quiet_log(check: str, mark: dict[str, Any]) -> None:
    """A log marked as incomplete can neither prove that nothing happened nor hide the events it shows."""
    for one in of(check, Verdict.PASS, Verdict.FAIL):
        logs = [o for o in one.outputs if o.name in LOGS and o.stdout]
        if logs:
            cut = tuple(replace(o, **mark) if o in logs else o for o in one.outputs)
            assert judged(check, one.node, cut) is not Verdict.PASS, (one, mark)


# --- nothing takes forever ---

# Characters (a node sends two million at most), and CPU seconds that parsing them may take; the slowest
# check takes a tenth of that.
HUGE, MOMENT = times(100_000, 500_000), times(2, 10)


@every_check
@pytest.mark.parametrize(
    "piece",
    ["a", "1", " ", "\t", "\n", "[", "#", "# ", "1 ", "0.0%  ", "GPU ", "GPU 0: OK\n", "errors: ",
     "temps: 1 C - ", "Link 0: ", "NVRM: Xid (PCI:", "<gpu>", '{"a":', "-", "N/A ", ": ", "Test "],
)  # fmt: skip
def test_a_long_strange_output_is_read_in_a_moment(check: str, piece: str) -> None:
    """A parser of quadratic complexity would let one sick node hold up a fleet."""
    one = scenarios(check)[0]
    for head in ("", *{output.stdout[:2000] for output in one.outputs}):
        text = head + piece * (HUGE // len(piece))
        for output in one_of_each_kind(one.outputs):
            started = time.process_time()
            judged(check, one.node, answers(one, output.name, text))
            assert time.process_time() - started < MOMENT, (output.name, head[:40])
