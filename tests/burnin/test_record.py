"""The record of a burn-in: it can be verified, and covers only the parts that it names."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from provision.burnin import acceptance, own_findings, record, results
from provision.burnin.campaign import Campaign
from provision.checks.judge import Verdict
from provision.runs import fingerprint, node_history
from tests.support.browser import unreadable
from tests.support.burnin_nodes import FakeNode, files
from tests.support.spools import BOOT, T0, burned, raw, sample


def collected(run: Campaign, nodes: dict[str, FakeNode], **changes: bytes) -> results.Results:
    run.folder.note(nodes=["gpu-01"], inventory="i.yml")
    nodes["gpu-01"] = FakeNode("gpu-01", files(**changes))
    run.fetch(["gpu-01"], print)
    return results.results(run)


def test_everything_it_is_made_of_is_checksummed(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    found = collected(run, nodes)
    acceptance.write(run, found)
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=run.folder.path, check=False, capture_output=True).returncode == 0
    page = (run.folder.path / "record.html").read_text()
    assert record.checksum((run.folder.path / "record.json").read_bytes()) in page
    telemetry = run.folder.path / "spool" / "gpu-01" / "telemetry" / f"{BOOT}.csv"
    telemetry.write_text(telemetry.read_text().replace("=60;", "=59;", 1))
    assert subprocess.run(check, cwd=run.folder.path, check=False, capture_output=True).returncode == 1


def test_the_same_spool_gives_the_same_record(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    found = collected(run, nodes)
    acceptance.write(run, found)
    first = (run.folder.path / "record.json").read_bytes()
    acceptance.write(run, results.results(dataclasses.replace(run)))
    assert (run.folder.path / "record.json").read_bytes() == first


def test_it_says_load_extremes_and_what_stands_there(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    found = collected(run, nodes)
    document = record.document(found, run.folder.meta(), run.name)
    (node,) = document["nodes"]
    assert (node["verdict"], document["verdict"], document["over"]) == ("pass", "pass", True)
    assert node["load_seconds"] == 60.0
    assert node["telemetry"]["devices"]["gpu/gpu3"]["most"]["power_w"] == 600.0
    assert node["facts"]["sku"] == "h100-sxm"
    assert node["steps"] == {"done": 1, "planned": 1}
    assert document["thermal"][3] == {"sku": "h100-sxm", "place": "gpu3", "celsius": {"gpu-01": 60.0}}
    assert record.of_node(document, "gpu-01")["nodes"] == [node]
    assert json.loads(record.text(document)) == document


@pytest.mark.parametrize(
    ("minutes", "said"), [(4.0, "4 min"), (59.5, "59.5 min"), (60.0, "1 h"), (1470.0, "24.5 h")]
)
def test_the_requested_time_is_in_minutes_below_an_hour(
    run: Campaign, nodes: dict[str, FakeNode], minutes: float, said: str
) -> None:
    document = record.document(collected(run, nodes), run.folder.meta(), run.name)
    document["profile"] = {"name": "day", "minutes": minutes}
    assert f"<dd>day, {said} requested</dd>" in "".join(acceptance.render(document, {}, ""))


def test_faults_are_told_in_the_order_they_came(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    usual = {"temperature_c": 60, "sm_mhz": 1800, "util_pct": 99, "throttle": "0x0"}
    rows = "".join(
        sample(up, gpu, **{**usual, **({"throttle": "0x40"} if gpu == 2 and up > 30 else {})})
        for up in range(1, 67, 5)
        for gpu in range(8)
    )
    changes = {"raw/000001-gpu_burn.json.gz": raw(burned("faulty-gpu3"))}
    found = collected(run, nodes, **changes, **{f"telemetry/{BOOT}.csv": rows.encode()})
    document = record.document(found, run.folder.meta(), run.name)
    reported = [(row["device"], row["check"], row["when"]) for row in document["onset"]]
    assert reported == [("gpu3", "gpu_burn", "first hour"), ("gpu2", "burnin", "first hour")]
    assert document["onset"][1]["at"] == own_findings.stamp(T0 + 31)
    assert document["nodes"][0]["telemetry"]["devices"]["gpu/gpu2"]["throttled_share"] == {
        "hw_thermal_slowdown": pytest.approx(7 / 14, abs=0.1)
    }


@pytest.mark.timeout(300)  # the browser starts four times
def test_its_page_can_be_read_on_small_and_large_screens_light_and_dark(
    run: Campaign, nodes: dict[str, FakeNode], tmp_path: Path
) -> None:
    """The record has five nodes, one with a faulty GPU and one that runs hot."""
    names = [f"gpu-{number:02d}" for number in range(1, 6)]
    run.folder.note(nodes=names, inventory="/srv/fleet/inventory.yml")
    run = dataclasses.replace(run, variables={name: {} for name in names})
    for number, name in enumerate(names):
        usual = {"power_w": 690, "util_pct": 99}
        rows = "".join(
            sample(up, gpu, **usual, temperature_c=52 + gpu + 20 * (number == 1) + up % 3,
                   sm_mhz=1410 if number == 1 and up > 30 else 1830 - up % 20,
                   throttle="0x40" if number == 1 and gpu == 2 and up > 30 else "0x0")
            for up in range(1, 67, 2) for gpu in range(8)
        )  # fmt: skip
        changes = {f"telemetry/{BOOT}.csv": rows.encode()}
        if not number:
            changes["raw/000001-gpu_burn.json.gz"] = raw(burned("faulty-gpu3"))
        made = files(**changes)
        made["order.json"] = made["order.json"].replace(b"gpu-01", name.encode())
        nodes[name] = FakeNode(name, made)
    run.fetch(names, print)
    page = acceptance.write(run, results.results(run))["record"].read_text()
    assert page.count('<svg class="plot"') == 3 * 5
    assert "3 of 5 nodes accepted" in page
    assert unreadable(page, tmp_path) == []


def test_acceptance_ends_when_the_node_is_another(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    found = collected(run, nodes)
    known = fingerprint.of({"kernel.release": "6.12"}, {})
    node = dataclasses.replace(found.nodes["gpu-01"], known=known)
    found = dataclasses.replace(found, nodes={"gpu-01": node})
    results.publish(run, found)
    stored = node_history.read(["gpu-01"], run.folder.path.parent)["gpu-01"]
    assert stored["burnin"].verdict == "pass"
    assert stored["burnin"].run == run.name
    now = fingerprint.of({"kernel.release": "6.13"}, {})
    standing = {s.check: s for s in fingerprint.standings("gpu-01", [], stored, now)}["burnin"]
    assert not standing.holds
    assert any("kernel.release 6.12 → 6.13" in str(change) for change in standing.changes)


def test_what_is_not_over_is_published_for_nobody(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    run.folder.note(nodes=["gpu-01"])
    lines = b"".join(files()["events.jsonl"].splitlines(keepends=True)[:-1])
    nodes["gpu-01"] = FakeNode("gpu-01", files(**{"events.jsonl": lines}), alive=True, finished=False)
    run.fetch(["gpu-01"], print)
    found = results.results(run)
    assert not found.over
    assert found.health.nodes[0].verdict is Verdict.ERROR
    results.publish(run, found)
    assert node_history.read(["gpu-01"], run.folder.path.parent)["gpu-01"] == {}
    assert "not over" in (acceptance.write(run, found)["record"]).read_text()


def test_another_burn_in_of_a_day_reads_within_seconds(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    """Memory does not grow with the hours, since the samples kept for a device are thinned."""
    rows = "".join(
        sample(up, gpu, temperature_c=60 + up % 3) for up in range(1, 20_000, 5) for gpu in range(8)
    ).encode()
    found = collected(run, nodes, **{f"telemetry/{BOOT}.csv": rows})
    watched = found.nodes["gpu-01"].watch
    assert watched is not None
    assert max(len(one.buckets) for one in watched.gpus.values()) <= 241
    assert Path(run.folder.path / "spool").exists()
