"""Silent successes reported by other projects, rebuilt: nothing passes in any of these situations.

Each test is named after the project and thread it comes from, and describes the fault there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.checks import health, thresholds
from provision.checks.check import Output, Raw
from provision.checks.health import CheckResult, FleetHealth
from provision.checks.judge import Finding, Verdict, worst
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import CHECKS
from provision.desired import expectations, stack
from provision.desired.role import all_roles
from provision.drift.assess import GIVEN
from provision.drift.drifts import drifts
from provision.errors import ExitCode, GpuprovError
from provision.paths import PLAYBOOKS, ROLES
from provision.remote.ansible import handover, runner
from provision.remote.reach.observe import Observation
from provision.validate import validation
from tests.support.scenarios import ON_NVIDIA, command_outputs, machine, scenarios

TESTS = Path(__file__).parent.parent
FIXTURES = TESTS / "fixtures"
WITH_COMMANDS = [
    name for name in ON_NVIDIA if command_outputs(name, machine(8, "h100-sxm", "nvswitch", "hopper"))
]
H100 = machine(8, "h100-sxm", "nvswitch", "hopper")


def seen(node: Any = H100) -> NodeFacts:
    return NodeFacts(node.name, node.facts, node.gpuprov_node, node.variables)


def result(check: str, outputs: tuple[Output, ...], node: Any = H100, error: str = "") -> CheckResult:
    limits = thresholds.for_sku(node.sku)
    return node_judge.judge_check(seen(node), Raw(node.name, check, outputs, error=error), limits)


def says(check: str, text: str, **more: Any) -> tuple[Output, ...]:
    """Return the same text from all programs of a check, by default with exit status 0."""
    fate = {"rc": 0, "stderr": "", "seconds": 1.0, **more}
    return tuple(Output(o.name, o.argv, stdout=text, **fate) for o in command_outputs(check, H100))


def sample(check: str, name: str) -> tuple[Output, ...]:
    """Return the outputs of a sample on an H100 machine."""
    return next(one.outputs for one in scenarios(check) if one.sample == name)


def shell_sees(*results: CheckResult, asked: tuple[str, ...] = ()) -> ExitCode:
    """Return the exit code of a validate run on one node with these results."""
    by_check = {one.check: one for one in results}
    node = node_judge.judge_node(seen(), by_check, asked or tuple(by_check))
    return validation.exit_code(FleetHealth("run", "0", "i.yml", "", "", tuple(by_check), (node,)))


@pytest.mark.parametrize("check", WITH_COMMANDS)
@pytest.mark.parametrize(
    ("text", "fate"),
    [
        # IBM/autopilot#68: the diagnosis was aborted with errors, then printed SUCCESS; the node was healthy.
        ("DCGM process terminated with errors. Other processes might be running. ABORT\nSUCCESS\n", {}),
        # microsoft/superbenchmark#411: on an unsupported GPU, with exit status 0.
        ("[executor.py:132][ERROR] Executor failed in gemm-flops, invalid context.\n", {}),
        # NVIDIA/NVSentinel#1826, #1827, and their neighbours: in #1748 the watcher hangs on the sick GPU and
        # "Overall Health: Healthy" stays, in PR #1364 a diagnosis that could not run ends with success.
        ("", {"rc": None, "timed_out": True, "seconds": 45.0}),
        ("", {"rc": 226, "stderr": "Error: Unable to complete diagnostic: DCGM_ST_IN_USE"}),
        ("", {"rc": None, "not_started": "No such file or directory"}),
    ],
    ids=["autopilot 68", "superbenchmark 411", "nvsentinel 1826: stalled", "in use", "missing"],
)
def test_a_program_that_failed_whatever_it_printed_and_however_it_ended(
    check: str, text: str, fate: Mapping[str, Any]
) -> None:
    found = result(check, says(check, text, **fate))
    assert found.verdict is Verdict.ERROR or (fate and found.verdict is Verdict.FAIL)
    assert shell_sees(found) in (ExitCode.INCOMPLETE, *([ExitCode.UNHEALTHY] if fate else ()))


def _limits_of(check: str) -> dict[str, thresholds.Threshold]:
    return {
        name: limit for name, limit in thresholds.for_sku("h100-sxm").items() if name.startswith(f"{check}.")
    }


@pytest.mark.parametrize("check", [name for name in WITH_COMMANDS if _limits_of(name)])
def test_readiness_engine_pr_6_a_gate_that_cannot_be_evaluated(check: str) -> None:
    """NVIDIA/cluster-readiness-engine#5, PR #6: the threshold gate answered "passed" without a limit, or
    without the measurement that the limit applies to."""
    healthy = [one for one in scenarios(check) if one.verdict is Verdict.PASS and one.node.sku == "h100-sxm"]
    if not healthy:
        pytest.skip(f"tests/fixtures/{check} has no healthy sample: test_fuzz.py says so")
    well = healthy[0]
    module = CHECKS[check]
    outputs = {output.name: output for output in well.outputs}
    measured = module.parse(well.node, outputs)
    limits = thresholds.for_sku("h100-sxm")
    gated = {name.removeprefix(f"{check}.") for name in _limits_of(check)}
    without = [
        m for m in measured if m.metric not in gated and not any(g.startswith(f"{m.metric}_") for g in gated)
    ]
    assert len(without) < len(measured), "the measurements that the limits are for"
    try:
        verdicts = [finding.verdict for finding in module.judge(well.node, without, limits)]
    except (KeyError, ValueError, StopIteration):
        verdicts = [Verdict.ERROR]  # the campaign turns any exception into an error
    assert worst(verdicts) is not Verdict.PASS
    if check.startswith(("p2p_bandwidth", "nccl_all", "nccl_reduce")):
        assert {f.verdict for f in module.judge(well.node, measured, {})} == {Verdict.WARN}


def test_readiness_engine_pr_6_a_result_that_never_came() -> None:
    """In the same PR, a group without a measurement was recorded as healthy."""
    assert node_judge.judge_node(seen(), {}, ["gpu_burn"]).verdict is Verdict.ERROR
    copied = result("p2p_bandwidth", sample("p2p_bandwidth", "healthy.json"))
    assert copied.verdict is Verdict.PASS
    assert shell_sees(copied) is ExitCode.OK
    assert shell_sees(copied, asked=("p2p_bandwidth", "gpu_burn")) is ExitCode.INCOMPLETE
    assert health.roll_up([]) is Verdict.ERROR


def test_superbenchmark_410_ansible_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """microsoft/superbenchmark#410: `ansible-playbook` was not found (127), and `sb deploy` exited with 0."""
    play = tmp_path / "play.yml"
    play.write_text("- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.ping:\n")
    python, *words = handover.ANSIBLE
    monkeypatch.setattr(handover, "ANSIBLE", (python, "-S", *words))  # a Python without site-packages
    try:
        statuses = [
            one.status for one in runner.run_playbook(play, {"n": {"ansible_connection": "local"}}).values()
        ]
    except GpuprovError:
        statuses = ["refused"]
    assert statuses
    assert "ok" not in statuses
    nothing_ran = result("gpu_burn", (), error="nothing was run on it")
    assert shell_sees(nothing_ran) is ExitCode.INCOMPLETE


