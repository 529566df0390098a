"""What a machine's tools printed beside what the simulator's print for the same call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuprov_lab import replica
from gpuprov_lab.places import SILICON
from provision.checks.check import Output, Raw
from provision.validate.selftest import compare
from tests.support.commands import ran

SKU, DRIVER = "h100-sxm", "580.126.09"
SMI = ("nvidia-smi", "-q", "-x")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Output]:
    """A tool of the simulator, as if it were this machine's."""
    made = {**os.environ, **replica.make(tmp_path_factory.mktemp("replica") / "made", SKU, DRIVER)}

    def run(*argv: str) -> Output:
        words = [sys.executable, "-I", "-S", str(SILICON / "run.py"), *argv]
        done = ran(words, env=made, check=True)
        return Output(argv[-1], argv, 0, done.stdout, "", 1.0)

    return run


def raw(*outputs: Output) -> list[Raw]:
    return [Raw("gpu-01", "gpu_inventory", outputs)]


def test_the_simulators_own_output_is_the_same(printed: Callable[..., Output]) -> None:
    here = printed(*SMI)
    shapes, why = compare.compare(raw(here, printed("nvidia-smi", "nvlink", "-s")), SKU, DRIVER)
    assert why == ""
    assert [(one.output, one.same, one.why) for one in shapes] == [
        ("gpu_inventory/-x", True, ""),
        ("gpu_inventory/-s", True, ""),
    ]
    path = replace(here, argv=("/usr/bin/nvidia-smi", "-q", "-x"))
    odd = replace(here, stdout=here.stdout.replace("</fan_speed>", "</fan_speed><fans>2</fans>"))
    shapes, _ = compare.compare(raw(path, odd), SKU, DRIVER)
    assert [(one.same, one.only_here, one.only_simulated) for one in shapes] == [
        (True, [], []),
        (False, ["/nvidia_smi_log/gpu/fans"], []),
    ]


def test_an_output_that_cannot_be_compared_says_why(printed: Callable[..., Output]) -> None:
    whole = printed(*SMI)
    cases = {
        "it was cut off at the size limit on this machine": replace(whole, truncated=True),
        "it did not end on this machine within 90 s": replace(whole, timed_out=True, rc=None, seconds=90.0),
        "it printed nothing on this machine": replace(whole, stdout=" \n"),
        "the simulator printed nothing for this call": replace(whole, argv=("nvme", "no-such-verb")),
        "it is lines here, and XML in the simulator": replace(whole, stdout="NVRM: no"),
    }
    shapes, _ = compare.compare(raw(*cases.values()), SKU, DRIVER)
    assert [one.why for one in shapes] == list(cases)
    assert not any(one.same or one.only_here or one.only_simulated for one in shapes)


def test_a_sampler_is_ended_in_the_middle_of_a_line(printed: Callable[..., Output]) -> None:
    query = ("nvidia-smi", "--query-gpu=index,power.draw,pstate", "--format=csv,noheader,nounits")
    whole = printed(*query)
    cut = replace(whole, stdout=whole.stdout + "0, 70", rc=-15, beside="gpu_burn")
    silent = replace(cut, stdout="")
    shapes, _ = compare.compare(raw(cut, silent), SKU, DRIVER)
    assert [(one.same, one.only_here) for one in shapes] == [(True, [])]


def test_the_kernel_log_and_what_did_not_start_are_left_out() -> None:
    outputs = [
        Output("journal", ("journalctl", "-k"), 0, "x", "", 1.0),
        Output("kernel_log_delta", ("dmesg",), 0, "x", "", 1.0),
        Output("nvidia_smi", SMI, None, "", "", 0.0, not_started="nvidia-smi is not installed"),
    ]
    assert compare.compare(raw(*outputs), SKU, DRIVER) == ([], "")


def test_what_is_not_simulated_says_why() -> None:
    assert compare.compare([], "", DRIVER) == ([], "the SKU of these GPUs is not known")
    assert compare.compare([], SKU, "") == ([], "the version of the loaded driver is not known")
    shapes, why = compare.compare([], "v100", DRIVER)
    assert shapes == []
    assert why.startswith(
        "there is no simulator for SKU v100 with driver 580.126.09: argument --sku: invalid"
    )
    assert "\n" not in why


def test_a_simulator_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_MAKE", 0.01)
    assert compare.compare([], SKU, DRIVER) == ([], "the simulated machine was not made within 0 s")


def test_no_module_comes_from_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "provision").mkdir()
    (tmp_path / "gpuprov_lab").mkdir()
    for name in ("provision/__init__.py", "gpuprov_lab/__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "gpuprov_lab/replica.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    assert compare.compare([], SKU, DRIVER) == ([], "")
    assert not (tmp_path / "ran").exists()


def test_nothing_of_the_simulated_machine_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    compare.compare([], SKU, DRIVER)
    assert list(tmp_path.iterdir()) == []
