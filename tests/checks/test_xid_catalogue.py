"""Completeness of the Xid catalogue, and a reason for each deviation from NVIDIA's."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
import yaml

from provision.checks.judge import ACTIONS
from provision.paths import DATA, PACKAGE

_SPEC = importlib.util.spec_from_file_location("catalogues", PACKAGE.parent / "scripts/catalogues.py")
assert _SPEC is not None
assert _SPEC.loader is not None
catalogues = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(catalogues)

XIDS: dict[int, dict[str, Any]] = yaml.safe_load((DATA / "xid.yml").read_text())
KERNEL: dict[str, Any] = yaml.safe_load((DATA / "kernel_log.yml").read_text())
NVLINK: dict[str, Any] = yaml.safe_load((DATA / "nvlink.yml").read_text())
SXIDS: dict[int, dict[str, Any]] = yaml.safe_load((DATA / "sxid.yml").read_text())
LEVELS = {"fail", "warn", "program", "info", "by severity", "by action"}


def test_each_row_of_the_catalogue_is_recorded() -> None:
    assert [code for code, row in XIDS.items() if "nvidia" in row] == list(range(1, 173))
    assert len(NVLINK["rows"]) == 94
    assert {row["xid"] for row in NVLINK["rows"]} == set(range(144, 151))
    assert len(SXIDS) == 93


@pytest.mark.parametrize("code", [code for code, row in XIDS.items() if "nvidia" in row])
def test_a_reading_that_is_not_nvidias_has_a_reason(code: int) -> None:
    row = XIDS[code]
    bucket = KERNEL["buckets"].get(row["nvidia"][0])
    assert row["level"] in LEVELS
    assert ([row["level"], row["action"]] == bucket) != ("why" in row), row


def test_all_actions_are_ones_of_ours() -> None:
    groups = (XIDS, SXIDS, KERNEL["lines"], KERNEL["recovery_actions"], dict(enumerate(NVLINK["xid_74"])))
    rows = [row for group in groups for row in group.values()]
    assert {row["action"] for row in rows} <= set(ACTIONS)
    assert {action for _, action in KERNEL["buckets"].values()} <= set(ACTIONS)
    assert sorted(KERNEL["recovery_actions"]) == list(range(8))


# --- the script that updates the records


def go_of(codes: dict[int, list[str]]) -> str:
    """Return the recorded catalogue in the form of gpud's copy."""
    lines = [
        f'{{Code: {code}, Mnemonic: "A\\nB", Description: "C", ImmediateResolution: "{now}", '
        f'InvestigatoryResolution: "{then}"}},'
        for code, (now, then) in codes.items()
    ]
    for row in NVLINK["rows"]:
        v1 = f"------{row['detail']:06b}----------{row['v1']:010b}"
        v2 = f"------{row['detail']:06b}-------------{row['v2']:07b}"
        lines.append(
            f'{{Xid: {row["xid"]}, Unit: "{"/".join(row["unit"])}", IntrinfoPatternV1: "{v1}", '
            f'IntrinfoPatternV2: "{v2}", ErrorStatus: 0x{row["status"] or 0:08x}, Resolution: '
            f'"{row["nvidia"][0]}", Investigatory: "{row["nvidia"][1]}", Severity: "{row["severity"]}"}},'
        )
    return "\n".join(lines)


def workbook(path: Path, *sheets: list[list[str]]) -> Path:
    """Write a spreadsheet of these rows with all texts shared."""
    texts: list[str] = []
    with zipfile.ZipFile(path, "w") as book:
        for number, rows in enumerate(sheets, 1):
            xml = ""
            for at, row in enumerate(rows, 1):
                cells = ""
                for column, text in enumerate(row):
                    texts.append(text)
                    cells += (
                        f'<c r="{chr(65 + column)}{at}" t="s"><v>{len(texts) - 1}</v></c>' if text else ""
                    )
                xml += f'<row r="{at}">{cells}</row>'
            book.writestr(f"xl/worksheets/sheet{number}.xml", f"<worksheet {SPACE}>{xml}</worksheet>")
        shared = "".join(f"<si><t>{escape(text)}</t></si>" for text in texts)
        book.writestr("xl/sharedStrings.xml", f"<sst {SPACE}>{shared}</sst>")
    return path


SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the recorded catalogues for the script to work on."""
    for name in ("xid", "nvlink", "sxid", "kernel_log"):
        (tmp_path / f"{name}.yml").write_text((DATA / f"{name}.yml").read_text())
    monkeypatch.setattr(catalogues, "DATA", tmp_path)
    return tmp_path


def test_the_recorded_catalogue_is_as_recorded(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "catalog.go"
    path.write_text(go_of({code: row["nvidia"] for code, row in XIDS.items() if "nvidia" in row}))
    assert catalogues.main(["--xid", str(path)]) == 0
    assert capsys.readouterr().out == "as recorded\n"


def test_a_newer_catalogue_is_recorded_and_our_readings_stay(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {code: [*row["nvidia"]] for code, row in XIDS.items() if "nvidia" in row}
    codes |= {79: ["RESET_GPU", "CONTACT_SUPPORT"], 200: ["RESET_GPU", ""]}
    path = data / "catalog.go"
    path.write_text(go_of(codes))
    assert catalogues.main(["--xid", str(path)]) == 1
    assert "Xid 79: ['RESTART_BM', 'CONTACT_SUPPORT'] -> ['RESET_GPU'" in capsys.readouterr().out
    assert catalogues.main(["--xid", str(path), "--write"]) == 0
    rows = yaml.safe_load((data / "xid.yml").read_text())
    assert rows[79] == {**XIDS[79], "nvidia": ["RESET_GPU", "CONTACT_SUPPORT"]}
    assert (rows[200]["level"], rows[200]["action"]) == ("fail", "reset GPU")
    assert {code: row for code, row in rows.items() if code not in (79, 200)} == {
        code: row for code, row in XIDS.items() if code != 79
    }
    assert catalogues.main(["--xid", str(path)]) == 0


def test_nvidias_spreadsheet_is_read(tmp_path: Path) -> None:
    xids = [
        ["Type (XID)", "Code", "Mnemonic", "Resolution Bucket\n(Immediate Action)",
         "Resolution Bucket\n(Investigatory Action)"],
        ["XID", "45", "A", "WORKFLOW_XID_45", "Solo: RESTART_FM\nNot Solo: IGNORE"],
    ]  # fmt: skip
    decode = [
        ["Xid", "Subcode", "V1 decode", "V2 decode", "Error Status (hex)",
         "Resolution Bucket (Immediate Action)", "Resolution Bucket (Investigatory Action)", "Severity"],
        ["149", "NETIR_LINK_EVT/NETIR_LINK_DOWN", "------100001----------0111000110",
         "------100001-------------0010001", "", "RESET_GPU",
         "INVESTIGATE_PEER_DEVICE", "Link Fatal"],
    ]  # fmt: skip
    codes, rows = catalogues.read_sheet(workbook(tmp_path / "Xid-Catalog.xlsx", xids, decode))
    assert codes == {45: ["WORKFLOW_XID_45", "Solo: RESTART_FM; Not Solo: IGNORE"]}
    assert rows == [next(row for row in NVLINK["rows"] if (row["xid"], row["detail"]) == (149, 33))]


def test_a_file_that_is_no_catalogue_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "other.go").write_text("package xid\n")
    with pytest.raises(SystemExit):
        catalogues.main(["--xid", str(data / "other.go")])
    assert "no catalogue was found" in capsys.readouterr().err