@pytest.mark.parametrize("role", expectations.roles_in_order())
def test_omnia_2614_provisioned_without_what_was_declared(role: str) -> None:
    """dell/omnia#2614: "Provisioning completed but cuda and ofed are not installed".
    A role's expectations must fail on a bare node, and unreadable facts never satisfy them."""
    node: dict[str, Any] = {
        "os": {
            "id": "ubuntu", "version_id": "24.04", "codename": "noble", "family": "debian", "arch": "x86_64",
        },
        "kernel": {"release": "6.8.0-40-generic", "boot_release": "6.8.0-40-generic"},
        "gpu": {
            "vendor": "nvidia", "sku": "b200", "count": 8, "architecture": "blackwell", "fabric": "nvlink5",
            "pci_ids": ["10de:2901"],
        },
    }  # fmt: skip
    chosen = stack.DEFAULT
    if all_roles()[role].vendor == "amd":
        chosen = "amdgpu30.30-rocm7.2"
        node["gpu"] |= {"vendor": "amd", "sku": "mi300x", "architecture": "cdna3", "pci_ids": ["1002:74a1"]}
    variables = {**stack.load(chosen).variables, **GIVEN, f"{role}_enabled": True}
    promised = [one for one in expectations.of_node(variables, node) if one.role == role]
    assert promised
    bare = dict.fromkeys(one.fact for one in promised)
    nothing = ("gpu_settings", "amd_gpu_settings", "gpudirect_rdma", "package_lock")  # idle by default
    if role not in nothing:
        assert drifts(promised, Observation("gpu-01", bare)), "a bare node satisfies it"
    assert len(drifts(promised, Observation("gpu-01", {}))) == len(promised)


