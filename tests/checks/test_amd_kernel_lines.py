"""Catalogue of AMD's kernel log lines: known forms match, and no added line lowers a verdict.

Lines of MI300: amdgpu_ras.c and ras_aca.c (printf formats), ROCm/legacy-rocm-build issue 4021 (three
reporters), a public log of a GPU that left the bus 10 ms after a fatal error, amd/node-scraper's tests.
"""

from __future__ import annotations

import random
import re
import runpy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from provision import paths, shipped
from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import kernel_incidents, kernel_log, kernel_meaning
from provision.checks.kernel.vendors import driver_log
from provision.node.burnin.amd_gpus import amd_fatal
from provision.node.burnin.tool_output import message_of
from provision.yamlfile import load
from tests.checks.amd_node import ADDRESSES, GPUS
from tests.support.seed import SEED, times

ROOT = paths.DATA.parents[1]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/catalogue_amd.py"), run_name="script")
RECORDED = load(ROOT / "tests/fixtures/kernel_log/node-scraper.yml")
AT = "amdgpu 0000:65:00.0: "
DIE = AT + "{1}socket: 3, die: 0, "
BANK = AT + "{1}[Hardware Error]: aca entry[00].STATUS="

# Lines by kind.
LINES: dict[str, list[str]] = {
    "lost": [AT + "amdgpu: device lost from bus!"],
    "link_gone": [
        "pcieport 0000:72:00.0: pciehp: Slot(15): Link Down",
        "pcieport 0000:72:00.0: pciehp: Slot(15): Card not present",
    ],
    "fatal_event": [
        AT + "{1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        AT + "amdgpu: uncorrectable hardware error (ERREVENT_ATHUB_INTERRUPT) detected!",
        AT + "{7} Uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "[drm] RAS event of type ERREVENT_ATHUB_INTERRUPT detected!",
    ],
    "init_failed": [
        AT + "amdgpu: Fatal error during GPU init",
        AT + "amdgpu: get invalid ip discovery binary signature",
    ],
    "block_failed": [
        "[drm:amdgpu_device_init.cold [amdgpu]] *ERROR* hw_init of IP block <psp> failed -22",
        AT + "amdgpu: sw_init of IP block <gmc_v9_0> failed -22",
        AT + "amdgpu: resume of IP block <sdma_v4_4_2> failed -110",
    ],
    "links_failed": [AT + "amdgpu: XGMI: Set topology failure on device 1a2b, hive 3c4d, ret -22"],
    "pages_full": [
        AT + "amdgpu: Saved bad pages 300 reaches threshold value 256",
        AT + "amdgpu: RAS records:300 exceed threshold:256",
        AT + "amdgpu: RAS records:300 exceed threshold:256, GPU will not be initialized. Replace this GPU",
        AT + "amdgpu: GPU will not be initialized. Replace this GPU or increase the threshold.",
        AT + "amdgpu: Please consult AMD Service Action Guide (SAG) for appropriate service procedures",
        AT + "amdgpu: User defined threshold is set, runtime service will be halt when threshold is reached",
    ],
    "pages_many": [AT + "amdgpu: RAS records:240 exceeds 90% of threshold:256"],
    "uncorrectable": [
        AT + "{1}1 uncorrectable hardware errors detected in umc block",
        DIE + "1 new uncorrectable hardware errors detected in umc block",
        DIE + "1 uncorrectable hardware errors detected in total in umc block",
        AT + "amdgpu: socket: 3, die: 0, 2 new uncorrectable hardware errors detected in gfx block",
        AT + "{1} socket: 3, die: 0, 1 new uncorrectable hardware errors detected in umc block",
    ],
    "poison_consumed": [
        AT + "{2}poison is consumed by client 27, kick off gpu reset flow",
        AT + "{2}socket: 3, die: 0, 1 new poison consumption detected in gfx block",
        AT + "{2}socket: 3, die: 0, 1 poison consumption detected in total in gfx block",
        AT + "amdgpu: GPU reset for gfx RAS poison consumption is issued!",
        AT + "amdgpu: sdma RAS poison consumption is issued!",
        AT + "amdgpu: RAS poison consumption, fall back to gpu reset flow: client id 27",
    ],
    "deferred": [
        AT + "amdgpu: socket: 0, die: 1, 3 deferred hardware errors detected in umc block",
        DIE + "1 new deferred hardware errors detected in umc block",
        DIE + "4 deferred hardware errors detected in total in umc block",
    ],
    "corrected": [
        AT
        + "amdgpu: socket: 4, die: 0 1 correctable hardware errors detected in total in gfx block, no user",
        AT + "{1}socket: 6, die: 1, 1533 new correctable hardware errors detected in xgmi_wafl block",
    ],
    "poison_created": [AT + "{15}Poison is created"],
    "bank_deferred": [BANK + "0x98000800003e0000", BANK + "0xdc2010000000011b"],
    "bank_uncorrected": [
        BANK + "0xbaa000000000080b",
        AT + "amdgpu: [Hardware error] aca entry[00].STATUS=0xbaa000000000080b",
        AT + "{1}[Hardware Error]: ACA[01/01].STATUS=0xbaa000000000080b",
    ],
    "firmware_stuck": [AT + "amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x12"],
    "queue_stuck": [
        "amdgpu: qcm fence wait loop timeout expired",
        AT + "amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
        AT + "amdgpu: MES might be in unrecoverable state, issue a GPU reset",
    ],
    "ring_recovered": [AT + "amdgpu: ring comp_1.0.1 timeout, but soft recovered"],
    "ring_timeout": [AT + "amdgpu: ring comp_1.0.0 timeout, signaled seq=1, emitted seq=2"],
    "reset_failed": [
        AT + "amdgpu: GPU reset(2) failed",
        AT + "amdgpu: Mode1 reset failed",
        AT + "amdgpu: ASIC reset failed with error, -62 for drm dev, renderD128",
        "[drm] ASIC reset failed with error, -62 for drm dev, 0000:65:00.0",
    ],
    "wedged": [AT + "[drm] device wedged, needs recovery"],
    "reset_done": [AT + "amdgpu: GPU reset(1) succeeded!"],
    "reset": [AT + "amdgpu: GPU reset begin!", AT + "amdgpu: GPU reset begin!. Source:  3"],
    "block_stuck": [
        "[drm:amdgpu_device_ip_suspend_phase2 [amdgpu]] *ERROR* suspend of IP block <psp> failed -22",
        "[drm:psp_suspend [amdgpu]] *ERROR* Failed to terminate tmr",
        "amdgpu: Failed to disallow cf state",
    ],
    "shader_ecc": [
        "amdgpu: sq_intr: error, se 0, data 0x0, sh 1, priv 0, wave_id 3, simd_id 0, cu_id 2, err_type 0",
        AT
        + "amdgpu: sq_intr: error, detail 0x00000000, type 3, sh 0, priv 1, wave_id 0, simd_id 0, wgp_id 0",
    ],
    "shader_fault": [
        AT + "amdgpu: sq_intr: error, detail 0x00000000, type 2, sh 0, priv 1, wave_id 0, simd_id 0, wgp_id 0"
    ],
    "page_fault": [AT + "amdgpu: [mmhub0] no-retry page fault (src_id:0 ring:160 vmid:3 pasid:32790)"],
    "iommu_fault": [AT + "AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0xfea0 flags=0x0020]"],
    "iommu_fault_unnamed": [
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=65:00.0 domain=0x002c address=0xf8 flags=0x0008]",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:65:00.0 domain=0x002c address=0xf8 flags=0x0008]",
    ],
    "throttled": [AT + "amdgpu: WARN: GPU is throttled, expect performance decrease."],
}
EACH = [(kind, line) for kind, lines in LINES.items() for line in lines]
# Driver lines of no kind above.
HARMLESS = [
    AT + "amdgpu: 0 uncorrectable hardware errors detected in umc block",
    DIE + "0 uncorrectable hardware errors detected in total in umc block",
    AT + "{1}[Hardware Error]: Accelerator Check Architecture events logged",
    BANK + "0xd820000000060150",
    AT + "amdgpu: GPU reset succeeded, trying to resume",
    AT + "[drm] device wedged, but recovered through reset",
    AT + "amdgpu: MODE1 reset",
    "pcieport 0000:72:00.0: pciehp: Slot(15): Link Up",
    "xe 0000:03:00.0: [drm] device wedged, needs recovery",
    "[drm] device lost from bus",
]
# Kinds that make earlier lines of the same GPU obsolete.
CLEARING = {"reset_done"}


