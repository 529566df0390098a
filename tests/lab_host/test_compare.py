"""A machine's tool output compared with the simulator's for the same call."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuprov_lab import compare, replica
from gpuprov_lab.compare import Output
from gpuprov_lab.places import SILICON
from provision.cli import main
from provision.errors import ExitCode
from tests.support.commands import ran

SKU, DRIVER = "h100-sxm", "580.126.09"
SMI = ("nvidia-smi", "-q", "-x")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Output]:
    """Return a function that runs a simulator tool as if it belonged to this machine."""
    made = {**os.environ, **replica.make(tmp_path_factory.mktemp("replica") / "made", SKU, DRIVER)}

    def run(*argv: str) -> Output:
        words = [sys.executable, "-I", "-S", str(SILICON / "run.py"), *argv]
        done = ran(words, env=made, check=True)
        return Output(f"gpu_inventory/{argv[-1]}", argv, done.stdout, 1.0)

    return run


def test_the_simulators_own_output_is_the_same(printed: Callable[..., Output]) -> None:
    here = printed(*SMI)
    shapes, why = compare.compare([here, printed("nvidia-smi", "nvlink", "-s")], SKU, DRIVER)
    assert why == ""
    assert [(one.output, one.same, one.why) for one in shapes] == [
        ("gpu_inventory/-x", True, ""),
        ("gpu_inventory/-s", True, ""),
    ]
    path = replace(here, argv=("/usr/bin/nvidia-smi", "-q", "-x"))
    odd = replace(here, stdout=here.stdout.replace("</fan_speed>", "</fan_speed><fans>2</fans>"))
    shapes, _ = compare.compare([path, odd], SKU, DRIVER)
    assert [(one.same, one.only_here, one.only_simulated) for one in shapes] == [
        (True, [], []),
        (False, ["/nvidia_smi_log/gpu/fans"], []),
    ]


def test_an_output_that_cannot_be_compared_says_why(printed: Callable[..., Output]) -> None:
    whole = printed(*SMI)
    cases = {
        "it was cut off at the size limit on this machine": replace(whole, truncated=True),
        "it did not end on this machine within 90 s": replace(whole, timed_out=True, seconds=90.0),
        "it printed nothing on this machine": replace(whole, stdout=" \n"),
        "the simulator printed nothing for this call": replace(whole, argv=("nvme", "no-such-verb")),
        "it is lines here, and XML in the simulator": replace(whole, stdout="NVRM: no"),
    }
    shapes, _ = compare.compare(cases.values(), SKU, DRIVER)
    assert [one.why for one in shapes] == list(cases)
    assert not any(one.same or one.only_here or one.only_simulated for one in shapes)


def test_a_sampler_is_ended_in_the_middle_of_a_line(printed: Callable[..., Output]) -> None:
    query = ("nvidia-smi", "--query-gpu=index,power.draw,pstate", "--format=csv,noheader,nounits")
    whole = printed(*query)
    cut = replace(whole, stdout=whole.stdout + "0, 70", beside="gpu_burn")
    silent = replace(cut, stdout="")
    shapes, _ = compare.compare([cut, silent], SKU, DRIVER)
    assert [(one.same, one.only_here) for one in shapes] == [(True, [])]


def test_the_kernel_log_what_did_not_start_and_what_names_a_file_are_left_out() -> None:
    outputs = [
        Output("a/journal", ("journalctl", "-k"), "x"),
        Output("a/kernel_log_delta", ("dmesg",), "x"),
        Output("a/nvidia_smi", SMI, "", not_started="nvidia-smi is not installed"),
        Output("a/fio", ("fio", "--filename=/etc/passwd"), "x"),
    ]
    assert compare.compare(outputs, SKU, DRIVER) == ([], "")


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
    monkeypatch.setattr(replica, "_MAKE", 0.01)
    assert compare.compare([], SKU, DRIVER) == ([], "the simulated machine was not made within 0 s")


def test_nothing_of_the_simulated_machine_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    compare.compare([], SKU, DRIVER)
    assert list(tmp_path.iterdir()) == []


def write(folder: Path, smi: str, **more: object) -> Path:
    """Write a selftest's folder with one output."""
    (folder / "archive/checks").mkdir(parents=True)
    document = {"sku": SKU, "driver": DRIVER, **more}
    (folder / "selftest.json").write_text(json.dumps(document))
    (folder / "archive/facts.json").write_text(json.dumps({"facts": {}}))
    outputs = [{"name": "nvidia_smi", "argv": SMI, "stdout": smi}, {"name": "odd"}, "x"]
    (folder / "archive/checks/gpu_inventory.json").write_text(json.dumps({"outputs": outputs}))
    return folder


def test_the_folder_of_a_selftest_is_compared(
    printed: Callable[..., Output], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = printed(*SMI).stdout.replace("</fan_speed>", "</fan_speed><fans>2</fans>")
    write(tmp_path, odd)
    assert main(["lab", "compare", str(tmp_path)]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        "0 of 1 outputs have the shape of the simulated ones",
        "gpu_inventory/nvidia_smi: nvidia-smi -q -x",
        "  only here       /nvidia_smi_log/gpu/fans",
    ]
    assert main(["lab", "compare", str(tmp_path), "--json"]) == ExitCode.OK
    (shape,) = json.loads(capsys.readouterr().out)["shapes"]
    assert shape["only_here"] == ["/nvidia_smi_log/gpu/fans"]
    (tmp_path / "selftest.json").rename(tmp_path / "archive/selftest.json")  # the layout of archive.tar.gz
    assert main(["lab", "compare", str(tmp_path / "archive"), "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["shapes"] == [shape]


@pytest.mark.parametrize(
    ("text", "about"),
    [(None, "cannot be read: No such file"), ("{", "is no JSON"), ("[]", "is no document of a selftest")],
)
def test_another_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, about: str
) -> None:
    if text is not None:
        (tmp_path / "selftest.json").write_text(text)
    assert main(["lab", "compare", str(tmp_path)]) == ExitCode.ERROR
    said = capsys.readouterr().err.splitlines()
    assert about in said[0]
    assert said[1].startswith("  → give the folder")


@pytest.mark.parametrize("seconds", [pytest.param(int("9" * 400), id="huge"), float("nan"), -1, "2", None])
def test_a_time_that_is_none_is_no_bug(seconds: object) -> None:
    (found,) = compare.outputs("gpu_burn", {"outputs": [{"argv": ["gpu_burn"], "seconds": seconds}]})
    assert found.seconds == 0.0


def test_a_machine_that_is_not_simulated_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "compare", str(write(tmp_path, "x", sku=""))]) == ExitCode.ERROR
    assert capsys.readouterr().err == (
        f"gpuprov: {tmp_path} cannot be compared: the SKU of these GPUs is not known\n"
    )
