"""gpuprov validate from the command line to the report; only the two functions that reach nodes,
`observe` and `run_playbook`, are replaced.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from provision import cli
from provision.checks.check import CheckNode, Measurement, fact
from provision.checks.health import from_json
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge, registry
from provision.checks.judging.node_facts import node_facts_of
from provision.checks.judging.registry import CHECKS
from provision.checks.judging.table import STAGES, Entry
from provision.commands import fleet_options
from provision.commands import validate as validate_command
from provision.errors import ExitCode, InventoryError, RunFolderError, UsageError
from provision.paths import ROLES
from provision.remote.ansible.runner import Outcome
from provision.runs import fingerprint, node_history
from provision.runs.store import RunFolder
from provision.terminal import Progress
from provision.validate import campaign
from tests.support.machines import FACTS, FIXTURES, FOUR, HEALTHY, Machines, named, programs, verdicts
from tests.support.machines import machines as machines
from tests.support.machines import validate as validate

BROKEN = {
    **HEALTHY,
    "nvbandwidth": "p2p_bandwidth/slow-pair-2-6.json",
    "all_reduce_perf": "nccl_all_reduce/slow.txt",
    "gpu_burn": "gpu_burn/faulty-gpu3.txt",
}


def test_healthy_nodes_pass_and_exit_is_0(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01")
    machines.add("gpu-02")
    code, report, folder = validate()
    assert code == ExitCode.OK
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "pass"}
    assert named(report) == set()
    for name in (
        "report.json",
        "report.html",
        "report.md",
        "report.junit.xml",
        "findings.jsonl",
        "facts.jsonl",
    ):
        assert (folder / name).stat().st_size > 0, name
    assert len(report["nodes"][0]["gpus"]) == 8
    assert report["nodes"][0]["facts"]["driver"] == "580.126.09"


def test_all_checks_on_a_healthy_node_pass_or_say_why_they_do_not_apply(validate: Any) -> None:
    code, report, _ = validate(checks=())
    found = {check["check"]: check["verdict"] for check in report["nodes"][0]["checks"]}
    assert {each for each in named(report) if each[3] != "skip"} == set()
    assert code == ExitCode.OK
    assert found.keys() == set(registry.select("standard"))
    assert set(found.values()) == {"pass", "skip"}, found


def test_each_result_is_kept_with_what_the_node_was_like(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01")
    machines.add("gpu-02", BROKEN, **{"kernel.release": "6.12.108+deb13-amd64"})
    machines.errors["gpu-03"] = "no route to host"
    _, report, folder = validate()
    kept = node_history.read(["gpu-01", "gpu-02", "gpu-03"])
    assert kept["gpu-03"] == {}, "nothing was measured on it"
    for node in report["nodes"][:2]:
        name = node["node"]
        assert {check: result.verdict for check, result in kept[name].items()} == {
            check["check"]: check["verdict"] for check in node["checks"]
        }
        for result in kept[name].values():
            assert result.run == folder.name
            assert result.known == fingerprint.of(machines.facts[name], {})
    # One check is repeated after a change; the other results still belong to the machine before the change.
    machines.facts["gpu-01"]["kernel.release"] = "6.12.109+deb13-amd64"
    validate("--checks", "gpu_burn")
    again = node_history.read(["gpu-01"])["gpu-01"]
    assert again["gpu_burn"].known.values["kernel.release"] == "6.12.109+deb13-amd64"
    assert again["p2p_bandwidth"] == kept["gpu-01"]["p2p_bandwidth"]


def test_the_order_is_quick_pairs_group_heat(machines: Machines, validate: Any) -> None:
    validate()
    assert [first for _, first in machines.played] == [
        "journal",
        "nvbandwidth",
        "all_reduce_perf",
        "gpu_burn",
    ]


def test_the_progress_names_what_nodes_are_at(
    machines: Machines, validate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Progress, "detail", lambda _self, text: shown.append(text))
    machines.add("gpu-01")
    validate("--checks", "gpu_inventory,gpu_burn")
    assert list(dict.fromkeys(shown[1:])) == ["gpu-01: gpu_inventory", "", "gpu-01: gpu_burn"]
    shown.clear()
    progress = Progress("validate", 8)
    for number in range(1, 6):
        progress.at(f"gpu-0{number}", "gpu_burn")
    assert shown[-1] == "gpu-01: gpu_burn, gpu-02: gpu_burn, gpu-03: gpu_burn and 2 more"
    progress.at("gpu-01", "")
    progress.at("gpu-02", "dcgm_diag")
    assert shown[-1] == "gpu-03: gpu_burn, gpu-04: gpu_burn, gpu-05: gpu_burn and 1 more"


def test_each_cause_is_named_once(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01")
    machines.add("gpu-02", BROKEN)
    code, report, _ = validate()
    assert code == ExitCode.UNHEALTHY
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "fail"}
    assert named(report) == {
        ("gpu-02", "p2p_bandwidth", "gpu2-gpu6", "fail"),
        ("gpu-02", "gpu_burn", "gpu3", "fail"),
        ("gpu-02", "nccl_all_reduce", "node", "warn"),  # its message names gpu2-gpu6
    }
    group = next(c for c in report["nodes"][1]["checks"] if c["check"] == "nccl_all_reduce")
    assert group["verdict"] == "warn"
    assert "gpu2-gpu6" in group["findings"][0]["message"]


STRICT = (
    "sku: h100-sxm\nthresholds:\n  nccl_all_reduce.busbw_8gpu:\n"
    "    {limit: 490, unit: GB/s, direction: at_least, source: our own fleet, kind: measured}\n"
)


def test_a_limit_that_is_broken_shows(validate: Any, tmp_path: Path) -> None:
    """The judge uses the limits that it is given: stricter ones fail a healthy node."""
    strict = tmp_path / "strict.yml"
    strict.write_text(STRICT)
    code, report, folder = validate("--thresholds", str(strict))
    assert code == ExitCode.UNHEALTHY
    assert named(report) == {("gpu-01", "nccl_all_reduce", "node", "fail")}
    # The same output passes under the shipped limits; no node is contacted.
    assert campaign.rejudge(folder).nodes[0].verdict is Verdict.PASS
    assert campaign.rejudge(folder, strict).nodes[0].verdict is Verdict.FAIL


def test_judging_again_gives_the_same_report(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01", BROKEN)
    machines.errors["gpu-02"] = "no route to host: is it switched on?"
    _, report, folder = validate()
    assert campaign.rejudge(folder) == from_json(report)


def test_an_unreachable_node_is_named_and_the_others_go_on(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01")
    machines.errors["gpu-02"] = "no route to host: is it switched on?"
    code, report, _ = validate("--stage", "quick")
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "error"}
    off = report["nodes"][1]
    assert off["unreachable"]
    assert "switched on" in off["error"]


def test_a_node_lost_on_the_way_runs_nothing_more(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01")
    machines.add("gpu-02")
    machines.outcomes["gpu-02", "nvbandwidth"] = Outcome("gpu-02", "unreachable", message="connection reset")
    code, report, _ = validate()
    assert code == ExitCode.INCOMPLETE
    assert [first for name, first in machines.played if name == "gpu-02"] == ["journal", "nvbandwidth"]
    assert report["nodes"][1]["unreachable"]
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "error"}


def test_a_failed_task_is_an_error_of_that_check(machines: Machines, validate: Any) -> None:
    machines.outcomes["gpu-01", "gpu_burn"] = Outcome(
        "gpu-01", "failed", message="Timed out after 195 second(s)."
    )
    code, report, _ = validate()
    assert code == ExitCode.INCOMPLETE
    assert named(report) == {("gpu-01", "gpu_burn", "node", "error")}
    assert "Timed out" in report["nodes"][0]["checks"][-1]["findings"][0]["message"]


def test_a_node_without_gpus_is_explained(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01", **{"gpu.count": 0, "gpu.pci": []})
    code, report, _ = validate()
    assert code == ExitCode.INCOMPLETE
    assert "no NVIDIA GPU" in report["nodes"][0]["error"]
    assert machines.played == []


def test_a_node_without_its_declared_gpus_is_broken(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01", **{"gpu.count": 0, "gpu.pci": []})
    code, report, folder = validate(variables={"gpuprov_expected_gpus": 8})
    assert code == ExitCode.UNHEALTHY
    assert named(report) == {("gpu-01", "gpu_inventory", "node", "fail")}
    assert campaign.rejudge(folder) == from_json(report)


def test_a_node_declared_without_gpus_has_no_check_of_gpus(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01", **{"gpu.count": 0, "gpu.pci": []})
    _, report, folder = validate(variables={"gpuprov_expected_gpus": 0})
    assert verdicts(report) == {"gpu-01": "skip"}, "what was not measured is never called healthy"
    assert {check["verdict"] for check in report["nodes"][0]["checks"]} == {"skip"}
    assert machines.played == []
    assert campaign.rejudge(folder) == from_json(report)


def test_gpus_of_several_vendors_are_described_and_never_pass(machines: Machines, validate: Any) -> None:
    pci = [
        {"address": f"0000:0{n}:00.0", "device_id": each} for n, each in ((4, "10de:2330"), (5, "1002:74a1"))
    ]
    machines.add("gpu-01")
    machines.add("gpu-02", **{"gpu.count": 2, "gpu.pci": pci})
    code, report, folder = validate()
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "error"}
    assert report["nodes"][1]["error"] == (
        "GPUs of several vendors (1002:74a1, 10de:2330): observed; gpuprov cannot check them → "
        "leave it out with --nodes"
    )
    assert {node for node, _ in machines.played} == {"gpu-01"}
    assert len(machines.asked) == 1
    assert campaign.rejudge(folder) == from_json(report)
    (kept,) = (
        node for node in map(json.loads, (folder / "facts.jsonl").read_text().splitlines()) if node["error"]
    )
    assert kept["gpuprov_node"]["gpu"]["vendor"] == "mixed"


def test_a_reboot_during_the_run_is_not_a_pass(machines: Machines, validate: Any) -> None:
    machines.boot_id = "boot-2"
    code, report, _ = validate("--stage", "quick")
    assert code == ExitCode.INCOMPLETE
    assert "rebooted" in report["nodes"][0]["checks"][0]["findings"][-1]["message"]


@pytest.mark.parametrize(
    "answer", [{}, {"outputs": 3}, {"outputs": [{"name": "journal"}]}, {"outputs": [None]}]
)
def test_an_answer_of_another_shape_is_an_error(answer: dict[str, Any]) -> None:
    raw = node_judge.raw_from_answer("gpu-01", "gpu_inventory", answer, "")
    assert "not understood" in raw.error


def test_an_answer_that_lacks_an_output_is_an_error() -> None:
    """Without the output of a sampler or the kernel log, a check might find no fault and pass."""
    output = {"name": "gpu_burn", "argv": ["gpu_burn"], "rc": 0, "stdout": "", "stderr": "", "seconds": 1.0}
    output |= {"timed_out": False, "truncated": False, "not_started": ""}
    answer = {"outputs": [output], "boot_id": "boot-1"}
    raw = node_judge.raw_from_answer("gpu-01", "gpu_burn", answer, "boot-1", ["gpu_burn", "telemetry"])
    assert raw.error == "the node's answer lacks the output of telemetry"
    assert node_judge.raw_from_answer("gpu-01", "gpu_burn", answer, "boot-1", ["gpu_burn"]).error == ""


def test_an_interrupt_leaves_a_report_and_resume_goes_on(machines: Machines, validate: Any) -> None:
    machines.interrupt_at = "all_reduce_perf"
    code, report, folder = validate()
    assert code == ExitCode.INTERRUPTED
    assert report["interrupted"]
    assert [check["check"] for check in report["nodes"][0]["checks"]] == ["gpu_inventory", "p2p_bandwidth"]
    assert verdicts(report) == {"gpu-01": "error"}
    assert RunFolder.open(folder).meta()["exit_code"] == ExitCode.INTERRUPTED
    assert campaign.rejudge(folder) == from_json(report)

    machines.interrupt_at, machines.played = "", []
    code, report, again = validate("--resume", folder.name)
    assert again == folder
    assert [first for _, first in machines.played] == ["all_reduce_perf", "gpu_burn"]
    assert code == ExitCode.OK
    assert not report["interrupted"]
    assert verdicts(report) == {"gpu-01": "pass"}


OTHERS = {
    **{"run": "20261121-up@ctl-2", "node": "gpu-01", "who": "bob@ctl-2 (process 7)"},
    **{"since": "10:00", "verb": "up"},
}


def test_a_node_that_another_run_has_is_not_measured(
    machines: Machines, validate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.add("gpu-01")
    machines.locks.holders = {"gpu-01": OTHERS}
    (tmp_path / "inventory.yml").write_text("all: {hosts: {gpu-01: {}, gpu-02: {}}}\n")
    assert cli.main(["validate", "--nodes", "gpu-01"]) == ExitCode.ERROR
    err = capsys.readouterr().err
    assert "inventory.yml · gpu-01 · 1 node · 16 checks on each · about 12 min\n" in err
    assert "gpu-01: gpuprov up by bob@ctl-2 (process 7), since 10:00" in err
    assert "leaves these nodes out" not in err, "no node would be left"
    assert (machines.played, list((tmp_path / "runs").glob("*"))) == ([], [])
    assert machines.locks.holders == {"gpu-01": OTHERS}
    code, _, _ = validate("--break-lock")
    assert code == ExitCode.OK
    assert machines.locks.holders == {"gpu-01": OTHERS}


def test_nodes_are_locked_while_they_are_measured_and_freed_after_an_interrupt(
    machines: Machines, validate: Any
) -> None:
    machines.interrupt_at = "all_reduce_perf"
    _, _, folder = validate()
    assert machines.locks.asked == [("take", "gpu-01"), ("release", "gpu-01")]
    killed = str(RunFolder.open(folder).meta()["lock"])
    machines.locks.holders = {"gpu-01": {**OTHERS, "run": killed, "verb": "validate"}}
    machines.interrupt_at = ""
    assert validate("--resume", folder.name)[0] == ExitCode.OK
    assert machines.locks.holders == {}


def test_a_resumed_run_is_for_its_own_inventory_and_nodes(
    machines: Machines, validate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.interrupt_at = "all_reduce_perf"
    _, _, folder = validate()
    RunFolder.open(folder).note(pattern="rack1")
    asked: list[tuple[str, str]] = []

    def load(options: argparse.Namespace) -> None:
        asked.append((options.inventory or ",".join(options.inventory_option), options.nodes))
        raise InventoryError("seen", "")

    monkeypatch.setattr(fleet_options, "loaded", load)
    cli.main(["validate", "--resume", folder.name])
    cli.main(["validate", "--resume", folder.name, "-i", "other.yml", "-l", "gpu-07"])
    assert asked == [(str(tmp_path / "inventory.yml"), "rack1"), ("other.yml", "gpu-07")]


def test_a_resumed_run_takes_over_the_options_that_are_not_given_again(
    machines: Machines, validate: Any, tmp_path: Path
) -> None:
    """--set reaches the nodes again, so that the remaining nodes are measured like the first ones."""
    (tmp_path / "mine.yml").write_text(STRICT)
    machines.interrupt_at = "all_reduce_perf"
    first = ["--set", "validation_tools_scratch_dir=/mnt", "--burn-seconds", "7", "--thresholds", "mine.yml"]
    _, _, folder = validate(*first, "--timeout", "90", "-u", "ops")
    machines.interrupt_at = ""
    options = cli.parsed(["validate", "--resume", folder.name, "--burn-seconds", "8"])
    chosen = validate_command.campaign(options)
    assert (chosen.burn_seconds, chosen.timeout, chosen.thresholds) == (8, 90.0, tmp_path / "mine.yml")
    assert (options.set, options.user) == (['validation_tools_scratch_dir="/mnt"'], "ops")
    options = cli.parsed(
        ["validate", "--resume", folder.name, "--burn-seconds", "60", "-uroot", "--nodes=all"]
    )
    chosen = validate_command.campaign(options)
    assert (chosen.burn_seconds, options.user, options.nodes) == (60, "root", "all"), (
        "60 and all are defaults"
    )


@pytest.mark.usefixtures("machines")
def test_pairs_are_not_taken_over_by_a_resumed_run_of_other_checks() -> None:
    run = RunFolder.create("validate", {"pairs": "all", "burn_seconds": 60})
    run.note(asked=["pair_bandwidth"])
    same = validate_command.campaign(cli.parsed(["validate", "--resume", run.path.name]))
    other = validate_command.campaign(
        cli.parsed(["validate", "--resume", run.path.name, "--checks", "gpu_burn"])
    )
    assert (same.pairs, other.pairs) == ("all", "")


@pytest.mark.usefixtures("machines")
def test_a_secret_that_was_not_stored_is_asked_for(validate: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, folder = validate("--set", "registry_password=s3cret")
    assert "s3cret" not in (folder / "run.json").read_text()
    assert cli.main(["validate", "--resume", folder.name]) == ExitCode.USAGE
    assert "--set registry_password=… of the earlier run was not stored" in capsys.readouterr().err


@pytest.mark.usefixtures("machines")
def test_a_value_of_which_a_part_was_not_stored_is_asked_for(
    validate: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The eight asterisks that mask a secret must not be used as the secret."""
    _, _, folder = validate("--set", "registry={user: ops, password: s3cret}")
    assert "s3cret" not in (folder / "run.json").read_text()
    assert cli.main(["validate", "--resume", folder.name]) == ExitCode.USAGE
    assert "--set registry=… of the earlier run was not stored" in capsys.readouterr().err


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize(
    "given",
    [["ansible_password=7300451"], ["pins_secret=[7300451]"], ['ansible_password="{{ pw }}"', "pw=x7300451"]],
)
def test_no_secret_of_any_type_is_stored_for_a_run_that_resumes(validate: Any, given: list[str]) -> None:
    _, _, folder = validate(*(word for text in given for word in ("--set", text)))
    assert "7300451" not in (folder / "run.json").read_text()


