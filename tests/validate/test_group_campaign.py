"""gpuprov validate with NCCL over all nodes at once, and over pairs if the group is slow or fails.
Nodes are replaced at two interfaces (tests/support/machines.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.errors import ExitCode, InventoryError
from provision.remote.ansible.runner import Event, Outcome
from provision.validate.pairs.nccl_pairs import launcher
from provision.validate.plays.launch import Authority
from tests.support.machines import message, named, replaced, rows, verdicts
from tests.support.machines import validate as validate
from tests.support.measured_together import Answer, Together, answered
from tests.support.nccl_world import HEAD, ranks, table
from tests.support.pair_nodes import facts

ID = "nccl_group"
ONLY = ("--checks", ID)
RATE, SLOW = 90.0, 20.0  # GB/s; 75 are expected of two 400 Gb/s ports


class Cluster(Together):
    """Nodes with OpenMPI or Slurm, and the network between them."""

    only = ONLY

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[frozenset[str]] = set()  # slow nodes or links
        self.hangs: set[frozenset[str]] = set()
        self.refuses: set[str] = set()  # ssh to them fails
        self.without_mpi = False
        self.answers: dict[str, dict[str, Any]] = {}  # overrides for the answer of `open`
        self.fails: dict[tuple[str, str], str] = {}  # (state, node) → why
        self.launches: list[tuple[str, set[str]]] = []
        self.told: list[Mapping[str, Mapping[str, Any]]] = []
        self.programs: list[dict[str, tuple[list[str], dict[str, str]]]] = []
        self.measured: list[set[frozenset[str]]] = []
        self.cancelled: list[list[str]] = []
        self.interrupt_round = 0

    def run_playbook(
        self, playbook: Path, hosts: Mapping[str, Mapping[str, Any]], *, on_event: Any, **options: Any
    ) -> dict[str, Outcome]:
        if playbook.name == "launch.yml":
            return self._launch(hosts, on_event)
        if playbook.name == "checks.yml":
            return super().run_playbook(playbook, hosts, on_event=on_event, **options)
        first = {name: host["gpuprov_commands"][0] for name, host in hosts.items()}
        step = next(iter(first.values()))["name"]
        if step == "cancel":
            self.cancelled += [command["argv"] for command in first.values()]
        else:
            self.programs.append({name: (c["argv"], c["env"]) for name, c in first.items()})
            self.measured.append({frozenset(self._nodes(c["argv"])) for c in first.values()})
            assert sum(map(len, self.measured[-1])) == len(frozenset().union(*self.measured[-1]))
            if len(self.measured) == self.interrupt_round:
                raise KeyboardInterrupt
        for name, command in first.items():
            said = self._said(command) if step == "launch" else {}
            output = {"name": command["name"], "argv": command["argv"], "seconds": 9.0, **said}
            on_event(Event("ok", name, "", "", {"gpuprov": answered(output)}))
        return {name: Outcome(name, "ok") for name in hosts}

    def _launch(self, hosts: Mapping[str, Mapping[str, Any]], on_event: Any) -> dict[str, Outcome]:
        (state,) = {host["gpuprov_launch_state"] for host in hosts.values()}
        self.launches.append((state, set(hosts)))
        self.told.append(hosts)
        outcomes = {}
        for name in hosts:
            why = self.fails.get((state, name), "")
            outcomes[name] = Outcome(name, "failed" if why else "ok", message=why)
            if not why:
                answer = self._opened(name) if state == "open" else {}
                on_event(Event("changed", name, "", "", {"gpuprov": answer}))
        return outcomes

    def _opened(self, name: str) -> dict[str, Any]:
        return {
            **{"public_key": Authority("a node", 1).public, "host_keys": [f"ssh-ed25519 {'A' * 68}"]},
            **{"user": "root", "hostname": f"host-{name}", "mpirun": "/usr/bin/mpirun", "slurm": {}},
            **{"version": "mpirun (Open MPI) 5.0.7", "mpirun_missing": "", **self.answers.get(name, {})},
        }

    def in_slurm(self, *names: str, state: str = "idle") -> None:
        for name in names:
            found = {"node": f"slurm-{name}", "state": state, "mpi": ["pmi2", "pmix"]}
            self.answers[name] = {**self.answers.get(name, {}), "slurm": found}

    def _nodes(self, argv: list[str]) -> list[str]:
        if "srun" in argv[0]:
            (named,) = [word.partition("=")[2] for word in argv if word.startswith("--nodelist=")]
            return [word.removeprefix("slurm-") for word in named.split(",")]
        addresses = [word.rpartition(":")[0] for word in argv[argv.index("--host") + 1].split(",")]
        by_address = {v.get("gpuprov_address", name): name for name, v in self.variables.items()}
        return [by_address.get(address, address) for address in addresses]

    def _said(self, command: Mapping[str, Any]) -> dict[str, Any]:
        nodes = self._nodes(command["argv"])
        hosts = [f"host-{node}" for node in nodes]
        if refusing := self.refuses & set(nodes[1:]):
            lines = [f"gpuprov: ssh to {node} ended with status 255\n" for node in sorted(refusing)]
            return {"rc": 1, "stderr": "Permission denied (publickey).\n" + "".join(lines)}
        if any(bad <= set(nodes) for bad in self.hangs):
            return {"rc": None, "timed_out": True, "stdout": HEAD + ranks(hosts), "seconds": 181.0}
        if self.without_mpi:
            return {"stdout": "".join(table([host], 470.0) for host in hosts)}
        return {"stdout": table(hosts, SLOW if any(bad <= set(nodes) for bad in self.slow) else RATE)}

    def states(self) -> list[str]:
        return [state for state, _ in self.launches]


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    return replaced(Cluster(), monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def validated(machines: Cluster, validate: Callable[..., Answer]) -> None:
    machines.validate = validate


ALL = {f"gpu-0{number}" for number in range(1, 7)}


# --- a whole run ---


def test_a_healthy_group_is_one_program_and_clears_everybody(machines: Cluster) -> None:
    code, report, folder = machines.run(6)
    assert (code, report["asked"], report["fabric"]) == (ExitCode.OK, [ID], [])
    assert verdicts(report) == dict.fromkeys(ALL, "pass")
    assert machines.measured == [{frozenset(ALL)}]
    assert machines.launches[0] == ("open", ALL)
    assert machines.launches[1] == ("admit", ALL)
    assert machines.launches[-1] == ("close", ALL)
    (row,) = rows(folder)
    assert (row["round"], row["value"], row["expected"], row["size"]) == (0, RATE, 75.0, 6)
    assert [node["checks"][0]["findings"][0]["value"] for node in report["nodes"]] == [RATE] * 6


def test_the_group_comes_after_the_checks_of_the_nodes(machines: Cluster) -> None:
    code, report, _ = machines.run(3, "--group", "--checks", "gpu_inventory")
    assert (code, report["asked"]) == (ExitCode.OK, ["gpu_inventory", ID])
    _, report, _ = machines.run(0, "--checks", "gpu_inventory")
    assert (ID in report["asked"], len(machines.measured)) == (False, 1)


def test_every_node_gets_a_certificate_of_one_authority_and_no_private_key_is_told(machines: Cluster) -> None:
    _, _, folder = machines.run(3)
    (admitted,) = [hosts for hosts in machines.told if "gpuprov_launch_certificate" in hosts["gpu-01"]]
    assert len({host["gpuprov_launch_certificate"] for host in admitted.values()}) == 3
    assert len({host["gpuprov_launch_authority"] for host in admitted.values()}) == 1
    assert all(
        host["gpuprov_launch_certificate"].startswith("ssh-ed25519-cert-v01@openssh.com ")
        for host in admitted.values()
    )
    assert "PRIVATE" not in str(machines.told)
    assert not [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


def test_a_slow_node_is_named_by_pairs(machines: Cluster) -> None:
    machines.slow.add(frozenset({"gpu-03"}))
    _, report, _ = machines.run(6, code=ExitCode.UNHEALTHY)
    assert named(report) == {("gpu-03", ID, "node", "fail")}
    assert len(machines.measured) > 1
    assert any("all 6 nodes at once: 20 GB/s, at least 75 GB/s" in line for line in report["between"])


def test_a_slow_link_is_named_by_pairs(machines: Cluster) -> None:
    machines.slow.add(frozenset(ALL))  # the group alone, to learn which pairs are measured first
    machines.run(6)
    link = min(machines.measured[1], key=sorted)
    machines.slow = {link}
    _, report, _ = machines.run(code=ExitCode.UNHEALTHY)
    (finding,) = report["fabric"]
    assert (finding["device"], finding["verdict"]) == (f"link {'-'.join(sorted(link))}", "fail")
    assert {name for name, verdict in verdicts(report).items() if verdict == "warn"} == link


def test_a_group_that_is_slow_while_all_pairs_pass_is_the_finding(machines: Cluster) -> None:
    machines.slow.add(frozenset(ALL))
    _, report, _ = machines.run(6, code=ExitCode.UNHEALTHY)
    assert verdicts(report) == dict.fromkeys(ALL, "pass")
    (finding,) = report["fabric"]
    assert (finding["device"], finding["verdict"]) == ("group", "fail")
    assert "every pair that was measured passes" in finding["message"]


def test_a_hang_is_ended_on_all_its_nodes_and_named(machines: Cluster) -> None:
    machines.hangs.add(frozenset({"gpu-03"}))
    _, report, _ = machines.run(6, code=ExitCode.UNHEALTHY)
    assert named(report) == {("gpu-03", ID, "node", "fail")}
    assert "hangs between nodes" in message(report, "gpu-03")
    ended = [nodes for state, nodes in machines.launches if state == "end"]
    assert ended[0] == ALL, "before the pairs are measured"
    hung = [pair for pairs in machines.measured[1:] for pair in pairs if "gpu-03" in pair]
    assert hung
    assert ended[1:] == [set(pair) for pair in hung], "the others go on undisturbed"
    assert machines.states()[-1] == "close"


def test_a_node_that_refuses_the_key_is_not_measured_and_the_others_are(machines: Cluster) -> None:
    machines.refuses.add("gpu-03")
    _, report, _ = machines.run(6, code=ExitCode.INCOMPLETE)
    assert verdicts(report) == {name: "error" if name == "gpu-03" else "pass" for name in ALL}
    assert "Permission denied (publickey)" in message(report, "gpu-03")
    assert report["fabric"] == []


def test_a_build_without_mpi_passes_nobody(machines: Cluster) -> None:
    machines.without_mpi = True
    _, report, _ = machines.run(4, code=ExitCode.INCOMPLETE)
    assert "pass" not in verdicts(report).values()
    assert "validation_tools_mpi" in str(report)


def test_two_nodes_are_a_pair_alone(machines: Cluster) -> None:
    code, report, folder = machines.run(2)
    assert (code, set(verdicts(report).values())) == (ExitCode.OK, {"pass"})
    assert {row["round"] for row in rows(folder)} >= {1}
    assert 0 not in {row["round"] for row in rows(folder)}


def test_pairs_alone_measure_no_group(machines: Cluster) -> None:
    code, report, _ = machines.run(4, "--checks", "nccl_pair")
    assert (code, set(verdicts(report).values())) == (ExitCode.OK, {"pass"})
    assert {len(nodes) for pairs in machines.measured for nodes in pairs} == {2}


# --- participating nodes ---


def test_a_node_that_cannot_be_opened_or_admitted_is_left_out_with_the_reason(machines: Cluster) -> None:
    machines.fails[("open", "gpu-02")] = "its sshd takes no keys (PubkeyAuthentication no)"
    machines.fails[("admit", "gpu-03")] = "the launch is not open any more"
    machines.answers["gpu-04"] = {"mpirun": "", "version": "", "mpirun_missing": "no such file: mpirun"}
    _, report, _ = machines.run(6, code=ExitCode.INCOMPLETE)
    left = {"gpu-02", "gpu-03", "gpu-04"}
    assert verdicts(report) == {name: "error" if name in left else "pass" for name in ALL}
    assert "its sshd takes no keys" in message(report, "gpu-02")
    assert "not open any more" in message(report, "gpu-03")
    assert "no such file: mpirun: the role validation_tools, with validation_tools_mpi: true" in message(
        report, "gpu-04"
    )
    assert machines.measured == [{frozenset(ALL - left)}]
    assert machines.launches[-1] == ("close", ALL), "what was opened half is closed, too"


@pytest.mark.parametrize("able", [0, 1], ids=["nobody", "one alone"])
def test_where_nobody_can_start_mpi_the_report_says_why_for_each_node(able: int, machines: Cluster) -> None:
    names = sorted(ALL)[:3]
    for name in names[able:]:
        machines.answers[name] = {"mpirun": "", "version": "", "mpirun_missing": "no such file: mpirun"}
    _, report, _ = machines.run(3, code=ExitCode.INCOMPLETE)
    assert verdicts(report) == dict.fromkeys(names, "error")
    for name in names[able:]:
        assert "no such file: mpirun: the role validation_tools, with validation_tools_mpi: true" in message(
            report, name
        )


@pytest.mark.parametrize(
    "answer",
    [
        {"host_keys": []},
        {"host_keys": "ssh-ed25519 AAAA"},
        {"host_keys": [f"ssh-ed25519 {'A' * 68}\n* ssh-ed25519 {'B' * 68}"]},
        {"public_key": "ssh-rsa AAAA"},
        {"public_key": 3},
        {"public_key": "\x1b[2J\udcff"},
        {"user": "root; id"},
        {"user": None},
        {"hostname": "a b"},
        {"hostname": "-x"},
        {"slurm": [1]},
        {"slurm": {"node": "a,b", "mpi": ["pmix"]}},
        {"slurm": {"node": "a", "mpi": "pmix"}},
        {"slurm": {"node": "a", "mpi": [3]}},
        {"slurm": {"node": "a", "mpi": ["pmix"], "state": "idle; id"}},
        {"slurm": {"node": "a", "mpi": ["pmix"], "state": None}},
        {"version": "x" * 5000},
        {"mpirun": ["/bin/sh"]},
    ],
)
def test_an_answer_that_is_none_leaves_the_node_out(answer: dict[str, Any], machines: Cluster) -> None:
    machines.answers["gpu-02"] = answer
    _, report, _ = machines.run(4, code=ExitCode.INCOMPLETE)
    found = verdicts(report)
    assert (found.pop("gpu-02"), set(found.values())) == ("error", {"pass"})
    assert "\x1b" not in message(report, "gpu-02")


def test_nodes_whose_ports_are_not_known_are_errors_and_the_others_are_measured(machines: Cluster) -> None:
    machines.add_nodes(3)
    machines.add("gpu-04", **{**facts(), "hca.ports": "eight"})
    _, report, _ = machines.run(code=ExitCode.INCOMPLETE)
    found = verdicts(report)
    assert (found.pop("gpu-04"), set(found.values())) == ("error", {"pass"})
    assert "hca.ports is not a list" in message(report, "gpu-04")


def test_two_versions_of_openmpi_are_told(machines: Cluster) -> None:
    machines.answers["gpu-02"] = {"version": "mpirun (Open MPI) 4.1.4"}
    _, report, _ = machines.run(4, code=ExitCode.OK)
    (line,) = [line for line in report["between"] if "versions" in line]
    assert "mpirun (Open MPI) 5.0.7 on gpu-[01,03-04], mpirun (Open MPI) 4.1.4 on gpu-02" in line


# --- launching ---


def test_the_addresses_ports_and_the_plugin_of_the_inventory(machines: Cluster) -> None:
    machines.variables = {
        "gpu-01": {"gpuprov_address": "10.0.0.1", "gpuprov_nccl_net": "Socket"},
        "gpu-02": {"ansible_port": 2222},
        "gpu-03": {"gpuprov_nccl_net": "Socket"},
    }
    machines.run(3, variables={"gpuprov_mpi_networks": "10.0.0.0/16"})
    ((_, (argv, env)),) = machines.programs[0].items()
    assert argv[argv.index("--host") + 1] == "10.0.0.1:1,gpu-02:1,gpu-03:1"
    assert env["GPUPROV_SSH_PORTS"] == "gpu-02 2222\ngpu-03 22"
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.0/16"
    assert env["NCCL_NET"] == "Socket"


def test_a_user_who_is_not_root_starts_it_as_that_user(machines: Cluster) -> None:
    machines.answers = {name: {"user": "ubuntu"} for name in ALL}
    machines.run(3, code=ExitCode.OK)
    ((_, (argv, _)),) = machines.programs[0].items()
    assert argv[:4] == ["runuser", "-u", "ubuntu", "--preserve-environment"]


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (["mpich"], "gpu-01: gpuprov_launcher is 'mpich'"),
        (["slurm\x1b[2J"], "gpu-01: gpuprov_launcher is 'slurm"),
        (
            ["slurm", "openmpi", "openmpi"],
            "nodes that are measured together have more than one gpuprov_launcher: openmpi, slurm",
        ),
        (["slurm", "auto"], "more than one gpuprov_launcher: auto, slurm"),
    ],
)
def test_a_launcher_that_is_none_or_several_is_refused(stated: list[str], said: str) -> None:
    nodes = [f"gpu-0{number}" for number in range(1, len(stated) + 1)]
    variables = {node: {"gpuprov_launcher": value} for node, value in zip(nodes, stated, strict=True)}
    with pytest.raises(InventoryError) as refused:
        launcher(variables, nodes)
    assert said in refused.value.what
    assert refused.value.what.isprintable()
    assert refused.value.fix


def test_nodes_with_several_launchers_are_one_clear_line(
    machines: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.run(3)
    machines.measured.clear()
    machines.launches.clear()
    machines.variables["gpu-02"] = {"gpuprov_launcher": "slurm"}
    machines.run(code=ExitCode.ERROR)
    assert (machines.measured, machines.states()) == ([], [])
    assert not list(Path("runs").glob("*/facts.jsonl"))[1:], "no node was looked at"
    capsys.readouterr()
    assert cli.main(["validate", *ONLY]) == ExitCode.ERROR
    said = capsys.readouterr().err
    assert "more than one gpuprov_launcher: auto, slurm" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "address", ["fd00::1", "-oProxyCommand=id", "a,b", "a b", "a:1,b", "a\nb *", "é", "x" * 300]
)
def test_an_address_that_mpirun_would_read_as_something_else_is_refused(
    address: str, machines: Cluster
) -> None:
    machines.variables["gpu-02"] = {"ansible_host": address}
    _, report, _ = machines.run(4, code=ExitCode.INCOMPLETE)
    found = verdicts(report)
    assert (found.pop("gpu-02"), set(found.values())) == ("error", {"pass"})
    assert "mpirun does not accept the address" in message(report, "gpu-02")
    machines.in_slurm(*ALL)
    code, _, _ = machines.run()
    assert code == ExitCode.OK, "Slurm has names of its own"


def test_slurm_on_all_nodes_starts_it(machines: Cluster) -> None:
    machines.in_slurm(*ALL)
    code, report, folder = machines.run(6, variables={"gpuprov_slurm_options": ["--partition=gpu"]})
    assert (code, set(verdicts(report).values())) == (ExitCode.OK, {"pass"})
    ((_, (argv, env)),) = machines.programs[0].items()
    assert argv[0] == "srun"
    assert {"--partition=gpu", "--mpi=pmix", "--nodes=6"} <= set(argv)
    assert "GPUPROV_HOST_KEYS" not in env
    name, _, alone = env["GPUPROV_LAUNCH"].rpartition("-")
    assert (name, len(alone)) == (f"{folder.name}-nccl-group", 6), "what is left of it is ended by it"
    assert "admit" not in machines.states(), "nobody is let in"
    assert machines.launches[-1] == ("close", ALL)


def test_a_hang_in_slurm_is_cancelled(machines: Cluster) -> None:
    machines.in_slurm(*ALL)
    machines.hangs.add(frozenset({"gpu-03"}))
    _, report, _ = machines.run(6, code=ExitCode.UNHEALTHY)
    assert named(report) == {("gpu-03", ID, "node", "fail")}
    ((argv, _),) = machines.programs[0].values()
    (job,) = [word for word in argv if word.startswith("--job-name=")]
    assert machines.cancelled[0] == ["scancel", job.replace("--job-name", "--jobname")]


def test_slurm_on_some_nodes_is_not_taken_unless_it_is_asked_for(machines: Cluster) -> None:
    machines.in_slurm("gpu-01", "gpu-02", "gpu-03")
    machines.run(4, code=ExitCode.OK)
    assert next(iter(machines.programs[0].values()))[0][0] == "/usr/bin/mpirun"
    _, report, _ = machines.run(0, variables={"gpuprov_launcher": "slurm"}, code=ExitCode.INCOMPLETE)
    assert next(iter(machines.programs[1].values()))[0][0] == "srun"
    assert "Slurm does not know it" in message(report, "gpu-04")
    machines.in_slurm("gpu-04")
    machines.run(0, variables={"gpuprov_launcher": "openmpi"})
    assert next(iter(machines.programs[2].values()))[0][0] == "/usr/bin/mpirun"


@pytest.mark.parametrize("state", ["drained", "draining*", "down", "maint", "unknown*"])
def test_nodes_that_slurm_gives_nobody_are_started_without_it(state: str, machines: Cluster) -> None:
    machines.in_slurm(*ALL, state=state)
    machines.run(6, code=ExitCode.OK)
    assert next(iter(machines.programs[0].values()))[0][0] == "/usr/bin/mpirun"


def test_of_nodes_that_slurm_gives_out_one_that_it_does_not_is_left_out(machines: Cluster) -> None:
    machines.in_slurm(*ALL, state="mixed-")
    machines.in_slurm("gpu-04", state="drained")
    _, report, _ = machines.run(6, code=ExitCode.INCOMPLETE)
    argv = next(iter(machines.programs[0].values()))[0]
    assert {"srun", "--nodes=5"} <= set(argv)
    assert "Slurm has it as drained: gpuprov_launcher: openmpi" in message(report, "gpu-04")


# --- interrupted and resumed runs ---


@pytest.mark.parametrize("moment", [1, 2])
def test_an_interrupt_closes_everything_and_the_run_goes_on_after_it(moment: int, machines: Cluster) -> None:
    machines.slow.add(frozenset({"gpu-03"}))
    machines.interrupt_round = moment
    code, report, folder = machines.run(6)
    assert (code, report["interrupted"]) == (ExitCode.INTERRUPTED, True)
    assert machines.launches[-1] == ("close", ALL)
    assert "pass" not in verdicts(report).values()

    machines.interrupt_round = 0
    machines.measured.clear()
    code, report, again = machines.run(0, "--resume", folder.name)
    assert (code, again) == (ExitCode.UNHEALTHY, folder)
    groups = [row for row in rows(folder) if row["round"] == 0]
    assert len(groups) == 1
    assert ({frozenset(ALL)} in machines.measured) == (moment == 1), "a group is not measured again"
    assert named(report) == {("gpu-03", ID, "node", "fail")}
    assert machines.launches[-1] == ("close", ALL)


def test_a_finished_run_that_is_resumed_starts_nothing(machines: Cluster) -> None:
    _, report, folder = machines.run(4)
    machines.measured.clear()
    code, again, _ = machines.run(0, "--resume", folder.name)
    assert (code, machines.measured) == (ExitCode.OK, [])
    assert again["nodes"] == report["nodes"]


# --- GPUs of two vendors ---

# 8 MI300X: the SKU has its own limit for collectives inside the node.
INSTINCT = {
    "gpu.pci": [{"address": f"0000:{n:02x}:00.0", "device_id": "1002:74a1"} for n in range(5, 13)],
    "gpu.nvswitch_count": 0,
}
RCCL = {f"amd-0{number}" for number in range(1, 4)}
NCCL = {f"gpu-0{number}" for number in range(1, 4)}


def of_two_vendors(machines: Cluster, instinct: int = 3) -> None:
    for number in range(1, instinct + 1):
        machines.add(f"amd-{number:02d}", **facts(), **INSTINCT)


def test_the_nodes_of_each_vendor_are_measured_among_themselves(machines: Cluster) -> None:
    of_two_vendors(machines)
    code, report, folder = machines.run(3)
    assert (code, set(verdicts(report).values())) == (ExitCode.OK, {"pass"})
    assert machines.measured == [{frozenset(RCCL)}, {frozenset(NCCL)}]
    assert {len(row["nodes"]) for row in rows(folder)} == {3}
    (line,) = report["between"]
    assert line == (
        "nccl_group: 3 nodes with AMD GPUs and 3 nodes with NVIDIA GPUs are measured apart, each kind among "
        "itself"
    )
    assert machines.states() == ["open", "admit", "close"] * 2


def test_each_vendor_has_its_own_programs(machines: Cluster) -> None:
    of_two_vendors(machines)
    machines.answers["amd-03"] = {"mpirun": "", "version": "", "mpirun_missing": "no such file: mpirun"}
    variables = {
        "amd_validation_tools_all_reduce_perf_path": "/opt/rccl-tests/all_reduce_perf",
        "amd_validation_tools_mpirun_path": "/opt/rccl/mpirun",
        "validation_tools_mpirun_path": "/opt/nccl/mpirun",
    }
    _, report, _ = machines.run(3, variables=variables, code=ExitCode.INCOMPLETE)
    argv = [words for programs in machines.programs for words, _ in programs.values()]
    assert ["/opt/rccl-tests/all_reduce_perf" in words for words in argv[:1]] == [True]
    assert "/usr/bin/all_reduce_perf" in argv[-1]
    opened = [hosts for hosts in machines.told if "gpuprov_launch_mpirun" in next(iter(hosts.values()))]
    asked = {host["gpuprov_launch_mpirun"] for hosts in opened for host in hosts.values()}
    assert asked == {"/opt/rccl/mpirun", "/opt/nccl/mpirun"}
    assert "the role amd_validation_tools, with amd_validation_tools_mpi: true, installs it" in message(
        report, "amd-03"
    )


def test_a_slow_node_of_one_vendor_is_named_and_the_others_are_not_asked_again(machines: Cluster) -> None:
    of_two_vendors(machines, 5)
    machines.slow.add(frozenset({"amd-02"}))
    _, report, _ = machines.run(3, code=ExitCode.UNHEALTHY)
    assert named(report) == {("amd-02", ID, "node", "fail")}
    met = [nodes for round_ in machines.measured for nodes in round_]
    assert all(nodes <= NCCL or not nodes & NCCL for nodes in met)
    assert [nodes for nodes in met if nodes & NCCL] == [frozenset(NCCL)]


def test_the_only_node_of_its_vendor_is_skipped_with_the_reason(machines: Cluster) -> None:
    of_two_vendors(machines, 1)
    code, report, _ = machines.run(3)
    assert verdicts(report) == {"amd-01": "skip", **dict.fromkeys(NCCL, "pass")}
    assert code == ExitCode.OK
    assert "no other node of the run has GPUs of its vendor" in message(report, "amd-01")


def test_rccl_without_mpi_names_its_own_variable(machines: Cluster) -> None:
    of_two_vendors(machines, 4)
    machines.without_mpi = True
    _, report, _ = machines.run(0, code=ExitCode.INCOMPLETE)
    assert "amd_validation_tools_mpi: true builds it with MPI" in str(report)


def test_an_interrupt_between_the_vendors_leaves_the_rest_to_the_resumed_run(machines: Cluster) -> None:
    of_two_vendors(machines)
    machines.interrupt_round = 2
    code, report, folder = machines.run(3)
    assert (code, report["interrupted"]) == (ExitCode.INTERRUPTED, True)
    machines.interrupt_round = 0
    machines.measured.clear()
    code, report, again = machines.run(0, "--resume", folder.name)
    assert (code, again) == (ExitCode.OK, folder)
    assert machines.measured == [{frozenset(NCCL)}], "what was measured is not measured again"
    assert set(verdicts(report).values()) == {"pass"}