@pytest.mark.parametrize("check", ON_NVIDIA)
def test_soperator_scripts_that_exit_0_on_error(check: str) -> None:
    """nebius/soperator PR #1323 and #1377: the check script exits with 0 on status ERROR, or for an
    unlisted platform."""
    assert shell_sees(result(check, (), error="Timed out after 195 second(s).")) is ExitCode.INCOMPLETE


def test_soperator_a_platform_that_is_not_known() -> None:
    unknown = machine(8, None, "none", "")
    for check in ("p2p_bandwidth", "nccl_all_reduce"):
        module = CHECKS[check]
        outputs = {output.name: output for output in sample(check, "healthy.txt")}
        found = module.judge(unknown, module.parse(unknown, outputs), thresholds.for_sku(None))
        assert Verdict.PASS not in {finding.verdict for finding in found}, check


def test_oci_hpc_corruption_check_that_counts_minus_one() -> None:
    """oracle-quickstart/oci-hpc, gpu_sdc_checker.py: a crashed test counts -1 errors.
    Results are compared with results of the same GPU, which repeats its errors."""
    died = result("gpu_burn", sample("gpu_burn", "died-gpu6.txt"))
    assert died.verdict is Verdict.ERROR
    assert any(finding.device == "gpu6" for finding in died.findings)
    # A GPU with repeatable errors is caught by its neighbours, which know the right sum.
    wrong = result("nccl_all_reduce", sample("nccl_all_reduce", "wrong.txt"))
    assert wrong.verdict is Verdict.FAIL


def test_aznhc_xid_test_skipped_without_syslog() -> None:
    """Azure/azurehpc-health-checks: without /var/log/syslog the Xid test is silently skipped."""
    well = sample("gpu_inventory", "h100-v13.xml")
    for fate in ({"stdout": ""}, {"stdout": "", "rc": 1}, {"rc": None, "not_started": "not installed"}):
        blind = tuple(Output(**{**vars(o), **fate}) if o.name in ("journal", "dmesg") else o for o in well)
        found = result("gpu_inventory", blind)
        assert found.verdict is Verdict.ERROR, fate
        assert "kernel log" in " ".join(finding.message for finding in found.findings)


XID_79 = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


def test_nvsentinel_1417_a_journal_that_has_forgotten() -> None:
    """NVIDIA/NVSentinel#1417: the journal had been vacuumed before it was read; dmesg still had the Xid."""
    well = sample("gpu_inventory", "h100-v13.xml")
    for forgetful in ("journal", "dmesg"):
        outputs = []
        for o in well:
            if o.name in ("journal", "dmesg"):
                quiet = "[  100.000000] systemd[1]: Started something.\n"
                text = quiet if o.name == forgetful else quiet + f"[  101.000000] {XID_79}"
                outputs.append(Output(**{**vars(o), "stdout": text}))
            else:
                outputs.append(o)
        found = result("gpu_inventory", tuple(outputs))
        assert any(f.metric.startswith("xid.79") for f in found.findings), forgetful
        assert found.verdict is Verdict.FAIL


def test_gcm_nccl_that_could_not_run_is_no_warning() -> None:
    """facebookresearch/gcm: "NCCL could not run" was WARN, and a node with a warning accepts work."""
    found = result("nccl_all_reduce", sample("nccl_all_reduce", "not-ready.txt"))
    assert found.verdict is Verdict.ERROR
    assert shell_sees(found) is ExitCode.INCOMPLETE


