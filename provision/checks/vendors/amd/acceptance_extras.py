"""Programs of AMD's acceptance guide that no role installs: rocBLAS, BabelStream and AGFHC (pure).

If installed, the first two are run, and the last result of AGFHC is read. Each GPU is made visible alone, by
its unique number, since HIP numbers GPUs in a different order.

    Copy        4255995.148 0.00101     0.00117     0.00106
    transA,transB,M,N,K,alpha,lda,ldb,beta,ldc,rocblas-Gflops,us
    N,T,4000,4000,4000,1,4000,4000,0,4000,94500.1,1354.5
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provision import foreign_json
from provision.checks.check import CheckNode, Command, Measurement, Output, last_words
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.kernel_log import bus_address
from provision.checks.thresholds import limits
from provision.checks.vendors.amd import devices
from provision.errors import ParseError

_ABSENT = 127
_STREAM = re.compile(r"^(Copy|Mul|Add|Triad|Dot) +(\d{1,9}\.\d{1,6}) ", re.MULTILINE)
_HEADER = re.compile(r"^(\S{0,200}rocblas-Gflops\S{0,80})\n\s*(\S{1,300})$", re.MULTILINE)


def _unique(node: CheckNode) -> dict[str, str]:
    """Map unique numbers to devices, for the GPUs with a number from the driver."""
    gpus = kernel_incidents.devices(node)
    try:
        entries = devices.entries(node)
    except ParseError:
        return {}
    numbered = [(str(one.get("unique_id") or "").upper(), bus_address(one["address"])) for one in entries]
    return {unique: gpus[at] for unique, at in numbered if unique.isalnum() and at in gpus}


def commands(node: CheckNode) -> list[Command]:
    path = {"PATH": f"{devices.tools(node)}:/opt/rocm/bin:/usr/local/bin:/usr/bin:/bin"}
    gpus, deadline = " ".join(_unique(node)), 60.0 + 60.0 * node.gpu_count
    data = limits("amd_acceptance")
    shell = ("/bin/sh", "-c")
    runs = [
        Command(name, (*shell, data["for_each_gpu"], "each", gpus, *words.split()), deadline, env=path)
        for name, words in data["runs"].items()
    ]
    return [*runs, Command("agfhc", (*shell, data["agfhc"], "agfhc"), 20.0)]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> Iterator[Measurement]:
    """Yield each GPU's best rates `stream_<kernel>` (GB/s), `gemm_<type>` (Gflop/s), and `agfhc`.

    `absent`: not installed; `unnumbered`: no GPU can be shown to it alone; `unreadable`: why it gave no
    rates."""
    unique = _unique(node)
    for name, words in limits("amd_acceptance")["runs"].items():
        output, program = outputs.get(name), words.split()[0]
        if output is None or output.rc == _ABSENT:
            yield Measurement("absent", program, "")
            continue
        if not unique:  # as in a guest if its host provides none
            yield Measurement("unnumbered", program, "")
            continue
        try:
            yield from list(_of_each(name, program, output, unique))
        except ParseError as error:
            yield Measurement("unreadable", error.what, "")
    yield from _agfhc(outputs.get("agfhc"))


def _of_each(name: str, program: str, output: Output, unique: Mapping[str, str]) -> Iterator[Measurement]:
    blocks = output.stdout.split("gpuprov: ")[1:]
    if output.rc or output.timed_out or len(blocks) != len(unique):
        raise ParseError(f"{program} gave no rate of each GPU (status {output.rc}): {last_words(output)}")
    for block in blocks:
        number, _, text = block.partition("\n")
        yield from _rates(name, unique.get(number.strip(), "node"), text)


def _rates(name: str, device: str, text: str) -> Iterator[Measurement]:
    if name == "stream":
        best: dict[str, float] = {}
        for kernel, rate in _STREAM.findall(text):
            best[kernel] = max(float(rate) / 1000, best.get(kernel, 0.0))
        if len(best) != 5:
            raise ParseError(f"hip-stream printed no five rates of {device}", "report the new format")
        for kernel, highest in best.items():
            yield Measurement(f"stream_{kernel.lower()}", highest, "GB/s", device)
        return
    rows = [dict(zip(one[1].split(","), one[2].split(","), strict=False)) for one in _HEADER.finditer(text)]
    try:
        yield Measurement(name, max(float(row["rocblas-Gflops"]) for row in rows), "Gflop/s", device)
    except (KeyError, ValueError):
        raise ParseError(f"rocblas-bench printed no rate of {device}", "report the new format") from None


def _agfhc(output: Output | None) -> Iterator[Measurement]:
    """Yield the failures of AGFHC's last run of each recipe since boot, or else of its last run."""
    if output is None or output.rc == _ABSENT:
        yield Measurement("absent", "AGFHC", "")
        return
    runs = [one.partition("\n") for one in output.stdout.split("gpuprov: ")[1:]]
    fresh = [run for run in runs if run[0] == "since boot"]
    results: dict[str, tuple[str, bool]] = {}
    for _, _, text in fresh or runs[:1]:
        recipe, words, failed = _result(text)
        results.setdefault(recipe, (words, failed))
    bad = [one for one in results.values() if one[0] != "PASS"]
    good = "PASS" if results else "never run"
    yield Measurement("agfhc", ", ".join(words for words, _ in bad) or good, "")
    yield Measurement("agfhc_failed", any(failed for _, failed in bad), "")
    yield Measurement("agfhc_when", "since boot" if fresh else "before boot", "")


def _result(text: str) -> tuple[str, str, bool]:
    """Return recipe, result (PASS or the failures), and whether a test failed; a skipped test did not."""
    try:
        document = foreign_json.read(text)
        overall = str(document["overall_result"])[:40]
        other = [one for one in document.get("tests", []) if one["result"] != "PASS"]
        failed = [one for one in other if one["result"] == "FAIL"]
    except (AttributeError, KeyError, TypeError, ValueError):
        return "", "not understood", False
    names = ", ".join(str(one.get("name"))[:40] for one in (failed or other)[:8])
    words = names or overall
    return str(document.get("recipe") or names), words, bool(failed) or overall == "FAIL"