def test_the_catalogue_is_whole() -> None:
    assert LINES.keys() == driver_log.MEANINGS.keys(), "a line of each kind, and a kind for each line"
    for name, row in shipped.load("amdgpu").items():
        meaning = driver_log.MEANINGS[name]
        assert row["seen"], name
        assert meaning.level in ("info", "program", "warn", "fail"), name
        assert meaning.action in kernel_meaning.ACTIONS, name
        assert meaning.after | meaning.hive <= driver_log.MEANINGS.keys() - {name}, name


@pytest.mark.parametrize(("kind", "line"), EACH)
def test_a_form_is_read(kind: str, line: str) -> None:
    found = driver_log.event(line)
    assert found is not None
    assert found[0] == kind
    (event,) = kernel_log.events([line])
    assert (event.kind, event.code) == ("amdgpu", kind)
    assert kernel_log.concerns_gpus(line)


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_that_asks_for_nothing_is_not(line: str) -> None:
    assert driver_log.event(line) is None


@pytest.mark.parametrize(("kind", "line"), EACH)
def test_burnin_keeps_each_and_ends_at_what_breaks_a_gpu(kind: str, line: str) -> None:
    meaning = driver_log.MEANINGS[kind]
    if meaning.source_of:
        return  # the burn-in's own log check, between two loads, reads these
    assert message_of(line, driver_log.kept_lines()) == {"kernel": {"line": line}}
    ended = amd_fatal(line, driver_log.fatal_lines(), {"0000:65:00": "gpu3"}) is not None
    assert ended is (meaning.level == "fail")


