"""Third-party checks: the example of docs/own-checks.md installed and run, and rejected checks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision import cli
from provision.checks import thresholds
from provision.checks.check import Output, Raw
from provision.checks.judge import Verdict
from provision.checks.judging import node_judge, own, registry
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.own import OwnCheckError
from provision.checks.judging.registry import Checks
from provision.checks.judging.table import BUILT_IN, STAGES
from provision.errors import ExitCode
from provision.validate import campaign

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_check"
GPUS = {"gpu": {"count": 8, "sku": "h100-sxm", "fabric": "nvswitch", "architecture": "hopper"}}
LIMIT = """\
sku: h100-sxm
thresholds:
  max_sm_clock.clock: {limit: 1900, unit: MHz, direction: at_least, source: our own fleet, kind: measured}
"""
SOUND = """
SUMMARY, SCOPE, STAGE, NEEDS = "asks nobody", "node", "quick", ()
def commands(node, options): return []
def parse(node, outputs): return []
def judge(node, measurements, thresholds): return []
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example with pip."""
    target = tmp_path_factory.mktemp("site")
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target)]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *words, str(EXAMPLE)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Checks[Any]]]:
    """Return a function that builds the registry as a new process would, given a folder of distributions."""
    monkeypatch.setattr(thresholds, "_declared", {})
    before = set(sys.modules)

    def make(folder: Path) -> Checks[Any]:
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        checks: Checks[Any] = Checks([one for one in BUILT_IN if one.stage in STAGES], lambda: own.found())
        monkeypatch.setattr(campaign, "CHECKS", checks)
        monkeypatch.setattr(node_judge, "CHECKS", checks)
        monkeypatch.setattr(registry, "CHECKS", checks)
        return checks

    yield make
    for name in set(sys.modules) - before:
        if isinstance(sys.modules[name], ModuleType) and not name.startswith("provision"):
            del sys.modules[name]


def distribution(folder: Path, source: str, name: str = "strange", package: str = "strange-checks") -> Path:
    """Write a distribution with one check, as it appears in site-packages."""
    folder.mkdir(exist_ok=True)
    module = f"{package.replace('-', '_')}_module"
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{package.replace('-', '_')}-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(f"[gpuprov.checks]\n{name} = {module}\n")
    return folder


def clocks(name: str) -> Raw:
    text = (EXAMPLE / "fixtures" / "max_sm_clock" / name).read_text()
    return Raw("gpu-01", "max_sm_clock", (Output("clocks", ("nvidia-smi",), 0, text, "", 1.0),))


def test_the_example_is_installed_listed_and_judged(
    installed: Path, fresh: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = fresh(installed)
    assert list(checks)[-1] == "max_sm_clock", "after the shipped ones"
    assert registry.select("quick", ["max_sm_clock"]) == ("max_sm_clock",)
    assert cli.main(["docs", "checks"]) == ExitCode.OK
    assert "(from gpuprov-max-sm-clock 1.0)" in capsys.readouterr().out
    seen = NodeFacts("gpu-01", {}, GPUS, {})
    (command,) = node_judge.commands_for("max_sm_clock", seen.check_node, {})
    assert command.argv[0] == "nvidia-smi"
    assert (
        node_judge.judge_check(seen, clocks("healthy.csv"), {}).verdict is Verdict.WARN
    )  # no limit was declared
    (tmp_path / "limits.yml").write_text(LIMIT)
    limits = thresholds.for_sku("h100-sxm", tmp_path / "limits.yml")
    assert node_judge.judge_check(seen, clocks("healthy.csv"), limits).verdict is Verdict.PASS
    locked = node_judge.judge_check(seen, clocks("locked-gpu5.csv"), limits)
    assert [(finding.verdict, finding.device) for finding in locked.findings] == [(Verdict.FAIL, "gpu5")]


def test_the_examples_own_tests_pass(installed: Path) -> None:
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:kmock", "--rootdir", str(EXAMPLE), "-c", "/dev/null"]
    words.append(str(EXAMPLE))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{installed}:{EXAMPLE.parents[2]}"},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_walk_shows_every_line_of_the_example() -> None:
    """Untested code in documentation goes stale."""
    page = (EXAMPLE.parents[1] / "own-checks.md").read_text()
    for file in ("pyproject.toml", "max_sm_clock.py"):
        lost = [
            line for line in (EXAMPLE / file).read_text().splitlines() if line.strip() and line not in page
        ]
        assert lost == [], file


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("import nowhere_to_be_found", "strange", "it cannot be imported: ModuleNotFoundError"),
        ("1 / 0", "strange", "it cannot be imported: ZeroDivisionError"),
        (SOUND, "gpu_burn", "gpuprov itself has a check of that name"),
        (SOUND, "Strange-One", "its name must be"),
        (SOUND.replace('"asks nobody"', "3"), "strange", "SUMMARY must be"),
        (SOUND.replace('"node"', '"planet"'), "strange", "SCOPE must be one of node, pair, group"),
        (SOUND.replace('"quick"', '"now"'), "strange", "STAGE must be one of quick"),
        (SOUND.replace(", ()", ', "nvidia-smi"', 1), "strange", "NEEDS must be a tuple"),
        (SOUND.replace("def judge(node, measurements, thresholds)", "def judge(node)"), "strange",
         "judge must be a function of 3 arguments"),
        (SOUND.replace("def parse", "def parses"), "strange", "parse must be a function of 2 arguments"),
        (SOUND + "METRICS = {'x': {'unit': 'W', 'direction': 'up'}}", "strange", "METRICS must map"),
        (SOUND + "METRICS = ['x']", "strange", "METRICS must map"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_used_is_one_line_with_its_distribution(
    source: str, name: str, said: str, tmp_path: Path, fresh: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = fresh(distribution(tmp_path / "site", source, name))
    with pytest.raises(OwnCheckError) as refusal:
        list(checks)
    assert said in refusal.value.what
    assert "strange-checks 2.1" in refusal.value.what
    assert "\n" not in refusal.value.what
    assert "pip uninstall strange-checks" in refusal.value.fix
    assert cli.main(["docs", "checks"]) == ExitCode.ERROR
    assert "strange-checks 2.1" in capsys.readouterr().err
    assert checks["gpu_inventory"], "a shipped check is not held up by it"


def test_two_distributions_with_one_name(tmp_path: Path, fresh: Any) -> None:
    distribution(tmp_path / "site", SOUND, "same", "first-checks")
    checks = fresh(distribution(tmp_path / "site", SOUND, "same", "second-checks"))
    with pytest.raises(OwnCheckError, match=r"(first|second)-checks 2.1 has a check of that name"):
        len(checks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("outputs): return []", "outputs): return 7"), "parse failed: TypeError"),
        (("outputs): return []", "outputs): raise KeyError('x')"), "parse failed: KeyError"),
        (("outputs): return []", "outputs): return ['text']"), "something else than Measurements"),
        (("thresholds): return []", "thresholds): return None"), "judge failed: TypeError"),
        (("thresholds): return []", "thresholds): return []"), "judge gave no finding"),
        (("thresholds): return []", "thresholds): return [{'verdict': 'pass'}]"), "else than Findings"),
        (("thresholds): return []", "thresholds):\n from provision.checks.judge import Finding\n"
          " return [Finding('strange', 'pass', 'node', 'fine')]"), "judge gave the verdict 'pass'"),
        (("thresholds): return []", "thresholds):\n from provision.checks.judge import Finding, Verdict\n"
          " return [Finding('strange', Verdict.FAIL, 'node', 'bad', action='pray')]"), "'pray'"),
    ],
)  # fmt: skip
def test_a_mistake_in_one_costs_its_own_verdict_only(
    change: tuple[str, str], said: str, tmp_path: Path, fresh: Any
) -> None:
    source = SOUND.replace(*change)
    fresh(distribution(tmp_path / "site", source))
    result = node_judge.judge_check(NodeFacts("gpu-01", {}, GPUS, {}), Raw("gpu-01", "strange", ()), {})
    assert result.verdict is Verdict.ERROR
    assert said in result.findings[0].message
    assert "strange-checks 2.1" in result.findings[0].message


def test_shipped_checks_alone_look_for_nothing(
    monkeypatch: pytest.MonkeyPatch, fresh: Any, tmp_path: Path
) -> None:
    checks = fresh(tmp_path)
    monkeypatch.setattr(own, "found", lambda: pytest.fail("looked for plug-ins"))
    assert "gpu_burn" in checks
    assert checks["gpu_burn"].SUMMARY
