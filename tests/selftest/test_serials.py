"""Stand-ins for identifiers of a machine, in every form in which tools print them and for nothing else."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from provision.validate.selftest.serials import Serials

SERIAL, UUID = "1562821083900", "3f1e2d4c-5b6a-4978-8069-1a2b3c4d5e6f"
GUID = "0x0c42a10300abcdef"


def hidden(text: str, host: str = "") -> str:
    serials = Serials(host)
    serials.learn(text)
    return serials.hide(text)


@pytest.mark.parametrize(
    ("before", "serial", "after"),
    [
        ("<serial>", SERIAL, "</serial>"),
        ("<chassis_serial_number>", "1820425190327", "</chassis_serial_number>"),
        ("    Serial Number                         : ", SERIAL, "\n"),
        ("  Chassis Serial Number : ", "1820425190327", "\n"),
        ('"serial_num": "', SERIAL, '",'),
        ('"serial_num": ', SERIAL, ","),
        ('"SerialNumber" : "', "S64GNE0R100001", '"'),
        ('"info": "{\\"gpu_serial\\": \\"', SERIAL, '\\"}"'),
        ("[SN] Serial number: ", "MT2131X12345", "\t\t"),
        ("Capabilities: [100 v1] Device Serial Number ", "b8-59-9f-ff-ff-03-12-34", "\n"),
        ("NVRM: GPU Board Serial Number: ", SERIAL, ""),
        ("usb 1-1: SerialNumber: ", "4C530001230405", ""),
        ("board_serial: ", "VR0A1234", ""),
        ('"serial": "', "1234", '"'),
    ],
)
def test_a_serial_number_behind_its_name(before: str, serial: str, after: str) -> None:
    shown = hidden(before + serial + after)
    assert serial not in shown
    assert shown.startswith(before)
    assert shown.endswith(after)
    assert len(shown) == len(before + serial + after)
    kept = shown[len(before) : len(shown) - len(after)]
    assert [one.isalnum() for one in kept] == [one.isalnum() for one in serial], kept


@pytest.mark.parametrize(
    "value",
    [
        UUID,
        f"GPU-{UUID}",
        f"MIG-GPU-{UUID}/7/0",
        UUID.upper(),
        "52:54:00:ab:cd:ef",
        "0c:42:a1:03:00:ab:cd:ef",
        "00:00:10:87:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:ab:cd:ef",
        "0c42:a103:00ab:cdef",
        "fe80:0000:0000:0000:0c42:a103:00ab:cdef",
        "fe80::c42:a103:ab:cdef",
        "2a02:0b48:0c1d:0001:0c42:a103:00ab:cdef",
        "0000:0000:0000:0000:0000:ffff:0a11:160c",
        "254:128:00:00:00:00:00:00:12:66:161:03:00:171:205:239",
        "00:00:00:00:00:00:00:00:00:00:255:255:10:17:22:12",
    ],
)
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("mac ", ": link up"), ("GUID: ", "\n"), ("x\\n", "\\n"), ("(", ")")]
)
def test_an_identifier_by_its_shape(value: str, before: str, after: str) -> None:
    shown = hidden(before + value + after)
    kept = shown.removeprefix(before).removesuffix(after)
    assert shown == before + kept + after
    assert re.sub(r"\w+", "", kept) == re.sub(r"\w+", "", value)
    assert kept != value
    assert not re.search("a103|a1:03|160c|22:12|54:00|5e6f|171", kept.lower()), "what tells this one apart"


@pytest.mark.parametrize(
    "text",
    [
        "Driver Version : 580.126.09",
        "00000000:1A:00.0, 0000:1a:00.0, 10000:e1:00.0",
        "<serial>N/A</serial><serial>[N/A]</serial><serial>GPU is lost</serial>",
        "Serial Number : N/A\n    GPU UUID : N/A",
        "Serial:\n  Model4242: X\n model4242",
        "GPU-00000000-0000-0000-0000-000000000000",
        "0000:0000:0000:0000 fe80:0000:0000:0000:0000:0000:0000:0000 00:00:00:00:00:00 ff:ff:ff:ff:ff:ff",
        "clocks_event_reasons.active 0x0000000000000004, 0x0000000000000000",
        "BIOS-e820: [mem 0x0000000000100000-0x000004007fffffff] usable",
        "pgd 0xffff888101234567 NVRM: GSP_RM_ALLOC 0x0000000000002081 0x00062ed1a6bd61fa",
        "System image GUID: 0x0000000000000000",
        "Serial: 8250/16550 driver, 32 ports, IRQ sharing enabled; serial8250: 8250 MHz",
        "usb usb1: SerialNumber: 0000:00:14.0",
        "usb usb1: SerialNumber: 10000:e1:00.0",
        "usb 1-1: New USB device strings: Mfr=1, Product=2, SerialNumber=3",
        "2026-11-24 08:15:06.123456 took 12:34:56",
        '"serial_port": "ttyS0-115200", "serial_speed": 115200',
        "699-21010-0200-000 0x1a00 96.00.74.00.01",
        "Jitter 00:01:02:03:04:05:06",
    ],
)
def test_what_identifies_nothing_stays(text: str) -> None:
    assert hidden(text) == text


@pytest.mark.parametrize(
    "before",
    [
        "\tNode GUID: ",
        "<gpu_fabric_guid>",
        "    GPU Fabric GUID          : ",
        "<pdi>",
        "    GPU PDI                  : ",
        '{"port_guid": "',
        '\\"guid\\": \\"',
    ],
)
def test_a_guid_in_hexadecimal_behind_its_name(before: str) -> None:
    shown = hidden(f"{before}{GUID}, seen {GUID}")
    stand_in = shown.removeprefix(before).partition(",")[0]
    assert shown == f"{before}{stand_in}, seen {stand_in}"
    assert re.fullmatch("0x0{14}[0-9]{2}", stand_in)


def test_an_address_in_the_name_of_an_interface() -> None:
    shown = hidden("mlx5_core 0000:1a:00.0 enx0c42a1abcdef: renamed from eth0; 0c:42:a1:ab:cd:ef; enp1s0")
    assert shown == "mlx5_core 0000:1a:00.0 enx020000000001: renamed from eth0; 02:00:00:00:00:01; enp1s0"


def test_the_machine_id_of_a_command_line() -> None:
    number = "3f1e2d4c5b6a497880691a2b3c4d5e6f"
    shown = hidden(f"initrd=\\{number}\\6.12\\initrd systemd.machine_id={number} x")
    stand_in = "1".rjust(32, "0")
    assert shown == f"initrd=\\{stand_in}\\6.12\\initrd systemd.machine_id={stand_in} x"
    for kept in (f"{number}{number}", "0" * 32):
        assert hidden(kept) == kept


def test_one_thing_has_one_stand_in_in_every_form() -> None:
    serials = Serials()
    serials.learn(f"<serial>{SERIAL}</serial>")
    shown = serials.hide(SERIAL)
    assert serials.hide(f"0, {SERIAL}\n1, x") == f"0, {shown}\n1, x"
    assert serials.hide(f'"serial_num": "{SERIAL}"') == f'"serial_num": "{shown}"'
    guid = serials.hide(f"Node GUID: {GUID}").removeprefix("Node GUID: 0x")
    apart = ":".join(guid[at : at + 4] for at in range(0, 16, 4))
    assert serials.hide("0c42:a103:00ab:cdef") == apart
    assert serials.hide("fe80:0000:0000:0000:0c42:a103:00ab:cdef") == f"fe80:0000:0000:0000:{apart}"
    assert serials.hide("0c:42:a1:03:00:ab:cd:ef").replace(":", "") == guid
    assert serials.hide("254:128:00:00:00:00:00:00:12:66:161:03:00:171:205:239").endswith(
        f":{int(guid[-4:]):02d}"
    )
    assert (
        serials.hide(UUID) == serials.hide(UUID.upper()) == serials.hide(f"GPU-{UUID}").removeprefix("GPU-")
    )


def test_different_things_have_different_stand_ins() -> None:
    serials = Serials()
    rows = [f"15628210839{number:02d}" for number in range(100)]
    for row in rows:
        serials.learn(f"serial: {row}")
    assert len({serials.hide(row) for row in rows}) == 100
    uuids = [UUID[:-2] + f"{number:02x}" for number in range(100)]
    assert len({serials.hide(one) for one in uuids}) == 100


def test_what_is_hidden_already_stays() -> None:
    serials = Serials("gpu-01.example.org")
    text = f"Serial: {SERIAL}; {UUID} {GUID} 52:54:00:ab:cd:ef fe80::c42:a103:ab:cdef gpu-01"
    once = serials.hide(text)
    serials.learn(once)
    assert serials.hide(once) == once


def test_a_short_serial_number_is_replaced_at_its_name_alone() -> None:
    text = 'serial: 8250\n8250 MiB, 8250 MHz, "serial": "8250"'
    shown = hidden(text)
    assert "8250 MiB, 8250 MHz" in shown
    assert "serial: 8250" not in shown
    assert '"8250"' not in shown


def test_a_serial_number_is_no_part_of_a_longer_word() -> None:
    serials = Serials()
    serials.learn("serial: 1234567890")
    assert serials.hide("91234567890 A1234567890 12345678901") == "91234567890 A1234567890 12345678901"
    assert "1234567890" not in serials.hide("nvme-SAMSUNG_1234567890\\n1234567890\n1234567890")


def test_the_columns_of_a_table_with_and_without_a_header() -> None:
    for argv, header in (
        (("nvidia-smi", "--query-gpu=index,serial,name", "--format=csv,noheader"), ""),
        (("nvidia-smi", "--format=csv"), "index, serial, name\n"),
    ):
        serials = Serials()
        table = f"{header}0, {SERIAL}, NVIDIA H100\n1, [N/A], NVIDIA H100\n"
        serials.learn_columns(argv, table)
        assert SERIAL not in serials.hide(table)
        assert serials.hide(table).endswith("1, [N/A], NVIDIA H100\n")


def test_facts_and_documents_by_their_keys() -> None:
    serials = Serials("gpu")
    document = {
        "facts": {"nvme.drives": {"nvme0": {"serial": "S64GNE0R100001", "model": "8250", "size": 8250}}},
        "serial": "8250",
        "host": "gpu",
        "check": "gpu",
        "argv": ("nvme", "/dev/disk/by-id/nvme-X_S64GNE0R100001"),
        "none": None,
    }
    serials.learn_values(document)
    shown = serials.hidden(document)
    assert "S64GNE0R100001" not in json.dumps(shown)
    assert shown["facts"]["nvme.drives"]["nvme0"] | {"serial": ""} == {
        "serial": "",
        "model": "8250",
        "size": 8250,
    }
    assert shown["serial"] != "8250"
    assert (shown["host"], shown["check"], shown["none"]) == ("this-host", "gpu", None)


def test_the_machines_name_where_it_stands_for_the_machine() -> None:
    journal = (
        "1763632800.000000 gpu kernel: gpu: loading\n1763632801.5 gpu systemd[1]: Hostname set to <gpu>."
    )
    rank = "#  Rank  0 Group  0 Pid  40100 on        gpu device  0 [0x1a] NVIDIA H100"
    assert hidden(journal, "gpu").splitlines() == [
        "1763632800.000000 this-host kernel: gpu: loading",
        "1763632801.5 this-host systemd[1]: Hostname set to <this-host>.",
    ]
    assert hidden(rank, "gpu") == rank.replace("on        gpu", "on        this-host")
    nccl = "gpu:40100:40112 [0] NCCL INFO gpu\n[2026-11-24 08:00:00] gpu:40100:40112 [7] NCCL WARN x"
    assert hidden(nccl, "gpu") == nccl.replace("gpu:", "this-host:")


def test_a_name_that_no_other_thing_has_is_hidden_everywhere() -> None:
    assert hidden("ping gpu-17.example.org, gpu-17: up; gpu-170, gpu-17-a", "gpu-17.example.org") == (
        "ping this-host, this-host: up; gpu-170, gpu-17-a"
    )
    for name in ("h100", "mlx5_0", "gpu-node"):
        assert hidden(f"{name}: NVIDIA H100", name) == f"{name}: NVIDIA H100"


CAPTURES = sorted(Path(os.environ.get("GPUPROV_CAPTURES") or "/nonexistent").glob("*"))


@pytest.mark.skipif(not CAPTURES, reason="GPUPROV_CAPTURES names no folder of real captures")
def test_real_texts_keep_everything_else() -> None:
    """Each line keeps its words, except identifiers: serial numbers of 10 digits or more, and UUIDs."""
    serials = Serials()
    texts = {one.name: one.read_text(errors="replace") for one in CAPTURES if one.name != "README.md"}
    for text in texts.values():
        serials.learn(text)
        serials.learn_columns((), text)
    for name, text in texts.items():
        shown = serials.hide(text)
        for old, new in zip(text.splitlines(), shown.splitlines(), strict=True):
            changed = [(a, b) for a, b in zip(old.split(), new.split(), strict=True) if a != b]
            for word, stand_in in changed:
                assert len(word) == len(stand_in), (name, old, new)
                assert re.search(r"\d{10}|<pdi>|[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-f]{4}:[0-9a-f]{4}:", word), (
                    name,
                    old,
                    new,
                )
        for serial in re.findall(r"<serial>(\d*[1-9]\d{7,})<|Serial Number +: (\d{8,})", text):
            assert "".join(serial) not in shown, name
        left = set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", shown))
        assert all(one.startswith("00000000-0000-") for one in left), name
