"""The archive of a selftest: its content, and what it leaves out when identifiers are masked."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.validate.selftest.measure import Archive

HERE = Path(__file__).resolve().parents[1] / "fixtures"
XML = (HERE / "gpu_inventory/h100-v13.xml").read_text()
ANSWERS = (HERE / "gpu_answers/healthy.csv").read_text()
QUERY = ("nvidia-smi", "--query-gpu=index,pci.bus_id,serial,temperature.gpu", "--format=csv,noheader")


def output(name: str, stdout: str, argv: tuple[str, ...] = ("tool",)) -> Output:
    return Output(name, argv, 0, stdout, "", 1.0)


def texts(archive: Archive) -> str:
    """Return the names and contents of all files in the packed archive."""
    with tarfile.open(archive.pack()) as tar:
        files = [tar.extractfile(member) for member in tar.getmembers() if member.isfile()]
        return "\n".join([*tar.getnames(), *(file.read().decode() for file in files if file)])


HOST = "gpu-17.example.org"


def keep(archive: Archive, check: str, *outputs: Output) -> None:
    archive.keep("checks", Raw(HOST, check, outputs))


def test_what_a_program_printed_is_in_it_as_it_came(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    keep(archive, "gpu_inventory", output("nvidia_smi", XML), output("x", "\ttext\r\n\x1b[1m"))
    document = json.loads((archive.folder / "checks/gpu_inventory.json").read_text())
    assert document["outputs"][0]["stdout"] == XML
    assert document["outputs"][1]["stdout"] == "\ttext\r\n\x1b[1m"
    archive.pack()
    with tarfile.open(tmp_path / "archive.tar.gz") as tar:
        assert f"{tmp_path.name}/checks/gpu_inventory.json" in tar.getnames()


def test_the_folder_in_which_one_stands_has_its_name_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    archive = Archive(Path(".."))
    keep(archive, "versions", output("x", "y"))
    with tarfile.open(archive.pack()) as tar:
        assert {name.partition("/")[0] for name in tar.getnames()} == {tmp_path.name}


def test_it_is_closed_to_other_users(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    assert archive.folder.stat().st_mode & 0o077 == 0
    assert archive.pack().stat().st_mode & 0o077 == 0


def test_a_serial_number_learnt_late_is_hidden_in_what_was_written_before(tmp_path: Path) -> None:
    archive = Archive(tmp_path, masked_host=HOST)
    serial = "1652322403640"
    keep(archive, "early", output("text", f"\n{serial}\n{serial} at the beginning of a line"))
    archive.write("facts.json", {"facts": {"list": [{"serial_number": serial}]}})
    shown = texts(archive)
    assert serial not in shown
    assert serial not in (archive.folder / "checks/early.json").read_text()


def test_a_serial_number_that_is_in_a_table_alone(tmp_path: Path) -> None:
    archive = Archive(tmp_path, masked_host=HOST)
    keep(archive, "gpu_burn", output("answers", ANSWERS, QUERY))
    assert ANSWERS.split(",")[2].strip() not in texts(archive)


def test_one_gpu_has_one_stand_in_in_all_outputs(tmp_path: Path) -> None:
    archive = Archive(tmp_path, masked_host=HOST)
    serial = ANSWERS.split(",")[2].strip()
    keep(archive, "a", output("answers", ANSWERS, QUERY))
    diag = json.dumps({"entities": [{"serial_num": serial, "info": f"GPU\n{serial} is fine"}]})
    keep(archive, "b", output("dcgm", diag), output("xml", f"<serial>{serial}</serial>"))
    archive.pack()
    read = lambda name: json.loads((archive.folder / f"checks/{name}.json").read_text())["outputs"]  # noqa: E731
    stand_in = read("a")[0]["stdout"].split(",")[2].strip()
    assert stand_in != serial
    assert len(stand_in) == len(serial)
    assert read("a")[0]["stdout"].split(",")[1].strip() == ANSWERS.split(",")[1].strip()
    entity = json.loads(read("b")[0]["stdout"])["entities"][0]
    assert (entity["serial_num"], entity["info"]) == (stand_in, f"GPU\n{stand_in} is fine")
    assert read("b")[1]["stdout"] == f"<serial>{stand_in}</serial>"


def test_what_leaves_when_masked_names_no_machine(tmp_path: Path) -> None:
    folder = tmp_path / "selftest-gpu-17.example.org"
    folder.mkdir()
    archive = Archive(folder, masked_host=HOST)
    journal = "1763632800.000000 gpu-17 kernel: Linux version 6.12"
    keep(archive, "gpu_inventory", output("nvidia_smi", XML), output("journal", journal))
    assert "gpu-17" not in texts(archive)


def test_the_environment_is_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of commands are kept; campaign's reader of nccl-tests documents drops their `env`."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    archive = Archive(tmp_path)
    keep(archive, "x", output("true", ""))
    assert "hunter2" not in texts(archive)


def documents(archive: Archive, name: str) -> Any:
    return json.loads((archive.folder / name).read_text())


def test_what_is_no_text_is_kept_as_it_is(tmp_path: Path) -> None:
    archive = Archive(tmp_path, masked_host=HOST)
    archive.write("facts.json", {"count": 8, "none": None, "yes": True, "path": Path("/a"), "f": 1.5})
    assert documents(archive, "facts.json") == {"count": 8, "none": None, "yes": True, "path": "/a", "f": 1.5}