def test_the_watcher_of_the_health_program_has_the_catalogues_patterns() -> None:
    template = SCRIPT["WATCHER"].read_text(encoding="utf-8")
    assert SCRIPT["with_patterns"](template) == template, "run scripts/catalogue_amd.py --watcher"


# --- AMD's own list


def test_each_rule_of_amds_list_is_read_or_left_with_a_reason() -> None:
    for rule in RECORDED:
        kinds = rule.get("kinds", [])
        assert bool(kinds) is not bool(rule.get("left")), rule["rule"]
        assert set(kinds) <= driver_log.MEANINGS.keys(), rule["rule"]


# AMD calls these an error; gpuprov does not, or not always.
MILDER = {
    "amdgpu Page Fault": "a program's own fault; the GPU is healthy",
    "GPU Reset": "the reset may have mended the GPU; what made it necessary has lines of its own",
    "ACA Error": "the driver counts the error on another line, which decides",
    "RAS Deferred Error": "bad data that nothing has read",
    "RAS Poison created": "the driver counts it as deferred on another line",
    "I/O Page Fault": "a setting of the IOMMU or a driver's fault more often than the GPU's",
    "Suspend of IP block failed": "before a reset, whose own outcome decides",
    "Failed to terminate tmr": "before a reset, whose own outcome decides",
    "Failed to disallow cf state": "before a reset, whose own outcome decides",
    "SQ Interrupt": "by its type: memory of the shader, or a program's fault",
}


def test_each_difference_of_level_from_amds_list_is_explained() -> None:
    milder = {
        rule["rule"]
        for rule in RECORDED
        for kind in rule.get("kinds", ())
        if rule["level"] == "error" and driver_log.MEANINGS[kind].level != "fail"
    }
    assert milder == MILDER.keys()


def test_what_a_newer_list_changes_is_told() -> None:
    source = (
        'rules = [ErrorRegex(regex=re.compile(r"a"), message="A", event_category=X),\n'
        ' ErrorRegex(regex=re.compile(r"b"), message="B", event_priority=EventPriority.WARNING)]'
    )
    now = SCRIPT["rules"](source)
    assert [(one["rule"], one["level"]) for one in now] == [("A", "error"), ("B", "warning")]
    recorded = [{**now[0], "level": "warning"}, {"rule": "C", "level": "error", "pattern": "0"}]
    assert list(SCRIPT["differences"](recorded, now)) == [
        "A: level warning is now error",
        f"new or changed: B (warning, pattern {now[1]['pattern']})",
        "gone or changed: C (pattern 0)",
    ]


# --- incidents


def judged(lines: Sequence[str]) -> list[Finding]:
    events = kernel_incidents.named(kernel_log.events(lines), GPUS)
    return kernel_incidents.judge("gpu_inventory", events)


def stamped(lines: Sequence[str]) -> list[str]:
    return [f"[{100 + number / 100:12.6f}] {line}" for number, line in enumerate(lines)]


def test_a_fatal_error_names_its_gpu_and_not_those_that_are_reset_with_it() -> None:
    """The hang of ROCm/legacy-rocm-build issue 4021 on other addresses, up to before the GPU is back."""
    log = stamped(
        [
            "amdgpu 0000:e5:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            "amdgpu 0000:46:00.0: amdgpu: The cp might be in an unrecoverable state due to an unsuccessful",
            "amdgpu 0000:26:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0xbaa000000000080b",
            "amdgpu 0000:c6:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0xd820000000060150",
            "amdgpu 0000:c6:00.0: socket: 6, die: 1, 9 new correctable hardware errors detected in umc block",
            "amdgpu 0000:e5:00.0: amdgpu: GPU reset begin!",
            "amdgpu 0000:e5:00.0: amdgpu: GPU reset succeeded, trying to resume",
        ]
    )
    found = {(one.verdict, one.device, one.metric, one.action) for one in judged(log)}
    assert found == {
        (Verdict.FAIL, "gpu7", "amdgpu.fatal_event", "reset GPU"),
        (Verdict.WARN, "gpu1", "amdgpu.bank_uncorrected", "investigate"),
    }


