"""The vendor bundle: everything about one node, nothing about other nodes, and no secret."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provision import cli, report
from provision.checks.check import Measurement, Output, Raw
from provision.checks.health import FleetHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.node_facts import NodeFacts
from provision.errors import ExitCode, RunFolderError
from provision.report import bundle
from provision.runs import node_history, store
from provision.runs.fingerprint import Fingerprint
from provision.runs.node_history import note_look, note_result
from provision.runs.store import RunFolder
from tests.support import samples

NODES = ("gpu-01", "gpu-02", "gpu-03", "rack7-spare.pod2.example")
XML = (
    '<nvidia_smi_log><gpu id="00000000:18:00.0"><board_part_number>692-2G520-0200</board_part_number></gpu>'
    "</nvidia_smi_log>"
)


def keep(
    runs: Path,
    said: str = "",
    facts: dict[str, Any] | None = None,
    change: Callable[[FleetHealth], FleetHealth] = lambda fleet: fleet,
    variables: dict[str, Any] | None = None,
    names: tuple[str, ...] = NODES,
) -> RunFolder:
    """Store a run; its third node fails: gpu5 computes wrong results, the pair gpu2-gpu6 is slow."""
    folder = RunFolder.create("validate", {"nodes": list(names)}, runs=runs)
    folder.note(inventory="no-inventory.yml", asked=list(samples.CHECKS), controller="boss.example")
    for name in names:
        folder.append(
            "facts", asdict(NodeFacts(name, facts or {"firmware.system": "ACME G8"}, {}, variables or {}))
        )
        for check in samples.CHECKS if name == names[2] else ():
            outputs = (Output("tool", ("tool", "-v"), 0, f"{XML}\n{said}\r\nlast line\x1b[2J", "", 3.0),)
            store.keep_raw(folder, Raw(name, check, outputs, 3.0))
        fingerprint = Fingerprint({"driver.loaded_version": "580.126.09"})
        note_look(folder, name, fingerprint)
        note_result(folder, name, "gpu_burn", fingerprint, "2026-05-04T10:02:00.000Z")
    nodes = [samples.node(name, samples.checks(number), number) for number, name in enumerate(names, 1)]
    nodes[2] = samples.node(names[2], samples.checks(3, slow=(2, 6), burn=5), 3)
    fleet = change(replace(samples.fleet(*nodes), run_id=folder.path.name))
    rows = [
        {"node": node.node, **asdict(finding)}
        for node in fleet.nodes
        for check in node.checks
        for finding in check.findings
    ]
    folder.write("findings.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    report.write_all(fleet, folder, ["json"])
    return folder


def pack(folder: RunFolder, node: str = "gpu-03", **more: Any) -> bundle.Bundle:
    fleet = report_of(folder)
    return bundle.make(folder, fleet, bundle.find_node(fleet, node), **more)


def report_of(folder: RunFolder) -> FleetHealth:
    from provision.checks.health import from_json

    return from_json(json.loads((folder.path / "report.json").read_text()))


def everything(made: bundle.Bundle) -> str:
    """Return all content that a vendor receives, file names included, unpacked."""
    parts = [made.name, *made.files]
    for name, content in made.files.items():
        parts.append(
            (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8", "replace")
        )
    return "\n".join(parts)


def readme(made: bundle.Bundle) -> str:
    return made.files["README.txt"].decode()


def test_the_summary_names_the_machine_its_gpus_the_culprits_and_what_to_do(runs: Path) -> None:
    made = pack(keep(runs))
    text = readme(made)
    gpu = samples.gpus(3)[5]
    for word in (
        "verdict   fail",
        "ACME G8",
        "580.126.09",
        "debian 13",
        gpu.serial,
        gpu.uuid,
        gpu.pci_address,
    ):
        assert word in text, word
    assert "692-2G520-0200" in text
    assert "FAIL gpu5: gpu_burn: gpu5 computed 12843 wrong results in 60 s" in text
    assert "  limit     = 0" in text
    assert "bit by bit" in text
    assert "  action    replace part" in text
    assert "  | GPU 5: FAULTY" in text
    slow = text[text.index("FAIL gpu2-gpu6") :]
    assert "gpu2->gpu6: 61.3 GB/s; median of the 55 others on the node 37" in slow
    assert "on 3 other nodes of the SKU 37" in slow


def test_the_archive_has_one_folder_its_own_checksums_and_belongs_to_its_owner(
    runs: Path, tmp_path: Path
) -> None:
    folder = keep(runs)
    path = bundle.write(pack(folder), tmp_path / "out")
    assert path.name == f"gpuprov-gpu-03-{folder.path.name}.tar.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in archive.getmembers()} == {
            (0, 0, 0, "", 0o600)
        }
    top = path.name.removesuffix(".tar.gz")
    assert {name.partition("/")[0] for name in members} == {top}
    inside = {name.partition("/")[2]: content for name, content in members.items()}
    raw = {f"raw/{check}.{kind}" for check in samples.CHECKS for kind in ("json", "txt")}
    texts = {
        "README.txt",
        "timeline.txt",
        "findings.json",
        "measurements.json",
        "measurements.txt",
        "facts.json",
    }
    assert set(inside) == raw | texts | {"MANIFEST.sha256"}
    lines = inside.pop("MANIFEST.sha256").decode().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in inside.items()}
    assert "\x1b" not in inside["raw/gpu_burn.txt"].decode()
    assert json.loads(inside["raw/gpu_burn.json"])["outputs"][0]["stdout"].endswith("\x1b[2J")
    assert [p.name for p in (tmp_path / "out").iterdir()] == [path.name]
    before = path.read_bytes()
    assert bundle.write(pack(folder), tmp_path / "out").read_bytes() == before


def test_the_timeline_has_this_run_earlier_ones_and_what_changed_between(runs: Path) -> None:
    first = keep(runs)
    made = RunFolder.create("up", {}, runs=runs)
    made.append("reboots", {"time": "2026-05-05T01:00:00.000Z", "node": "gpu-03", "boot": "x"})
    made.append("reboots", {"time": "2026-05-05T01:00:00.000Z", "node": "gpu-02", "boot": "x"})
    time.sleep(0.002)  # runs are ordered by name, and names have a resolution of milliseconds
    second = keep(runs)
    note_look(second, "gpu-03", Fingerprint({"driver.loaded_version": "595.71.05"}))
    second.append(
        "earlier_runs", {"node": "gpu-03", "run": "20260101T000000.000Z-validate", "bad": ["GPU-x"]}
    )
    lines = pack(second).files["timeline.txt"].decode().splitlines()
    assert [line for line in lines if "GPU-x" in line and "2026-01-01 00:00:00 UTC" in line] == [lines[0]]
    text = "\n".join(lines)
    assert text.count("up: rebooted") == 1
    assert f"{first.path.name}  validate: fail" in text
    assert "fail gpu_burn gpu5: gpu5 computed 12843 wrong results in 60 s (action: replace part)" in text
    assert "driver.loaded_version 580.126.09 → 595.71.05" in text
    assert "gpu_burn: fail after 64 s" in text
    assert first.path.name in text
    assert second.path.name not in pack(first).files["timeline.txt"].decode()


def test_damaged_history_costs_history_and_no_bundle(runs: Path) -> None:
    first = keep(runs)
    for name in ("findings.jsonl", "fingerprints.jsonl", "run.json"):
        (first.path / name).write_text('{"node": "gpu-03", "verdict": 3}\n"gpu-03"\n{"gpu-03"\n\x00')
    assert "FAIL gpu5" in readme(pack(keep(runs)))


# --- nothing about others ---


def test_no_other_machine_is_named_in_any_way(runs: Path) -> None:
    said = (
        "connected to gpu-02, GPU-01.pod1.example:22 via gpu-01-ib0 and rack7-spare; "
        "log of boss.example [gpu-02]\n"
        "differs: gpu-[01-02]; gpu-03 is myself, gpu-0211 nobody"
    )

    def tell(fleet: FleetHealth) -> FleetHealth:
        node = fleet.nodes[2]
        burn = replace(node.checks[1].findings[-1], message="slower than gpu-02", evidence=("see gpu-01",))
        checks = (node.checks[0], replace(node.checks[1], findings=(burn,)), *node.checks[2:])
        told = replace(node, checks=checks)
        nodes = (*fleet.nodes[:2], told, *fleet.nodes[3:])
        return replace(fleet, nodes=nodes, not_compared=("ambiguous: gpu-[01-02] have 1",))

    old = keep(runs, names=("retired-17", "gpu-02", "gpu-03"))
    node_history.record(old, {}, report_of(old))
    folder = keep(runs, said + " retired-17", change=tell)
    made = pack(folder, others=["unmeasured-99"])
    text = everything(made)
    lowered = text.lower()
    for name in (
        "gpu-01",
        "gpu-02",
        "rack7-spare",
        "boss",
        "pod2",
        "gpu-[01",
        "gpu_02",
        "retired-17",
        "no-inventory",
    ):
        assert name not in lowered.replace("gpu-0211", ""), name
    assert "gpu-03 is myself" in text
    assert "gpu-0211 nobody" in text
    assert "slower than [another machine]" in text
    assert made.removed["name of another machine"] > 8
    for other in (1, 2, 4):
        for gpu in samples.gpus(other):
            assert gpu.uuid not in text


# --- no secrets ---

KEY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE"
PLANTED = {
    "environment dump": ("PATH=/bin\nDB_PASSWORD=Horse9 battery staple\nHOME=/root", "battery staple"),
    "exported": ("declare -x REGISTRY_TOKEN=tok-918273", "tok-918273"),
    "yaml": ("ansible_become_password: Sesame-77", "Sesame-77"),
    "json text": ('{"api_key": "k-\\"quoted\\"-1", "errors": 5}', "quoted"),
    "json in json": ('"{\\"secret\\": \\"inner-55x\\"}"', "inner-55x"),
    "xml": ("<password>xmlpass77</password>", "xmlpass77"),
    "url": ("fetching https://bot:p@ss'w0rd@mirror.example/x.deb", "ss'w0rd"),
    "url token": ("https://ghp-user:x1y2z3w4@git.example/r.git", "x1y2z3w4"),
    "signed url": ("GET https://s3.example/k?X-Amz-Signature=abcd1234ef&b=1", "abcd1234ef"),
    "header": ("> Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "bearer": ("sent Bearer abc123def456.ghi", "abc123def456"),
    "cookie": ("Set-Cookie: session=s1d2f3g4; Path=/", "s1d2f3g4"),
    "private key": (f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY}\n-----END OPENSSH PRIVATE KEY-----", KEY),
    "cut private key": (f"-----BEGIN RSA PRIVATE KEY-----\n{KEY}\nAAAAB3Nz", "AAAAB3Nz"),
    "pgp": (f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{KEY}\n-----END PGP PRIVATE KEY BLOCK-----", KEY),
    "option": ("mysql --password swordfish3 --user root", "swordfish3"),
    "sshpass": ("sshpass -p Open-5esame ssh gpu-03", "Open-5esame"),
    "curl user": ("curl -u admin:Tr0ub4dor https://x", "Tr0ub4dor"),
    "netrc": ("machine h login me password netrc-pw7", "netrc-pw7"),
    "shadow": ("root:$6$saltsalt$abcdefghijk/LMNOP:19000:0", "abcdefghijk/LMNOP"),
    "aws": ("id AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "github": ("used ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abcdefghijklmnop"),
    "ngc": ("login nvapi-AbCdEfGhIjKlMnOpQrStUvWx", "nvapi-AbCdEf"),
    "jwt": ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIiOiIxIn0"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_secret_in_raw_output_leaves_no_trace_and_is_counted(runs: Path, kind: str) -> None:
    text, secret = PLANTED[kind]
    made = pack(keep(runs, f"before\n{text}\nafter: 378.2 GB/s"))
    assert secret not in everything(made)
    assert sum(made.removed.values()) >= len(samples.CHECKS)
    assert "before" in made.files["raw/gpu_burn.txt"].decode()
    if kind != "cut private key":
        assert "after: 378.2 GB/s" in made.files["raw/gpu_burn.txt"].decode()
    assert "Removed from every file" in readme(made)
    told = readme(made).partition("Removed from every file")[2]
    for name, count in made.removed.items():
        assert f"{name:<24} {count} place" in told


@pytest.mark.parametrize("kind", PLANTED)
def test_a_secret_in_facts_findings_measurements_and_history_leaves_no_trace(runs: Path, kind: str) -> None:
    text, secret = PLANTED[kind]

    def tell(fleet: FleetHealth) -> FleetHealth:
        bad = Finding(
            "gpu_inventory", Verdict.FAIL, "gpu1", f"said: {text}", "m", text, limit=text, source=text,
            action="investigate", evidence=(text, *text.splitlines()),
        )  # fmt: skip
        node = fleet.nodes[2]
        row = Measurement("model", text, "", "gpu1")
        first = replace(node.checks[0], findings=(bad,), measurements=(*node.checks[0].measurements, row))
        told = replace(node, checks=(first, *node.checks[1:]), facts={**node.facts, "os": text})
        return replace(fleet, nodes=(*fleet.nodes[:2], told, *fleet.nodes[3:]))

    keep(runs, change=tell)
    facts = {"file./etc/x.content": text, "firmware.system": text}
    assert secret not in everything(pack(keep(runs, facts=facts, change=tell)))


def test_a_value_known_as_secret_is_removed_wherever_it_stands(runs: Path) -> None:
    """A value known as secret from one place (a fact, a variable, the inventory) is removed everywhere."""
    output = "a Wolpertinger1 b https://x/Wolpertinger1 c hunter2 d pa/ss+9 e pa%2Fss%2B9 f fromtheinventory"
    made = pack(
        keep(
            runs, output,
            facts={"kernel.command_line": "quiet bmc_token=Wolpertinger1", "argv": ["--password", "pa/ss+9"]},
            variables={"validation_tools_repository_url": "https://bot:hunter2@mirror.example/"},
        ),
        secrets=["fromtheinventory"],
    )  # fmt: skip
    text = everything(made)
    for secret in ("Wolpertinger1", "hunter2", "pa/ss+9", "pa%2Fss", "fromtheinventory"):
        assert secret not in text
    assert "validation_tools" not in text  # inventory variables are private
    assert made.removed["known secret"] > 5


def test_a_node_name_with_a_secret_in_it_is_masked_in_names_too(runs: Path) -> None:
    name = "https://bot:Sesame77@gpu-03"
    folder = keep(runs, "key_password=Sesame77\nok", names=("gpu-01", "gpu-02", name))
    made = pack(folder, name)
    assert "Sesame77" not in everything(made)
    assert "Sesame77" not in made.name
    again = pack(keep(runs, "DB_PASSWORD=Sesame88", names=("a1", "b2", "gpu-Sesame88")), "gpu-Sesame88")
    assert "Sesame88" not in everything(again)


def test_what_is_no_secret_stays(runs: Path) -> None:
    said = (
        "tokens per second 1234\n[14:02:11] Dispatch Password Requests to Console\nbasic information\n"
        "GPU-00000003-0000-4000-8000-000000000005 0000:18:00.0 371.02 https://docs.nvidia.com/x secret"
    )
    made = pack(keep(runs, said))
    assert said in made.files["raw/gpu_burn.txt"].decode()
    assert not set(made.removed) - {"name of another machine"}
    gone = pack(keep(runs, said, names=("a", "b", "gpu-03")))
    assert gone.removed == {} or set(gone.removed) == {"name of another machine"}


# --- nvidia-bug-report ---


def test_a_bug_report_beside_the_raw_output_is_taken_along_without_secrets(runs: Path) -> None:
    folder = keep(runs)
    assert "sudo nvidia-bug-report.sh" in readme(pack(folder))
    place = folder.path / "raw" / "gpu-03"
    text = b"NVRM: Xid 79 on gpu-03 not gpu-02\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwx\n\xff\xfe binary"
    (place / "nvidia-bug-report.log.gz").write_bytes(gzip.compress(text))
    (place / "nvidia-bug-report.log.old.log.gz").write_bytes(b"no gzip")
    (place / "link.json").symlink_to("/etc/passwd")
    made = pack(folder)
    got = gzip.decompress(made.files["raw/nvidia-bug-report.log.gz"])
    assert b"Xid 79 on gpu-03 not [another machine]" in got
    assert b"hf_abc" not in got
    assert got.endswith(b"\xff\xfe binary")
    assert "sudo nvidia-bug-report.sh" not in readme(made)
    assert "nvidia-bug-report.log.old.log.gz is not in this archive: it cannot be read" in readme(made)
    assert "raw/link.json" not in made.files


def test_of_amds_gpus_their_makers_log_is_asked_for_and_taken(runs: Path) -> None:
    folder = keep(runs)
    facts = folder.path / "facts.jsonl"
    rows = [json.loads(line) for line in facts.read_text().splitlines()]
    for row in rows:
        row["gpuprov_node"] = {**row["gpuprov_node"], "gpu": {"vendor": "amd"}}
    facts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = readme(pack(folder))
    assert "sudo sh ./rocm_techsupport.sh > rocm_techsupport.log 2>&1" in asked
    assert "nvidia" not in asked.partition("There is no ")[2].partition("pack again")[0]
    # AMD's own documents name the file by host and time.
    name = "gpu-03.26-11-27-10-00-00.rocm_techsupport.log"
    (folder.path / "raw" / "gpu-03" / name).write_text("amdgpu 0000:05:00.0: on gpu-03 not gpu-02\n")
    made = pack(folder)
    assert gzip.decompress(made.files[f"raw/{name}.gz"]) == (
        b"amdgpu 0000:05:00.0: on gpu-03 not [another machine]\n"
    )
    assert "There is no rocm_techsupport" not in readme(made)


@pytest.mark.parametrize("strange", [None, [], {"gpu": 7}, {"gpu": {"vendor": ["amd"]}}])
def test_a_strange_description_of_a_node_asks_for_the_usual_log(runs: Path, strange: Any) -> None:
    folder = keep(runs)
    facts = folder.path / "facts.jsonl"
    rows = [{**json.loads(line), "gpuprov_node": strange} for line in facts.read_text().splitlines()]
    facts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "sudo nvidia-bug-report.sh" in readme(pack(folder))


# --- odd nodes ---


def test_a_node_that_never_answered_has_a_bundle_too(runs: Path) -> None:
    def lose(fleet: FleetHealth) -> FleetHealth:
        return replace(fleet, nodes=(*fleet.nodes[:2], samples.silent("gpu-03"), *fleet.nodes[3:]))

    folder = keep(runs, change=lose)
    (folder.path / "raw" / "gpu-03" / "gpu_burn.json").write_text("{cut")
    text = readme(pack(folder))
    assert "verdict   error" in text
    assert "timed out after 10 s" in text
    assert "gpu_burn.json could not be read" in text


def test_hostile_nodes_make_clean_members(runs: Path, tmp_path: Path) -> None:
    fleet = samples.hostile()
    folder = RunFolder.create("validate", {}, runs=runs)
    for node in fleet.nodes[:6]:
        path = bundle.write(bundle.make(folder, fleet, node), tmp_path)
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
            for name in archive.getnames():
                assert name.isascii()
                assert ".." not in name
                assert name.startswith("gpuprov-")


def test_an_unknown_node_is_told_with_the_nearest(runs: Path) -> None:
    fleet = report_of(keep(runs))
    with pytest.raises(RunFolderError, match="has no node gpu-3") as caught:
        bundle.find_node(fleet, "gpu-3")
    assert "did you mean gpu-03" in caught.value.fix


def test_a_node_of_an_earlier_run_is_told_with_that_run(runs: Path) -> None:
    """The newest run had other nodes, so its nearest name would be another machine."""
    fleet = report_of(keep(runs))
    earlier = keep(runs, names=("gpu-11", "gpu-12", "gpu-13", "gpu-14"))
    node_history.record(earlier, {}, report_of(earlier))
    with pytest.raises(RunFolderError, match="has no node gpu-13") as caught:
        bundle.find_node(fleet, "gpu-13")
    assert f"gpuprov report bundle gpu-13 {earlier.path.name}" in caught.value.fix


# --- the command ---


def test_the_command_says_where_the_archive_is_and_what_was_removed(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep(runs, "password: Sesame77")
    kept = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    assert cli.main(["report", "bundle", "gpu-03", "--output", str(out)]) == ExitCode.OK
    said = capsys.readouterr().out
    (path,) = out.iterdir()
    assert str(path) in said
    assert "named secret (" in said
    assert (
        "/srv/fleet/inventory.yml does not exist on this machine: secrets were searched by name and " in said
    )
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == kept
    assert cli.main(["report", "bundle", "gpu-03", folder.path.name, "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert Path(told["bundle"]).parent == folder.path
    assert told["removed"]["named secret"] >= 4
    assert "README.txt" in told["files"]


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["gpu-33"], ExitCode.ERROR, "did you mean gpu-03"),
        (["zzz"], ExitCode.ERROR, "it has gpu-01"),
        ([""], ExitCode.ERROR, "has no node"),
        (["gpu-03", "--output", "/proc/nowhere"], ExitCode.ERROR, "--output"),
    ],
)
def test_a_mistake_is_one_clear_line(
    runs: Path, more: list[str], code: ExitCode, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(runs)
    assert cli.main(["report", "bundle", *more]) == code
    complaint = capsys.readouterr().err
    assert words in complaint
    assert complaint.count("\n") == 2


def test_the_inventory_s_secrets_are_known_where_it_is_still_there(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory = tmp_path / "inventory.yml"
    hosts = {
        "gpu-03": {"ansible_become_password": "plainword", "ansible_host": "10.9.8.3"},
        "never-measured": {"ansible_host": "10.9.8.7"},
    }
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))  # JSON is YAML
    folder = keep(
        runs, "it is plainword, says never-measured; 10.9.8.3 sends to 10.9.8.7:18515",
        change=lambda fleet: replace(fleet, inventory=str(inventory)),
    )  # fmt: skip
    assert cli.main(["report", "bundle", "gpu-03", "--json"]) == ExitCode.OK
    with tarfile.open(json.loads(capsys.readouterr().out)["bundle"]) as archive:
        text = b"".join(archive.extractfile(m).read() for m in archive.getmembers())  # type: ignore[union-attr]
    assert folder.path.name.encode() in text
    assert b"plainword" not in text
    assert b"never-measured" not in text
    assert b"10.9.8.3 sends to [another machine]:18515" in text