@pytest.mark.usefixtures("machines")
def test_a_lock_file_given_now_wins_over_none_before() -> None:
    run = RunFolder.create("validate", {"no_lock": True})
    options = cli.parsed(["validate", "--resume", run.path.name, "--lock", "mine.yml"])
    validate_command.campaign(options)
    assert (options.lock, options.no_lock) == ("mine.yml", False)


def test_resume_measures_again_what_was_not_measured(machines: Machines, validate: Any) -> None:
    machines.outcomes["gpu-01", "nvbandwidth"] = Outcome("gpu-01", "failed", message="Timed out")
    _, _, folder = validate()
    machines.outcomes.clear()
    machines.played = []
    code, _, _ = validate("--resume", str(folder))
    assert [first for _, first in machines.played] == ["nvbandwidth"]
    assert code == ExitCode.OK


def test_secrets_stay_out_of_the_run_folder(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01", {**HEALTHY, "all_reduce_perf": "nccl_all_reduce/healthy.json"})
    secrets = {"ansible_password": "s3cr3t-login", "my_api_token": "s3cr3t-api", "plain": "s3cr3t-plain"}
    code, _, folder = validate(variables=secrets)
    assert code == ExitCode.INCOMPLETE  # the command requests no JSON output, so nothing parses it
    assert machines.hosts[0]["gpu-01"]["ansible_password"] == "s3cr3t-login"  # Ansible needs the password
    written = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert "s3cr3t" not in written
    assert "hunter2" not in written


def test_what_the_module_is_given(machines: Machines, validate: Any) -> None:
    validate("--checks", "gpu_burn", "--burn-seconds", "300", "--timeout", "20")
    variables = machines.hosts[0]["gpu-01"]
    command, *samplers, answers = programs(variables)["gpu_burn"]
    names = {"name", "argv", "deadline", "cwd", "env", "beside", "port", "retry_on", "retry_for", "keep"}
    assert set(command) == names
    assert {each["beside"] for each in samplers} == {command["name"]}
    assert (answers["name"], answers["beside"]) == ("gpu_answers", "")
    assert command["argv"][-1] == "300"
    assert command["deadline"] == 320  # the timeout applies to the time beyond the load
    assert variables["gpuprov_checks"]["gpu_burn"]["seconds"] > command["deadline"]


def test_raw_output_is_kept_for_each_node_and_check(validate: Any) -> None:
    _, report, folder = validate()
    for check in report["nodes"][0]["checks"]:
        raw = json.loads((folder / check["raw"]).read_text())
        assert raw["outputs"][0]["stdout"]
    rows = [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]
    assert {row["check"] for row in rows} == set(report["asked"])


def test_selection() -> None:
    chosen = [registry.select(stage) for stage in ("quick", "standard", "burnin")]
    for stages, names in zip((("quick",), ("quick", "standard"), STAGES), chosen, strict=True):
        assert names == tuple(name for name, one in CHECKS.entries.items() if one.stage in stages)
    assert "gpu_inventory" in chosen[0]
    assert "gpu_burn" not in chosen[0]
    assert set(chosen[0]) < set(chosen[1]) <= set(chosen[2]) == set(CHECKS), "each stage adds to the last"
    assert registry.select("quick", ["gpu_burn", "gpu_inventory"]) == ("gpu_inventory", "gpu_burn")
    with pytest.raises(UsageError, match="unknown check 'gpu_brun'"):
        registry.select("standard", ["gpu_brun"])


def test_a_bad_thresholds_file_stops_before_any_node(
    machines: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.yml").write_text("sku: h100-sxm\nthresholds: {p2p_bandwidth.h2d: 12}\n")
    assert cli.main(["validate", "--thresholds", str(tmp_path / "t.yml")]) == ExitCode.ERROR
    assert "p2p_bandwidth.h2d" in capsys.readouterr().err
    assert machines.played == []


@pytest.mark.parametrize("value", ["eight", -1, True])
def test_a_number_of_gpus_that_is_none_is_refused(value: Any) -> None:
    described = {"gpu": {"count": 8, "sku": "h100-sxm"}}
    with pytest.raises(InventoryError, match="gpuprov_expected_gpus of gpu-01"):
        node_facts_of("gpu-01", FACTS, {}, described, {"gpuprov_expected_gpus": value})


def test_the_list_of_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "checks"]) == ExitCode.OK
    assert capsys.readouterr().out.split()[0] == "gpu_inventory"


