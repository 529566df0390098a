"""gpuprov validate on pairs of nodes: rounds, their stored records, and the reported cause.
Nodes are replaced at two interfaces (tests/support/machines.py).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.checks.health import from_json
from provision.errors import ExitCode, GpuprovError, RunFolderError
from provision.remote.ansible.runner import Event, Outcome
from provision.report import context
from provision.runs import fleet_pairs
from provision.runs.store import RunFolder
from provision.validate import campaign, validation
from provision.validate.plays.pair_plays import Plays
from tests.support.machines import message, named, replaced, rows, verdicts
from tests.support.machines import validate as validate
from tests.support.measured_together import Answer, Together, answered
from tests.support.pair_nodes import NO_DEVICE, NOBODY, SERVING, facts, printed, printed_latency

ID = "pair_bandwidth"
ONLY = ("--checks", ID)
RATE = 394.0
LATENCY = "pair_latency"
MEDIAN = 1.87


class Network(Together):
    """Nodes with RDMA ports, and the network between them."""

    only = ONLY

    def __init__(self) -> None:
        super().__init__()
        self.slow: dict[frozenset[str], float] = {}  # slow nodes or links
        self.late: dict[frozenset[str], float] = {}  # the same, in microseconds
        self.missing: set[str] = set()  # without the program
        self.versions: dict[str, str] = {}
        self.deviceless: set[str] = set()
        self.silent: dict[str, Outcome] = {}
        self.garbage: dict[str, Any] = {}
        self.rounds: list[set[frozenset[str]]] = []
        self.ports: list[dict[str, dict[str, str]]] = []
        self.options: list[Mapping[str, Any]] = []
        self.programs: list[Mapping[str, Mapping[str, Any]]] = []
        self.interrupt_round = 0
        self.broken = ""

    def run_playbook(
        self, playbook: Path, hosts: Mapping[str, Mapping[str, Any]], *, on_event: Any, **options: Any
    ) -> dict[str, Outcome]:
        if playbook.name == "checks.yml":
            return super().run_playbook(playbook, hosts, on_event=on_event, **options)
        if self.broken:
            raise GpuprovError(self.broken)
        if "--version" in next(iter(hosts.values()))["gpuprov_commands"][0]["argv"]:
            for name, host in hosts.items():
                on_event(Event("ok", name, "", "", {"gpuprov": self._version(name, host)}))
            return {name: Outcome(name, "ok") for name in hosts}
        self.options.append(options)
        self.programs.append(hosts)
        named_by = {self.variables.get(name, {}).get("gpuprov_address", name): name for name in self.tools}
        partner: dict[str, str] = {}
        for name, host in hosts.items():
            if host["gpuprov_commands"][0]["retry_on"]:
                server = named_by[host["gpuprov_commands"][0]["argv"][-1]]
                partner |= {name: server, server: name}
        assert partner.keys() == hosts.keys(), "each is in one pair"
        self.rounds.append({frozenset(pair) for pair in partner.items()})
        if len(self.rounds) == self.interrupt_round:
            raise KeyboardInterrupt
        outcomes = {}
        for name, host in hosts.items():
            outcomes[name] = self.silent.get(name, Outcome(name, "ok"))
            if outcomes[name].status == "ok":
                on_event(Event("started", name, "", "Run the check's programs"))
                answer = self.garbage.get(name) or self._said(name, partner[name], host["gpuprov_commands"])
                on_event(Event("ok", name, "", "Run the check's programs", {"gpuprov": answer}))
        return outcomes

    def _version(self, name: str, host: Mapping[str, Any]) -> dict[str, Any]:
        (argv,) = [command["argv"] for command in host["gpuprov_commands"]]
        gone = f"{argv[0]} is not installed" if name in self.missing else ""
        said = f"Version: {self.versions.get(name, '6.24')}\n"
        # perftest itself exits with 1 after printing its version
        return answered({"name": "version", "argv": argv, "stdout": said, "not_started": gone, "rc": 1})

    def _said(self, name: str, other: str, commands: list[dict[str, Any]]) -> dict[str, Any]:
        outputs = []
        for command in commands:
            one = {"name": command["name"], "argv": command["argv"]}
            device = command["argv"][command["argv"].index("-d") + 1]
            if name in self.missing:
                one |= {"rc": None, "not_started": f"{command['argv'][0]} is not installed"}
            elif name in self.deviceless:
                one |= {"rc": 1, "stderr": NO_DEVICE}
            elif not command["retry_on"]:
                alone = other in self.missing | self.deviceless
                one |= {"rc": None, "timed_out": True} if alone else {}
                one["stdout"] = SERVING
            elif other in self.missing | self.deviceless:
                one |= {"rc": 1, "stdout": NOBODY}
            else:
                latency = "ib_write_lat" in command["argv"][0]
                faults = self.late if latency else self.slow
                found = [value for nodes, value in faults.items() if nodes <= {name, other}]
                one["stdout"] = (
                    printed_latency(max([MEDIAN, *found]), device)
                    if latency
                    else printed(min([RATE, *found]), device)
                )
            outputs.append(one)
        return answered(*outputs)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    return replaced(Network(), monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def validated(machines: Network, validate: Callable[..., Answer]) -> None:
    machines.validate = validate


# --- a whole run ---


def test_a_run_asked_for_pairs_alone_measures_them_and_passes(machines: Network) -> None:
    code, report, folder = machines.run(4)
    assert (code, report["asked"], report["fabric"]) == (ExitCode.OK, [ID], [])
    assert set(verdicts(report).values()) == {"pass"}
    assert machines.played == [], "no check of single nodes runs"
    assert len(machines.rounds) == 2
    assert machines.rounds[0].isdisjoint(machines.rounds[1])
    assert {row["round"] for row in rows(folder)} == {1, 2}
    assert len(rows(folder)) == 2 * 2 * 2, "two rounds of two pairs with two rails"
    assert (folder / "raw" / "gpu-01" / f"{ID}.round1.json").exists()


def test_pairs_come_after_the_checks_of_the_nodes(machines: Network) -> None:
    code, report, _ = machines.run(2, "--pairs", "--checks", "gpu_inventory")
    assert (code, report["asked"]) == (ExitCode.OK, ["gpu_inventory", ID, LATENCY])
    for node in report["nodes"]:
        assert [check["check"] for check in node["checks"]] == ["gpu_inventory", ID, LATENCY]
    assert [first for _, first in machines.played] == ["journal"] * 2


def test_nodes_that_were_declared_without_gpus_have_their_pairs_measured(machines: Network) -> None:
    machines.add_nodes(2)
    for facts_of in machines.facts.values():
        facts_of |= {"gpu.count": 0, "gpu.pci": []}
    none = {"gpuprov_expected_gpus": 0}
    code, report, _ = machines.run(0, variables=none)
    assert (code, set(verdicts(report).values())) == (ExitCode.OK, {"pass"})
    code, report, _ = machines.run(0, "--pairs", "--checks", "gpu_inventory", variables=none)
    assert (code, set(verdicts(report).values())) == (ExitCode.OK, {"pass"})
    for node in report["nodes"]:
        first, *others = node["checks"]
        assert first["verdict"] == "skip"
        assert [check["verdict"] for check in others] == ["pass", "pass"]
        assert first["findings"][0]["message"] == "declared to have no GPU, and has none"
    assert machines.played == [], "no program of a GPU runs"


def test_without_being_asked_no_pair_is_measured(machines: Network) -> None:
    _, report, _ = machines.run(2, "--stage", "quick")
    assert ID not in report["asked"]
    assert machines.rounds == []


def test_a_slow_node_is_named_and_exit_is_3(machines: Network) -> None:
    machines.slow[frozenset({"gpu-03"})] = 120.0
    _, report, _ = machines.run(6, code=ExitCode.UNHEALTHY)
    assert named(report) == {("gpu-03", ID, "node", "fail")}


def test_a_slow_link_is_a_finding_of_the_fabric_and_exit_is_3(machines: Network) -> None:
    machines.run(6)
    link = min(machines.rounds[0], key=sorted)
    machines.slow[link] = 120.0
    _, report, _ = machines.run(code=ExitCode.UNHEALTHY)
    (finding,) = report["fabric"]
    assert (finding["device"], finding["verdict"]) == (f"link {'-'.join(sorted(link))}", "fail")
    assert {name for name, verdict in verdicts(report).items() if verdict == "warn"} == link
    assert "fail" not in verdicts(report).values()


@pytest.mark.parametrize("fault", ["missing", "deviceless"])
def test_a_node_whose_own_end_fails_is_not_measured_and_exit_is_5(fault: str, machines: Network) -> None:
    getattr(machines, fault).add("gpu-03")
    _, report, _ = machines.run(6, code=ExitCode.INCOMPLETE)
    assert named(report) == {("gpu-03", ID, "node", "error")}


def test_a_node_without_the_program_is_told_at_once_and_waited_for_by_nobody(machines: Network) -> None:
    machines.missing.add("gpu-03")
    _, report, folder = machines.run(6)
    (finding,) = report["nodes"][2]["checks"][0]["findings"]
    assert "ib_write_bw is not installed: the role rdma installs it" in finding["message"]
    assert all("gpu-03" not in row["nodes"] for row in rows(folder))


def test_two_versions_of_the_program_are_told(machines: Network) -> None:
    machines.versions["gpu-02"] = "5.60"
    _, report, _ = machines.run(4, code=ExitCode.OK)
    (line,) = [line for line in report["between"] if "versions" in line]
    assert "6.24 on gpu-[01,03-04], 5.60 on gpu-02" in line


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"silent": Outcome("gpu-03", "unreachable", message="connection reset")}, "connection reset"),
        ({"silent": Outcome("gpu-03", "failed", message="two commands have one name")}, "one name"),
        ({"garbage": {"outputs": 3}}, "not understood"),
        ({"garbage": {"outputs": []}}, "lacks the output of mlx5_0, mlx5_1"),
    ],
)
def test_a_node_that_does_not_answer_is_not_measured(
    fault: dict[str, Any], said: str, machines: Network
) -> None:
    for name, value in fault.items():
        getattr(machines, name)["gpu-03"] = value
    _, report, _ = machines.run(6, code=ExitCode.INCOMPLETE)
    assert verdicts(report) == {f"gpu-0{i}": "error" if i == 3 else "pass" for i in range(1, 7)}
    (finding,) = report["nodes"][2]["checks"][0]["findings"]
    assert said in " ".join(finding["evidence"])


def test_ansible_that_cannot_be_run_is_no_pass(machines: Network) -> None:
    machines.broken = "ansible-playbook is not installed"
    code, report, _ = machines.run(4)
    assert code in (ExitCode.INCOMPLETE, ExitCode.UNHEALTHY)
    assert "pass" not in verdicts(report).values()


# --- latency ---


@pytest.mark.parametrize("count", [2, 3, 6])
def test_latency_of_a_healthy_fleet_passes(count: int, machines: Network) -> None:
    code, report, folder = machines.run(count, "--checks", LATENCY)
    assert (code, report["asked"], report["fabric"]) == (ExitCode.OK, [LATENCY], [])
    assert set(verdicts(report).values()) == {"pass"}
    assert {(row["check"], row["unit"], row["expected"]) for row in rows(folder)} == {(LATENCY, "us", 10)}
    (finding,) = report["nodes"][0]["checks"][0]["findings"]
    assert (finding["value"], finding["unit"]) == (MEDIAN, "us")


def test_a_late_node_is_named_by_its_latency_while_its_bandwidth_passes(machines: Network) -> None:
    machines.late[frozenset({"gpu-03"})] = 6.0
    _, report, folder = machines.run(6, "--checks", f"{ID},{LATENCY}", code=ExitCode.UNHEALTHY)
    assert named(report) == {("gpu-03", LATENCY, "node", "fail")}
    assert "it has a high latency between nodes" in message(report, "gpu-03")
    assert {row["check"] for row in rows(folder)} == {ID, LATENCY}


def test_a_late_link_is_a_finding_of_the_fabric(machines: Network) -> None:
    machines.run(6, "--checks", LATENCY)
    link = min(machines.rounds[0], key=sorted)
    machines.late[link] = 6.0
    _, report, _ = machines.run(0, "--checks", LATENCY, code=ExitCode.UNHEALTHY)
    (finding,) = report["fabric"]
    assert (finding["check"], finding["device"]) == (LATENCY, f"link {'-'.join(sorted(link))}")
    assert {name for name, verdict in verdicts(report).items() if verdict == "warn"} == link
    assert "fail" not in verdicts(report).values()
    assert any("6 us (99 % within 6.6 us), limit" in line for line in finding["evidence"])


def test_of_two_nodes_the_limit_decides(machines: Network) -> None:
    machines.late[frozenset({"gpu-01", "gpu-02"})] = 25.0
    _, report, _ = machines.run(2, "--checks", LATENCY, code=ExitCode.UNHEALTHY)
    assert [finding["device"] for finding in report["fabric"]] == ["suspects"]
    assert set(verdicts(report).values()) == {"warn"}


def test_a_slow_node_is_not_late(machines: Network) -> None:
    machines.slow[frozenset({"gpu-03"})] = 120.0
    _, report, _ = machines.run(6, "--pairs", "--checks", "gpu_inventory")
    assert named(report) == {("gpu-03", ID, "node", "fail")}


def test_a_node_without_the_program_of_latency_is_told_so(machines: Network) -> None:
    machines.missing.add("gpu-03")
    _, report, _ = machines.run(4, "--checks", LATENCY, code=ExitCode.INCOMPLETE)
    assert "ib_write_lat is not installed: the role rdma installs it" in message(report, "gpu-03")


@pytest.mark.parametrize("one", [ID, LATENCY])
def test_pairs_with_one_of_the_two_named_measure_that_one(one: str, machines: Network) -> None:
    _, report, folder = machines.run(4, "--checks", one, "--pairs", "all")
    assert report["asked"] == [one]
    assert {row["check"] for row in rows(folder)} == {one}


# --- participating nodes ---


def test_nodes_without_ports_are_skipped_and_unreadable_ones_are_errors(machines: Network) -> None:
    machines.add_nodes(3)
    machines.add("gpu-04")  # no port
    machines.add("gpu-05", **facts(state="DOWN", phys_state="Polling"))
    machines.add("gpu-06", **{**facts(), "hca.ports": "eight"})
    machines.errors["gpu-07"] = "no route to host"
    _, report, _ = machines.run(code=ExitCode.INCOMPLETE)
    found = verdicts(report)
    assert [found[f"gpu-0{i}"] for i in range(1, 8)] == [*["pass"] * 3, "skip", "skip", "error", "error"]
    assert "no RDMA port of it is up" in message(report, "gpu-04")
    assert "hca.ports is not a list" in message(report, "gpu-06")
    assert "no route to host" in report["nodes"][6]["error"]
    assert {node for pairs in machines.rounds for pair in pairs for node in pair} == {
        f"gpu-0{i}" for i in (1, 2, 3)
    }


def test_the_report_is_told_what_the_run_folder_keeps_of_the_pairs(machines: Network) -> None:
    machines.add_nodes(4)
    machines.variables = {f"gpu-0{i}": {"gpuprov_rack": f"rack-{i % 2}"} for i in range(1, 5)}
    machines.slow = {frozenset({"gpu-03"}): 150.0}
    machines.add("gpu-05")  # no port: skipped, without a complaint
    machines.add("gpu-06", **{**facts(), "hca.ports": "eight"})
    machines.errors["gpu-07"] = "no route to host"
    _, report, folder = machines.run()
    health = from_json(report)
    (pairs,) = context.of_run(RunFolder.open(folder), health).pairs
    assert (pairs.check, pairs.unit, pairs.direction) == (ID, "Gb/s", "at_least")
    assert pairs.fleet.nodes == ("gpu-01", "gpu-02", "gpu-03", "gpu-04")
    assert pairs.fleet.racks["gpu-03"] == "rack-1"
    assert len(pairs.results) == len(rows(folder))
    assert set(pairs.left_out) == {"gpu-06", "gpu-07"}
    assert "no route to host" in pairs.left_out["gpu-07"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="pair_bandwidth between 6 nodes: ' in page
    assert "<b>? Took no part:</b> gpu-07: " in page
    (folder / "pairs.jsonl").write_text('{"nodes": 3}\n')
    assert context.of_run(RunFolder.open(folder), health).pairs == (), "never an error"


@pytest.mark.parametrize(("count", "verdict"), [(1, "error"), (2, "pass"), (3, "pass"), (5, "pass")])
def test_any_number_of_nodes(count: int, verdict: str, machines: Network) -> None:
    code, report, _ = machines.run(count)
    assert set(verdicts(report).values()) == {verdict}
    assert code == (ExitCode.OK if verdict == "pass" else ExitCode.INCOMPLETE)
    for pairs in machines.rounds:
        assert len(frozenset().union(*pairs)) == 2 * len(pairs), "nobody is in two pairs of a round"


def test_nodes_with_different_rails_are_measured_on_those_they_share(machines: Network) -> None:
    machines.add("gpu-01", **facts(("mlx5_0", "mlx5_1")))
    machines.add("gpu-02", **facts(("mlx5_1", "mlx5_2")))
    _, _, folder = machines.run()
    assert {row["rail"] for row in rows(folder)} == {"mlx5_1"}


def test_nodes_without_a_rail_in_common_say_so(machines: Network) -> None:
    machines.add("gpu-01", **facts(("mlx5_0",)))
    machines.add("gpu-02", **facts(("mlx5_1",)))
    _, report, folder = machines.run(code=ExitCode.INCOMPLETE)
    assert {row["outcome"] for row in rows(folder)} == {"not run"}
    (finding,) = report["nodes"][0]["checks"][0]["findings"]
    assert "no rail in common" in " ".join(finding["evidence"])


def test_a_hostile_name_of_a_node_or_a_card_is_data(machines: Network) -> None:
    device = "{{ lookup('pipe', 'id') }}\n\x1b[2J"
    machines.add("gpu 01;`id`/../x", **facts((device, "mlx5_0")))
    machines.add("gpu-02/rail 9", **facts((device, "mlx5_0")))
    _, report, folder = machines.run()
    assert {row["rail"] for row in rows(folder)} == {device, "mlx5_0"}
    assert not (folder.parent / "x").exists()
    for node in report["nodes"]:
        for finding in node["checks"][0]["findings"]:
            assert "\x1b" not in finding["message"]


# --- routes between nodes and expected rates ---


def test_the_server_is_reached_at_its_address(machines: Network) -> None:
    machines.variables = {
        "gpu-01": {"gpuprov_address": "10.0.0.1", "ansible_host": "192.0.2.1"},
        "gpu-02": {"gpuprov_address": "10.0.0.2"},
    }
    _, _, folder = machines.run(2, code=ExitCode.OK)
    raw = [json.loads(path.read_text()) for path in (folder / "raw").rglob("*.json")]
    words = {word for one in raw for output in one["outputs"] for word in output["argv"]}
    assert words & {"10.0.0.1", "10.0.0.2"}
    assert "192.0.2.1" not in words


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "gpu-01"),
        ({"ansible_host": "192.0.2.1"}, "192.0.2.1"),
        ({"ansible_ssh_host": "192.0.2.2"}, "192.0.2.2"),
        ({"gpuprov_address": "10.0.0.1", "ansible_host": "192.0.2.1"}, "10.0.0.1"),
    ],
)
def test_the_address(variables: dict[str, Any], address: str) -> None:
    plays = Plays(ID, RunFolder(Path("unused")), {"gpu-01": variables}, validation.Settings())
    assert plays.address("gpu-01") == address


def test_between_racks_the_larger_oversubscription_of_both_counts(machines: Network) -> None:
    machines.variables = {
        f"gpu-0{i}": {"gpuprov_rack": "a" if i < 3 else "b", "gpuprov_oversubscription": 1 if i < 3 else 3}
        for i in range(1, 5)
    }
    _, _, folder = machines.run(4)
    for row in rows(folder):
        racks = {machines.variables[node]["gpuprov_rack"] for node in row["nodes"]}
        assert row["expected"] == pytest.approx(120 if len(racks) > 1 else 360)


def test_a_rack_that_is_missing_on_some_is_told(machines: Network) -> None:
    machines.variables = {f"gpu-0{i}": {"gpuprov_rack": "a"} for i in (1, 2, 3)}
    _, report, _ = machines.run(4, code=ExitCode.OK)
    assert any("gpuprov_rack is missing on gpu-04" in line for line in report["between"])


@pytest.mark.parametrize(("forks", "used"), [(50, 50), (5, 4), (1, 2)])
def test_a_server_and_its_client_always_run_at_once(forks: int, used: int, machines: Network) -> None:
    machines.run(4, *ONLY, "--forks", str(forks))
    assert {options["forks"] for options in machines.options} == {used}


# --- interrupted, resumed and rejudged runs ---


def test_a_run_that_was_interrupted_in_round_2_goes_on_with_round_2(machines: Network) -> None:
    machines.interrupt_round = 2
    code, report, folder = machines.run(4)
    assert (code, report["interrupted"]) == (ExitCode.INTERRUPTED, True)
    first = rows(folder)
    assert {row["round"] for row in first} == {1}

    machines.interrupt_round = 0
    machines.rounds.clear()
    code, report, again = machines.run(0, "--resume", folder.name)
    assert (code, again, report["interrupted"]) == (ExitCode.OK, folder, False)
    assert len(machines.rounds) == 1, "round 1 is not measured again"
    assert {row["round"] for row in rows(folder)} == {1, 2}
    assert rows(folder)[: len(first)] == first
    assert set(verdicts(report).values()) == {"pass"}


@pytest.mark.parametrize("moment", ["before the pairs", "in round 1"])
def test_a_node_whose_pairs_were_not_measured_is_not_healthy(moment: str, machines: Network) -> None:
    if moment == "in round 1":
        machines.interrupt_round = 1
    else:
        machines.interrupt_at = "gpu_burn"
    _, report, _ = machines.run(2, "--pairs", "--checks", "gpu_inventory,gpu_burn", code=ExitCode.INTERRUPTED)
    assert set(verdicts(report).values()) == {"error"}


def test_an_interrupt_after_all_checks_of_the_nodes_leaves_nobody_healthy(
    machines: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("provision.validate.pairs.pair_campaign.measure", stop)
    _, report, _ = machines.run(2, "--pairs", "--checks", "gpu_inventory", code=ExitCode.INTERRUPTED)
    assert set(verdicts(report).values()) == {"error"}


def test_a_finished_run_that_is_resumed_measures_nothing(machines: Network) -> None:
    _, report, folder = machines.run(4)
    machines.rounds.clear()
    code, again, _ = machines.run(0, "--resume", folder.name)
    assert (code, machines.rounds) == (ExitCode.OK, [])
    assert again["nodes"] == report["nodes"]


def test_a_node_that_is_in_the_pairs_and_not_in_the_facts_is_left_out_and_said(machines: Network) -> None:
    _, _, folder = machines.run(4)
    looks = (folder / "facts.jsonl").read_text().splitlines()
    kept = [line for line in looks if json.loads(line)["node"] != "gpu-04"]
    (folder / "facts.jsonl").write_text("\n".join(kept) + "\n")
    health = campaign.rejudge(folder)
    assert [node.node for node in health.nodes] == ["gpu-01", "gpu-02", "gpu-03"]
    assert any("gpu-04 is not of this run" in line for line in health.between)


GOOD = {
    "check": ID,
    **{"nodes": ["gpu-01", "gpu-02"], "round": 1, "outcome": "measured", "value": 390.0, "rail": "mlx5_0"},
    **{"unit": "Gb/s", "expected": 360.0, "end": "", "size": None, "said": ""},
}


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": "gpu-01"},
        {"nodes": 3},
        {"nodes": [["gpu-01"], "gpu-02"]},
        {"round": "one"},
        {"round": None},
        {"outcome": "great"},
        {"value": "fast"},
        {"expected": [1]},
        {"rail": {}},
        {"end": None},
        {"more": 1},
    ],
)
def test_a_line_that_is_no_result_is_refused_with_its_file(change: dict[str, Any], machines: Network) -> None:
    _, _, folder = machines.run(2)
    (folder / "pairs.jsonl").write_text(json.dumps({**GOOD, **change}) + "\n" + json.dumps(GOOD) + "\n")
    with pytest.raises(RunFolderError, match=r"pairs\.jsonl has a line that is not a result"):
        campaign.rejudge(folder)


def test_a_line_cut_by_a_kill_is_passed_over_and_one_in_the_middle_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create("validate", {}, tmp_path / "runs")
    whole = json.dumps(GOOD)
    path = folder.path / "pairs.jsonl"
    path.write_text(f"{whole}\n{whole[:40]}")
    assert [result.nodes for result in fleet_pairs.kept(folder, ID)] == [("gpu-01", "gpu-02")]
    path.write_text(f"{whole[:40]}\n{whole}\n")
    with pytest.raises(RunFolderError, match=r"pairs\.jsonl:1 is not JSON"):
        fleet_pairs.kept(folder, ID)
    path.write_text(json.dumps({"nodes": []}) + "\n")
    with pytest.raises(RunFolderError, match="not a result"):
        fleet_pairs.kept(folder, ID)


@pytest.mark.parametrize(
    "noted",
    [[ID], {ID: 3}, {ID: []}, {ID: {}}, {ID: {"nodes": ["gpu-01"]}}, {ID: {"nodes": 3, "left_out": {}}}],
)
def test_a_run_that_does_not_say_by_check_who_took_part_is_refused(noted: Any, machines: Network) -> None:
    _, _, folder = machines.run(2)
    RunFolder.open(folder).note(pairs=noted)
    with pytest.raises(RunFolderError, match=r"run\.json does not list the measured pairs"):
        campaign.rejudge(folder)


# --- every pair ---


def test_every_pair_is_met_once_and_a_link_no_other_round_meets_is_named(machines: Network) -> None:
    met = {frozenset(row["nodes"]) for row in rows(machines.run(6)[2])}
    nodes = [f"gpu-0{number}" for number in range(1, 7)]
    link = next(pair for pair in map(frozenset, itertools.combinations(nodes, 2)) if pair not in met)
    machines.slow[link] = 100.0
    _, report, _ = machines.run(code=ExitCode.OK)
    (line,) = [line for line in report["between"] if "--pairs all" in line]
    assert "all pairs take 5 rounds, about 1 min" in line
    _, report, folder = machines.run(0, *ONLY, "--pairs", "all", code=ExitCode.UNHEALTHY)
    assert [finding["device"] for finding in report["fabric"]] == [f"link {'-'.join(sorted(link))}"]
    pairs = {(row["round"], frozenset(row["nodes"])) for row in rows(folder)}
    assert {nodes for number, nodes in pairs if number <= 5} == {nodes for _, nodes in pairs}
    assert len([one for one in pairs if one[0] <= 5]) == 15
    assert [nodes for number, nodes in pairs if number > 5] == [link]
    assert not [line for line in report["between"] if "--pairs all" in line]


def test_every_pair_goes_on_where_it_was_interrupted(machines: Network) -> None:
    machines.interrupt_round = 3
    _, _, folder = machines.run(6, *ONLY, "--pairs", "all", code=ExitCode.INTERRUPTED)
    machines.interrupt_round = 0
    machines.run(0, "--resume", str(folder), "--pairs", "all", code=ExitCode.OK)
    pairs = [(row["round"], *row["nodes"], row["rail"]) for row in rows(folder)]
    assert len(pairs) == len(set(pairs))
    assert len({frozenset(row["nodes"]) for row in rows(folder)}) == 15


def test_the_users_timeout_holds_for_the_programs_of_pairs(machines: Network) -> None:
    machines.run(2, *ONLY, "--timeout", "7")
    machines.run()
    limited, free = (
        {command["deadline"] for host in hosts.values() for command in host["gpuprov_commands"]}
        for hosts in (machines.programs[0], machines.programs[-1])
    )
    assert limited == {7.0}
    assert min(free) > 7.0