def test_a_link_that_went_down_is_the_gpus_below_the_port() -> None:
    bridge = "pci 0000:64:01.0: PCI bridge to [bus 65]"
    down = "pcieport 0000:64:01.0: pciehp: Slot(15): Link Down"
    (finding,) = judged(stamped([bridge, down]))
    assert (finding.verdict, finding.device, finding.metric) == (Verdict.FAIL, "gpu3", "amdgpu.link_gone")
    assert judged(stamped([bridge.replace("65", "77"), down])) == [], "nothing of ours is below that port"


def test_a_reset_mends_what_came_before_it_alone() -> None:
    ue, done = LINES["uncorrectable"][1], LINES["reset_done"][0]
    full = LINES["pages_full"][1]
    assert [(one.verdict, one.action) for one in judged(stamped([ue, done]))] == [(Verdict.WARN, "watch")]
    assert [(one.verdict, one.action) for one in judged(stamped([ue, full, done]))] == [
        (Verdict.FAIL, "replace part")
    ]
    assert [(one.verdict, one.action) for one in judged(stamped([done, ue]))] == [(Verdict.FAIL, "reset GPU")]


# --- the property


STAMPS: list[Callable[[float], str]] = [
    lambda at: f"[{at:12.6f}] ",
    lambda at: f"{1763636400 + at:.6f} gpu-01 kernel: ",
    lambda at: f"<3>[{at:12.6f}] [ T1234] ",
]
FORGED = "python3[4711]: segfault at 0 ip 0 sp 0 error 6 in {}[1132,55867fe64000+1000]"


def drawn(chance: random.Random) -> tuple[str, str]:
    """Draw a kind and one of its lines, on a random GPU."""
    kind, line = chance.choice(EACH)
    return kind, line.replace("0000:65:00.0", chance.choice(ADDRESSES))


def written(entries: Sequence[tuple[float, str]], stamp: Callable[[float], str]) -> list[str]:
    return [stamp(at) + line for at, line in sorted(entries)]


def worst(lines: Sequence[str]) -> tuple[int, int]:
    """Return (worst verdict, most intrusive action) of these lines."""
    findings = judged(["[    0.500000] pci 0000:72:00.0: PCI bridge to [bus 65]", *lines])
    levels = [2 if one.verdict is Verdict.FAIL else 1 for one in findings]
    actions = [kernel_meaning.ACTIONS.index(one.action) for one in findings]
    return max(levels, default=0), max(actions, default=0)


@pytest.mark.parametrize("part", range(6))
def test_no_added_line_lowers_the_worst_verdict_or_action(part: int) -> None:
    """Added lines raise it or leave it unchanged, except a successful reset.
    Repetition, timestamps and user texts change nothing, nor does the order of lines without a reset."""
    for number in range(times(50, 20_000 // 6)):
        chance = random.Random(f"{SEED} {part} {number}")  # noqa: S311
        moments = [100 + chance.random() * chance.choice((0.5, 30, 4000)) for _ in range(12)]
        kinds = [drawn(chance) for _ in range(chance.randrange(1, 6))]
        entries = [(moments[place], line) for place, (_, line) in enumerate(kinds)]
        stamp = chance.choice(STAMPS)
        before = worst(written(entries, stamp))
        extra = [one for one in (drawn(chance) for _ in range(4)) if one[0] not in CLEARING]
        added = [(moments[-1 - place], line) for place, (_, line) in enumerate(extra)]
        after = worst(written(entries + added, stamp))
        assert after >= before, (entries, added)
        assert after[1] >= before[1], (entries, added)
        assert worst(written(entries + entries[:1], stamp)) >= before, entries
        forged = [(at, FORGED.format(line)) for at, (_, line) in zip(moments, kinds[::-1], strict=False)]
        assert worst(written(entries + forged, stamp)) == before, (entries, forged)
        assert {worst(written(entries, one)) for one in STAMPS} == {before}, entries
        if not CLEARING & {kind for kind, _ in kinds}:
            mixed = list(
                zip(moments, chance.sample([line for _, line in entries], len(entries)), strict=False)
            )
            assert worst(written(mixed, stamp)) == before, (entries, mixed)


@pytest.mark.parametrize("line", [line for _, line in EACH])
def test_a_users_text_is_none_of_these(line: str) -> None:
    for text in (FORGED.format(line), f"{line[:15]}[4711]: segfault at 0 ip 0 sp 0 error 6 in {line}"):
        assert kernel_log.events([text]) == []
    assert re.match(r"amdgpu|\[drm|kfd|pcieport|AMD-Vi", line)
