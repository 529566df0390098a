#!/usr/bin/env python3
"""Renews the records of NVIDIA's error catalogues in provision/data, or shows changes of newer ones.

scripts/catalogues.py --xid Xid-Catalog.xlsx          what differs from the recorded catalogue
scripts/catalogues.py --xid Xid-Catalog.xlsx --write  record it; levels and actions stay as they are

`--xid`: NVIDIA's spreadsheet, offered at docs.nvidia.com/deploy/xid-errors, or its copy in Go,
components/accelerator/nvidia/xid/catalog_generated.go of leptonai/gpud. `--sxid`: sxid.go of the same
repository, which copies the tables of the Fabric Manager guide (a PDF). New codes get the level and action of
their bucket, so read the difference before you commit it; tests/checks/test_xid_catalogue.py names rows that
differ from NVIDIA's without a reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

DATA = Path(__file__).resolve().parents[1] / "provision/data"
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_GO_CODE = re.compile(
    rf"\{{Code: (\d+), Mnemonic: {_TEXT}, Description: {_TEXT}, ImmediateResolution: {_TEXT}, "
    rf"InvestigatoryResolution: {_TEXT}\}}"
)
_GO_ROW = re.compile(
    rf"\{{Xid: (\d+), Unit: {_TEXT}, IntrinfoPatternV1: {_TEXT}, IntrinfoPatternV2: {_TEXT}, "
    rf"ErrorStatus: (0x[0-9a-f]+), Resolution: {_TEXT}, Investigatory: {_TEXT}, Severity: {_TEXT}"
)
_GO_SWITCH = re.compile(r"^\t(\d{5}): \{[^\n]*\n(.*?)^\t\},\n", re.MULTILINE | re.DOTALL)
_SECTIONS = {"false/false": "non-fatal", "true/false": "notable", "true/true": "always fatal"}


def _clean(text: Any) -> str:
    return re.sub(r"\s*(?:\\n|\n)\s*", "; ", str(text or "")).strip()


def _row(xid: str, unit: str, v1: str, v2: str, status: str, buckets: Sequence[str], severity: str) -> Any:
    """Build a row of the decode sheet; patterns have 32 binary digits or `-`, detail is in bits 20 to 25."""
    number = int(status, 16)
    return {
        "xid": int(xid),
        "unit": re.split(r"/", unit),
        "detail": int(v1[6:12], 2),
        "v1": int(v1[-10:], 2),
        "v2": int(v2[-7:], 2),
        "status": None if number == 0 and "EVENT" not in unit else number,
        "nvidia": [*buckets],
        "severity": severity.strip(),
    }


def read_go(path: Path) -> tuple[dict[int, list[str]], list[Any]]:
    """Read (Xid → its two actions, the rows of the decode sheet) from gpud's copy."""
    text = path.read_text(encoding="utf-8")
    codes = {int(m[1]): [_clean(m[4]), _clean(m[5])] for m in _GO_CODE.finditer(text)}
    return codes, [_row(*m.groups()[:5], m.groups()[5:7], m[8]) for m in _GO_ROW.finditer(text)]


def read_sheet(path: Path) -> tuple[dict[int, list[str]], list[Any]]:
    """Read the same from NVIDIA's spreadsheet, finding the columns by their headings."""
    with zipfile.ZipFile(path) as book:
        sheets = [
            _cells(book, name) for name in sorted(book.namelist()) if name.startswith("xl/worksheets/sheet")
        ]
    codes: dict[int, list[str]] = {}
    rows = []
    for head, *lines in (sheet for sheet in sheets if sheet):
        at = {re.sub(r"\W+", " ", name).strip().lower(): number for number, name in enumerate(head)}
        immediate = next((n for name, n in at.items() if "immediate action" in name), None)
        then = next((n for name, n in at.items() if "investigatory action" in name), None)
        if immediate is None or then is None:
            continue
        for line in (one for one in lines if any(one)):
            cells = [*line, *[""] * (len(head) - len(line))]
            buckets = [_clean(cells[immediate]), _clean(cells[then])]
            if "code" in at and cells[at["code"]]:
                codes[int(float(cells[at["code"]]))] = buckets
            elif "error status hex" in at and cells[0]:
                status = cells[at["error status hex"]].partition("/")[0] or "0x0"
                severity = cells[at["severity"]]
                rows.append(_row(str(int(float(cells[0]))), *cells[1:4], status, buckets, severity))
    return codes, rows


def _cells(book: zipfile.ZipFile, name: str) -> list[list[str]]:
    shared = []
    if "xl/sharedStrings.xml" in book.namelist():
        root = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))  # noqa: S314 - a file that the caller chose
        shared = ["".join(t.text or "" for t in one.iter(f"{_MAIN}t")) for one in root]
    found = []
    for row in ElementTree.fromstring(book.read(name)).iter(f"{_MAIN}row"):  # noqa: S314 - as above
        line: list[str] = []
        for cell in row:
            column = 0
            for letter in re.sub(r"\d", "", cell.get("r", "")):
                column = 26 * column + ord(letter) - 64
            text = "".join(t.text or "" for t in (*cell.iter(f"{_MAIN}v"), *cell.iter(f"{_MAIN}t")))
            line += [""] * (column - 1 - len(line))
            line.append(shared[int(text)] if cell.get("t") == "s" else text)
        found.append(line)
    return found


