"""Tests of gpu_burn: the verdict on each GPU, and misleading output."""

from __future__ import annotations

import pytest

from provision.checks.gpu import gpu_burn
from provision.checks.judge import Finding, Verdict
from provision.checks.thresholds import Threshold
from provision.errors import ParseError
from tests.support.checks import judged, make_node, make_output, sample

ARGV = ("/usr/bin/gpu_burn", "-tc", "60")


def bad(findings: list[Finding]) -> list[tuple[Verdict, str]]:
    return [(f.verdict, f.device) for f in findings if f.verdict is not Verdict.PASS]


def test_time_comes_last_and_gpus_are_numbered_as_nvidia_smi_does() -> None:
    command, *_ = gpu_burn.commands(make_node(), {"burn_seconds": 300})
    assert command.argv == ("/usr/bin/gpu_burn", "-tc", "300")
    assert command.deadline == 390
    assert command.cwd == "/usr/share/gpu-burn"
    assert command.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_paths_come_from_the_role_that_installs_it() -> None:
    node = make_node(validation_tools_gpu_burn_path="/opt/b/gpu_burn", validation_tools_gpu_burn_dir="/opt/b")
    command, *_ = gpu_burn.commands(node, {})
    assert (command.argv[0], command.cwd) == ("/opt/b/gpu_burn", "/opt/b")


def test_measurements() -> None:
    output = make_output("gpu_burn", sample("gpu_burn/faulty-gpu3.txt"), argv=ARGV)
    found = {(m.device, m.metric): m.value for m in gpu_burn.parse(make_node(), {"gpu_burn": output})}
    assert found["node", "seconds"] == 60
    assert found["node", "gpus"] == 8
    assert (found["gpu3", "state"], found["gpu2", "state"]) == ("FAULTY", "OK")
    assert found["gpu2", "errors"] == 0
    # Counters restart at each of the ten summaries: 18 reports with 5 to 40 errors are 90 to 720 in all.
    assert 90 <= int(found["gpu3", "errors"]) <= 720
    assert found["gpu0", "temperature"] == 72


def test_a_limit_condemns_what_peers_cannot() -> None:
    limit = Threshold("gpu_burn.rate", 600_000, "Gflop/s", "at_least", "a made-up limit", "measured")
    output = make_output("gpu_burn", sample("gpu_burn/healthy.txt"), argv=ARGV)
    findings = judged("gpu_burn", output, node=None, **{"gpu_burn.rate": limit})
    assert bad(findings) == [(Verdict.FAIL, f"gpu{i}") for i in range(8)]


def burned(*reports: str) -> str:
    """Return the output of a burn on four GPUs with these progress lines."""
    lines = "".join(
        f"\r{percent}%  proc'd: {done}   errors: 0 - 0 - 0 - 0   temps: 50 C - 50 C - 50 C - 50 C "
        for percent, done in (report.split("|") for report in reports)
    )
    result = "".join(f"\tGPU {gpu}: OK\n" for gpu in range(4))
    return f"Burning for 60 seconds.\n{lines}\nKilling processes.. done\n\nTested 4 GPUs:\n{result}"


def test_the_first_report_of_a_gpu_is_warm_up() -> None:
    """In real runs the first report comes late and shows a third of the rate, yet the GPU is not slow."""
    first = "10 (9000 Gflop/s) - 10 (9000 Gflop/s) - 10 (9000 Gflop/s) - 0 (0 Gflop/s)"
    second = "20 (30000 Gflop/s) - 20 (30000 Gflop/s) - 20 (30000 Gflop/s) - 10 (9000 Gflop/s)"
    third = "30 (30000 Gflop/s) - 30 (30000 Gflop/s) - 30 (30000 Gflop/s) - 20 (30000 Gflop/s)"
    text = burned(f"40.0|{first}", f"70.0|{second}", f"100.0|{third}")
    assert bad(judged("gpu_burn", make_output("gpu_burn", text, argv=ARGV), node=make_node(4))) == []
    short = burned(f"50.0|{first}", f"100.0|{second}")
    findings = judged("gpu_burn", make_output("gpu_burn", short, argv=ARGV), node=make_node(4))
    assert bad(findings) == [(Verdict.WARN, "node")]
    assert "too short" in findings[0].message


def test_a_gpu_that_did_nothing_is_not_ok() -> None:
    idle = "{0} (30000 Gflop/s) - {0} (30000 Gflop/s) - {0} (30000 Gflop/s) - 0 (0 Gflop/s)"
    text = burned(*(f"{percent}.0|{idle.format(percent)}" for percent in (20, 40, 60, 80, 100)))
    findings = judged("gpu_burn", make_output("gpu_burn", text, argv=ARGV), node=make_node(4))
    assert bad(findings) == [(Verdict.ERROR, "gpu3")]


def test_a_result_before_the_time_was_up_is_refused() -> None:
    text = burned("55.0|" + " - ".join(["10 (30000 Gflop/s)"] * 4))
    with pytest.raises(ParseError, match="stopped at 55 %"):
        gpu_burn.parse(make_node(4), {"gpu_burn": make_output("gpu_burn", text, argv=ARGV)})


def test_a_burn_that_never_finds_a_gpu_names_the_reason() -> None:
    """Recorded with gpu-burn 20240115 (Debian 13) and no usable GPU.
    Workers abort and are restarted until gpu-burn is killed at its deadline."""
    worker = (
        "terminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  Error (gpu_burn-drv.cpp:302): no CUDA-capable device is detected\n"
    )
    output = make_output("gpu_burn", rc=None, stderr=worker * 50, timed_out=True, seconds=150.0, argv=ARGV)
    with pytest.raises(ParseError) as failure:
        gpu_burn.parse(make_node(), {"gpu_burn": output})
    assert failure.value.what == "gpu_burn cannot use the GPUs: no CUDA-capable device is detected"


def test_the_count_beside_a_dead_worker_is_no_number_of_errors() -> None:
    """In gpu-burn #52 and #69 the number is memory that was never written."""
    text = sample("gpu_burn/died-gpu6.txt").replace("-1  (DIED!)", "1641686072  (DIED!)")
    assert "1641686072" in text
    text = text.replace("GPU 6: OK", "GPU 6: FAULTY")
    assert bad(judged("gpu_burn", make_output("gpu_burn", text, argv=ARGV))) == [(Verdict.ERROR, "gpu6")]