def _tasks(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for item in node:
            yield from _tasks(item)
    elif isinstance(node, dict):
        yield node
        for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers"):
            yield from _tasks(node.get(key, []))


# Tasks with a later task that verifies the state, so that the outcome of the attempt does not matter.
ASKED_OTHERWISE = {
    # Without udev, as in a container, the rules are read at the next boot.
    "roles/amdgpu_driver/tasks/access.yml: Reload the udev rules and apply them to the GPU devices",
    # The installed module is verified after each, and the role fails if it is not the right one.
    "roles/amdgpu_driver/tasks/incomplete.yml: Build missing DKMS modules for the next boot's kernel",
    "roles/amdgpu_driver/tasks/incomplete.yml: Reinstall incomplete driver packages",
    "roles/nvidia_driver/tasks/incomplete.yml: Build missing DKMS modules for the next boot's kernel",
    # `up --remove` checks whether it is loaded, and reboots if so.
    "roles/gpudirect_rdma/tasks/remove.yml: Unload nvidia-peermem",
    # It fails if nothing is running. Work that is still running would prevent the removal of its user.
    "roles/receptor/tasks/remove.yml: Kill running work",
}


def test_cloud_native_stack_no_task_is_ignored() -> None:
    """NVIDIA/cloud-native-stack: 45 tasks of its validation have ignore_errors.
    No task here has, and later tasks verify the outcome of those that may fail (`failed_when: false`)."""
    ignored, unread = [], []
    for path in [*ROLES.rglob("*.yml"), *PLAYBOOKS.rglob("*.yml")]:
        if "tasks" not in path.parts and "handlers" not in path.parts and path.parent != PLAYBOOKS:
            continue
        folder = path.parent.parent if path.parent != PLAYBOOKS else PLAYBOOKS
        everything = "\n".join(file.read_text() for file in folder.rglob("*.yml"))
        for task in _tasks(yaml.safe_load(path.read_text())):
            name = f"{path.relative_to(ROLES.parent)}: {task.get('name')}"
            if "ignore_errors" in task or "ignore_unreachable" in task:
                ignored.append(name)
            register = task.get("register")
            if task.get("failed_when") is False and not (register and everything.count(register) > 1):
                unread.append(name)
    assert ignored == []
    assert set(unread) == ASKED_OTHERWISE


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _test_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(TESTS)}::{node.name}", node  # type: ignore[misc]


def test_molecule_no_test_asserts_a_constant() -> None:
    """17 Molecule verify playbooks of GPU roles assert `true`. No assertion here is a constant."""
    constant = [
        f"{name}:{node.lineno}"
        for name, function in _test_functions()
        for node in ast.walk(function)
        if isinstance(node, ast.Assert)
        and not any(isinstance(part, ast.Name | ast.Call | ast.Attribute) for part in ast.walk(node.test))
    ]
    assert constant == []
    for path in [*ROLES.rglob("*.yml"), *PLAYBOOKS.rglob("*.yml")]:
        for task in _tasks(yaml.safe_load(path.read_text()) or []):
            said = (task.get("ansible.builtin.assert") or {}).get("that")
            assert said not in (True, [True], "true", ["true"]), path


def test_molecule_every_test_can_fail() -> None:
    """Tests without an assertion call a function that asserts, or expect an exception."""
    bodies: dict[str, set[str]] = {}
    asserting: set[str] = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = {
                    part.attr if isinstance(part, ast.Attribute) else part.id
                    for part in ast.walk(node)
                    if isinstance(part, ast.Attribute | ast.Name)
                }
                bodies.setdefault(node.name, set()).update(calls)
                fails = any(isinstance(part, ast.Assert | ast.Raise) for part in ast.walk(node))
                if fails or calls & {"raises", "warns", "fail", "check"}:
                    asserting.add(node.name)
    while more := {name for name, calls in bodies.items() if name not in asserting and calls & asserting}:
        asserting |= more
    idle = [name for name, function in _test_functions() if function.name not in asserting]
    assert idle == []


def test_a_finding_that_passes_is_the_only_good_news() -> None:
    """Neither unmeasured nor inapplicable counts as healthy."""
    for verdict in (Verdict.ERROR, Verdict.FAIL):
        bad = CheckResult("gpu_burn", verdict, (Finding("gpu_burn", verdict, "node", "x"),), (), 1.0)
        assert shell_sees(bad) is not ExitCode.OK