def read_switches(path: Path) -> dict[int, tuple[str, str]]:
    """Read SXid → (its name, the section of the Fabric Manager guide) from gpud's copy."""
    found = {}
    for match in _GO_SWITCH.finditer(path.read_text(encoding="utf-8")):
        fields = dict(re.findall(r"^\t\t(Name|PotentialFatal|AlwaysFatal): +(.+),$", match[2], re.MULTILINE))
        section = "/".join(str(fields[name]) for name in ("PotentialFatal", "AlwaysFatal"))
        for word, known in (("defaultPotential", "fatal"), ("defaultAlways", "always fatal")):
            section = known if word in section else section
        found[int(match[1])] = str(fields["Name"]).strip('"'), _SECTIONS.get(section, section)
    return found


def recorded(name: str) -> Any:
    return yaml.safe_load((DATA / f"{name}.yml").read_text(encoding="utf-8"))


def differences(was: Mapping[int, Any], now: Mapping[int, Any]) -> Iterator[str]:
    """Yield a line for each code that was added, removed or changed."""
    for code in sorted({*was, *now}):
        if was.get(code) != now.get(code):
            yield f"{code}: {was.get(code, 'not recorded')} -> {now.get(code, 'gone')}"


def flow(value: Any) -> str:
    """Render a value as YAML on one line."""
    return (
        str(yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False))
        .split("\n...")[0]
        .strip()
    )


def write_codes(codes: Mapping[int, list[str]]) -> None:
    """Set `nvidia` in the rows of xid.yml, and add rows for new codes."""
    path, rows = DATA / "xid.yml", recorded("xid")
    buckets = recorded("kernel_log")["buckets"]
    text = path.read_text(encoding="utf-8")
    for code, actions in sorted(codes.items()):
        said = f"nvidia: {json.dumps(actions)}"
        if code in rows:
            text = re.sub(rf"(?m)^({code}: .*?)nvidia: \[[^\]]*\]", lambda m, said=said: m[1] + said, text)
        else:
            level, action = buckets.get(actions[0], ["warn", "investigate"])
            text += f'{code}: {{meaning: "new in the catalogue", {said}, action: {action}, level: {level}}}\n'
    path.write_text(text, encoding="utf-8")


def write_rows(rows: Sequence[Any]) -> None:
    """Replace the rows of the decode sheet in nvlink.yml."""
    path = DATA / "nvlink.yml"
    head = path.read_text(encoding="utf-8").partition("\nrows:\n")[0]
    path.write_text(head + "\nrows:\n" + "".join(f"  - {flow(row)}\n" for row in rows), encoding="utf-8")


def write_switches(switches: Mapping[int, tuple[str, str]]) -> None:
    """Set name and section in the rows of sxid.yml, and add rows for new codes."""
    path, rows = DATA / "sxid.yml", recorded("sxid") or {}
    head = "".join(
        line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#")
    )
    for code, (name, section) in switches.items():
        level = "warn" if section in ("non-fatal", "notable") else "fail"
        row = rows.setdefault(code, {"level": level, "action": "investigate"})
        rows[code] = {
            "meaning": name,
            "nvidia": section,
            **{k: v for k, v in row.items() if k not in ("meaning", "nvidia")},
        }
    lines = [f"{code}: {flow(row)}\n" for code, row in sorted(rows.items())]
    path.write_text(head + "".join(lines), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--xid", type=Path, metavar="FILE", help="Xid-Catalog.xlsx, or catalog_generated.go")
    parser.add_argument("--sxid", type=Path, metavar="FILE", help="sxid.go")
    parser.add_argument("--write", action="store_true", help="record what the files have")
    options = parser.parse_args(arguments)
    changed: list[str] = []
    if options.xid:
        codes, rows = (read_sheet if options.xid.suffix == ".xlsx" else read_go)(options.xid)
        if not codes or not rows:
            parser.error(f"{options.xid}: no catalogue was found in it; is it Xid-Catalog.xlsx?")
        known = {code: row["nvidia"] for code, row in recorded("xid").items() if "nvidia" in row}
        changed += [f"Xid {line}" for line in differences(known, codes)]
        changed += [
            f"decode sheet, row {line}"
            for line in differences(
                dict(enumerate(recorded("nvlink").get("rows") or [])), dict(enumerate(rows))
            )
        ]
        if options.write:
            write_codes(codes)
            write_rows(rows)
    if options.sxid:
        switches = read_switches(options.sxid)
        known = {code: (row["meaning"], row["nvidia"]) for code, row in (recorded("sxid") or {}).items()}
        changed += [f"SXid {line}" for line in differences(known, switches)]
        if options.write:
            write_switches(switches)
    print("\n".join(changed) or "as recorded")
    return 1 if changed and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