def test_the_summary_says_where_the_report_is(
    machines: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.add("gpu-01", BROKEN)
    (tmp_path / "i.json").write_text(json.dumps({"all": {"hosts": {"gpu-01": {}}}}))
    assert cli.main(["validate", str(tmp_path / "i.json"), "--format", "html"]) == ExitCode.UNHEALTHY
    out = capsys.readouterr().out
    assert "gpu2-gpu6" in out
    assert "report.html" in out
    assert "report.md" not in out


def test_the_place_of_a_tool_may_be_a_template(machines: Machines, validate: Any) -> None:
    tools = {"tools": "/opt/tools", "validation_tools_gpu_burn_path": "{{ tools }}/gpu_burn"}
    assert validate("--checks", "gpu_burn", variables=tools)[0] == ExitCode.OK
    command = programs(machines.hosts[0]["gpu-01"])["gpu_burn"][0]
    assert command["argv"][0] == "/opt/tools/gpu_burn"


def test_checks_look_for_tools_where_the_role_puts_them() -> None:
    defaults = yaml.safe_load((ROLES / "validation_tools" / "defaults" / "main.yml").read_text())
    node = CheckNode("n", {"gpu": {"count": 8, "sku": "h100-sxm"}}, {})
    burn = CHECKS["gpu_burn"].commands(node, {})[0]
    assert (burn.argv[0], burn.cwd) == (
        defaults["validation_tools_gpu_burn_path"],
        defaults["validation_tools_gpu_burn_dir"],
    )
    (pairs,), (group,) = (CHECKS[name].commands(node, {}) for name in ("p2p_bandwidth", "nccl_all_reduce"))
    assert pairs.argv[0] == defaults["validation_tools_nvbandwidth_path"]
    assert group.argv[0] == defaults["validation_tools_all_reduce_perf_path"]


@pytest.mark.parametrize("name", list(CHECKS))
def test_every_check_has_its_samples_and_states_its_shape(name: str) -> None:
    check = CHECKS[name]
    facts = getattr(check, "FACTS", ())
    assert (FIXTURES / name).is_dir() or facts
    assert check.SUMMARY
    assert check.NEEDS or facts


@pytest.fixture
def shelf_check(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a check that only compares a fact: the number of books on the node's shelf."""
    check = SimpleNamespace(
        SUMMARY="the shelf",
        NEEDS=(),
        FACTS=("shelf.books",),
        commands=lambda _node, _options: [],
        parse=lambda node, _outputs: [Measurement("books", fact(node, "shelf.books"), "books")],
        judge=lambda _node, measured, _limits: [
            Finding("shelf", Verdict.PASS if m.value == 3 else Verdict.FAIL, "node", f"{m.value} books")
            for m in measured
        ],
    )
    monkeypatch.setitem(CHECKS.own, "shelf", Entry("shelf", "node", "quick", own=check))
    return "shelf"


def test_a_check_of_facts_alone_is_judged_from_the_look(
    machines: Machines, validate: Any, shelf_check: str
) -> None:
    machines.add("gpu-01", **{"shelf.books": 3})
    machines.add("gpu-02", **{"shelf.books": 2})
    machines.add("gpu-03")
    machines.problems["shelf"] = "shelf: no answer within 8 s"
    code, report, folder = validate("--checks", shelf_check)
    assert code == ExitCode.UNHEALTHY
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "fail", "gpu-03": "error"}
    assert "no answer within 8 s" in report["nodes"][2]["checks"][0]["findings"][0]["message"]
    assert machines.played == [], "there is nothing to run, so no playbook does"
    assert machines.asked == [fingerprint.FACTS | {"shelf.books"}], "in the one look before the checks"
    assert campaign.rejudge(folder) == from_json(report), "the facts are in the run folder"


def test_the_look_asks_only_for_the_facts_of_the_checks_asked_for(
    machines: Machines, validate: Any, shelf_check: str
) -> None:
    machines.add("gpu-01", **{"shelf.books": 3})
    validate("--checks", "gpu_burn")
    assert not any("shelf.books" in asked for asked in machines.asked), shelf_check
    # With another check selected, that one runs and only this one's fact is observed.
    _, report, _ = validate("--checks", f"gpu_burn,{shelf_check}")
    assert [check["verdict"] for check in report["nodes"][0]["checks"]] == ["pass", "pass"]
    assert machines.played == [("gpu-01", "gpu_burn")] * 2


def test_a_run_is_not_judged_without_a_check_that_is_not_here(validate: Any) -> None:
    _, _, folder = validate()
    RunFolder.open(folder).note(asked=[*FOUR, "site_shelf"])
    with pytest.raises(RunFolderError, match="site_shelf"):
        campaign.rejudge(folder)


AMD_NODE = {
    "gpu.pci": [{"address": f"0000:{n:02x}:00.0", "device_id": "1002:74a1"} for n in range(5, 13)],
    "gpu.nvswitch_count": 0,
}


def test_what_one_vendors_nodes_alone_have_is_asked_of_them_alone(machines: Machines, validate: Any) -> None:
    machines.add("gpu-01")
    machines.add("gpu-02", **AMD_NODE)
    machines.add("gpu-03", **AMD_NODE, **{"amdgpu.loaded_version": "6.12.12", "amdgpu.rocm": None})
    machines.facts["gpu-03"]["amdgpu.devices"] = []
    code, report, _ = validate("--checks", "versions")
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "error", "gpu-03": "pass"}
    assert machines.asked[1:] == [{"amdgpu.devices", "amdgpu.loaded_version", "amdgpu.rocm"}]
    assert code == ExitCode.INCOMPLETE
    assert "the node did not answer it" in json.dumps(report["nodes"][1]["checks"][0]["findings"])


def test_a_node_on_which_no_check_of_the_run_applies_is_skipped_and_says_why(
    machines: Machines, validate: Any
) -> None:
    machines.add("gpu-01", **AMD_NODE)
    _, report, _ = validate("--checks", "dcgm_diag,ddp_scaling")
    assert verdicts(report) == {"gpu-01": "skip"}
    messages = {f["message"] for check in report["nodes"][0]["checks"] for f in check["findings"]}
    assert messages == {"not measured on AMD GPUs yet"}
    assert machines.played == []
