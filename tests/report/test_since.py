"""Changes since the last run: in every report for people, and absent without an earlier run."""

from __future__ import annotations

import dataclasses
import re

import pytest

from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.report import diff_text, html, markdown, terminal
from provision.report.context import Context
from provision.runs.node_history import Earlier
from tests.support import samples

DAY = "2026-05-03T10:00:00+00:00"
PASS, WARN, FAIL, ERROR = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.ERROR


def fleets(**verdicts: tuple[Verdict | None, Verdict | None]) -> tuple[Earlier, FleetHealth]:
    """Return both runs from `name=(before, now)`; None: not in that run."""

    def of(at: int) -> FleetHealth:
        nodes = [node(name, found) for name, each in verdicts.items() if (found := each[at]) is not None]
        return samples.fleet(*nodes, asked=("gpu_burn",))

    before = dataclasses.replace(of(0), run_id="20260503T100000Z-validate", started=DAY)
    names = frozenset(one.node for one in before.nodes)
    since = {one.node: "2026-05-01T08:00:00Z" for one in before.nodes if one.verdict in (FAIL, ERROR)}
    return Earlier(before, names, since), of(1)


def node(name: str, verdict: Verdict) -> NodeHealth:
    action = "none" if verdict is PASS else "investigate"
    found = Finding("gpu_burn", verdict, "gpu5", f"burns at {verdict}", "rate", 4.0, action=action)
    return samples.node(name, (samples.result("gpu_burn", [found], [], 1.0),))


@pytest.fixture
def both() -> tuple[Earlier, FleetHealth]:
    return fleets(
        a1=(PASS, FAIL), a2=(WARN, ERROR), b1=(FAIL, PASS), b2=(ERROR, WARN), c1=(FAIL, FAIL),
        c2=(ERROR, FAIL), d1=(PASS, WARN), d2=(PASS, PASS), e1=(None, PASS), f1=(FAIL, None),
    )  # fmt: skip


def test_each_node_is_in_the_one_group_it_belongs_to(both: tuple[Earlier, FleetHealth]) -> None:
    found = diff_text.since(*both)
    assert found is not None
    assert dict(found.groups) == {
        "newly unhealthy or not measured": ("a1", "a2"),
        "still unhealthy or not measured": ("c1", "c2"),
        "recovered": ("b1", "b2"),
        "otherwise changed": ("d1",),
        "not in the runs before": ("e1",),
        "not in this run": ("f1",),
    }
    assert [one.since for one in found.still] == ["2026-05-01T08:00:00Z"] * 2
    assert found.newly[0].why == ("gpu_burn: gpu5 burns at fail",)


def test_one_line_says_it_in_the_terminal(both: tuple[Earlier, FleetHealth]) -> None:
    text = terminal.summary(both[1], width=500, context=Context(both[0]))
    assert (
        "since the run of 2026-05-03 10:00:00 UTC: 2 newly unhealthy or not measured: a[1-2]; "
        "2 still unhealthy or not measured: c[1-2]; 2 recovered: b[1-2]; "
        "1 otherwise changed: d1; 1 not in the runs before: e1; "
        "1 not in this run: f1; the longest since 2026-05-01 08:00:00 UTC\n"
    ) in text


def test_the_page_tells_who_is_new_and_since_when_the_others_are(both: tuple[Earlier, FleetHealth]) -> None:
    page = "".join(html.render(both[1], Context(both[0])))
    section = page.split('<h2 id="since">')[1].split("</section>")[0]
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section))
    assert "2 newly unhealthy or not measured a[1-2]" in words
    assert "a1 pass fail this run gpu_burn: gpu5 burns at fail" in words
    assert "c2 error fail 2026-05-01 08:00:00 UTC gpu_burn: gpu5 burns at fail" in words
    assert re.search(r'<a href="#n\d+">a1</a>', section)


def test_markdown_tells_it_too(both: tuple[Earlier, FleetHealth]) -> None:
    text = "".join(markdown.render(both[1], Context(both[0])))
    assert "## Since the last run\n" in text
    assert "- 2 recovered: b\\[1-2\\]\n" in text
    assert "- a1: pass → **fail**: gpu_burn: gpu5 burns at fail\n" in text
    assert "- c1: fail since 2026-05-01 08:00:00 UTC\n" in text


def test_a_node_that_fell_silent_says_so() -> None:
    silent = dataclasses.replace(samples.node("a1", ()), verdict=ERROR, error="timed out", unreachable=True)
    well = node("a1", PASS)
    before = Earlier(samples.fleet(well), frozenset({"a1"}), {})
    now = samples.fleet(silent, asked=("gpu_burn",))
    page = "".join(html.render(now, Context(before)))
    assert '<td class="what"><div>unreachable: timed out</div></td>' in page.split('<h2 id="since">')[1]
    told = "".join(markdown.render(now, Context(before)))
    assert "- a1: pass → **error**: unreachable: timed out" in told


def test_nothing_new_is_said_in_words() -> None:
    before, now = fleets(a=(PASS, PASS))
    assert "UTC: no verdict changed\n" in terminal.summary(now, context=Context(before))
    assert "No node has another verdict" in "".join(html.render(now, Context(before)))
    assert "No node has another verdict" in "".join(markdown.render(now, Context(before)))


def test_without_an_earlier_run_there_is_no_such_section() -> None:
    now = samples.demo()
    assert diff_text.since(None, now) is None
    assert "ince the" not in terminal.summary(now)
    assert 'id="since"' not in "".join(html.render(now))
    assert "ince the" not in "".join(markdown.render(now))


def test_a_hostile_name_is_shown_and_nothing_more() -> None:
    for text in samples.HOSTILE:
        before, now = fleets(**{text: (PASS, FAIL)})
        page = "".join(html.render(now, Context(before)))
        assert "<script>document" not in page
        assert "<img src=x" not in page
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", terminal.summary(now, context=Context(before))
        )
