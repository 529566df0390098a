"""Fixture rpms: what fixtures/redhat says, and what an independent reader finds in the files we write.

That the real rpm and dnf accept them is shown on nodes: tests/lab/test_os_matrix.py.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.errors import LabError
from provision.lab import rpm_repository
from provision.lab.debfile import PackedFile
from provision.lab.packages import fixture_files
from provision.lab.places import PACKAGES
from provision.lab.rpm_packages import MAJORS, read_rpms
from provision.lab.rpmfile import Rpm, pack

KERNEL = "6.1.0-13-amd64"
SAMPLE = Rpm(
    "nvidia-driver-cuda",
    "3:580.126.09-1.el9",
    "CUDA integration",
    files={
        "/usr/bin/nvidia-smi": PackedFile(b"#!/bin/sh\n", 0o755),
        "/usr/lib64/libcuda.so.1": PackedFile(link="libcuda.so.580"),
        "/etc/x.conf": PackedFile(b"odd"),
    },
    configs=("/etc/x.conf",),
    relations={"requires": ("dkms", "nvidia-kmod = 3:580.126.09-1.el9"), "conflicts": ("nvidia-x11-drv",)},
    scripts={"post": "depmod -a\n"},
    streams=("580-open",),
)


@cache
def shipped(major: str) -> dict[str, list[Rpm]]:
    return read_rpms(PACKAGES, KERNEL, major)


def table(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The values of one header by tag, and where it ends; written after the format, not after our writer."""
    assert data[at : at + 4] == b"\x8e\xad\xe8\x01"
    count, size = struct.unpack_from(">2i", data, at + 8)
    store = data[at + 16 + 16 * count : at + 16 + 16 * count + size]
    found: dict[int, Any] = {}
    for number in range(count):
        tag, kind, offset, length = struct.unpack_from(">4i", data, at + 16 + 16 * number)
        if kind in (6, 8, 9):
            texts = store[offset:].split(b"\0")[:length]
            found[tag] = [text.decode() for text in texts]
        elif kind == 7:
            found[tag] = store[offset : offset + length]
        else:
            found[tag] = list(struct.unpack_from(f">{length}{'H' if kind == 3 else 'I'}", store, offset))
            assert offset % (2 if kind == 3 else 4) == 0, "values are aligned"
    return found, at + 16 + 16 * count + size


def members(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """name → (mode, content) of a cpio archive."""
    found, at = {}, 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name = archive[at + 110 : at + 109 + fields[11]].decode()
        at += 110 + fields[11]
        at += -at % 4
        if name == "TRAILER!!!":
            return found
        found[name] = (fields[1], archive[at : at + fields[6]])
        at += fields[6]
        at += -at % 4


def test_a_package_holds_what_was_asked_for() -> None:
    data = pack(SAMPLE).content
    assert data[:4] == b"\xed\xab\xee\xdb"
    signature, end = table(data, 96)
    end += -end % 8
    header, payload = table(data, end)
    assert signature[273] == [hashlib.sha256(data[end:payload]).hexdigest()]
    assert signature[1000] == [len(data) - end]
    assert header[5092] == [hashlib.sha256(data[payload:]).hexdigest()]
    assert [header[tag][0] for tag in (1000, 1003, 1001, 1002, 1022)] == [
        *("nvidia-driver-cuda", 3, "580.126.09", "1.el9", "x86_64")
    ]
    requires = list(zip(header[1049], header[1048], header[1050], strict=True))
    assert ("dkms", 0, "") in requires
    assert ("nvidia-kmod", 8, "3:580.126.09-1.el9") in requires
    assert list(zip(header[1047], header[1113], strict=True)) == [
        ("nvidia-driver-cuda", "3:580.126.09-1.el9")
    ]
    paths = [header[1118][folder] + name for folder, name in zip(header[1116], header[1117], strict=True)]
    assert paths == sorted(SAMPLE.files)
    assert dict(zip(paths, header[1037], strict=True))["/etc/x.conf"] == 17, "config, kept when changed"
    assert header[1024] == ["depmod -a\n"]
    assert members(gzip.decompress(data[payload:])) == {
        "./etc/x.conf": (0o100644, b"odd"),
        "./usr/bin/nvidia-smi": (0o100755, b"#!/bin/sh\n"),
        "./usr/lib64/libcuda.so.1": (0o120777, b"libcuda.so.580"),
    }


def test_the_same_package_is_the_same_bytes_and_its_header_is_what_is_signed() -> None:
    signed: list[bytes] = []

    def sign(header: bytes) -> bytes:
        signed.append(header)
        return b"signature"

    packed = pack(SAMPLE, sign)
    assert pack(SAMPLE, sign).content == packed.content
    assert packed.content[packed.header_start : packed.header_end] == signed[0]
    assert table(packed.content, 96)[0][267] == b"signature"
    assert 267 not in table(pack(SAMPLE).content, 96)[0]


def test_indexes_name_every_package_with_its_digest(tmp_path: Path) -> None:
    repomd = rpm_repository.write(tmp_path, [SAMPLE], None, "9", modules=True)
    space = {"r": "http://linux.duke.edu/metadata/repo", "c": "http://linux.duke.edu/metadata/common"}
    indexes = {}
    for data in ET.parse(repomd).getroot().findall("r:data", space):  # noqa: S314 - our own file
        location = data.find("r:location", space)
        checksum = data.findtext("r:checksum", namespaces=space)
        assert location is not None
        content = (tmp_path / location.attrib["href"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == checksum
        indexes[data.attrib["type"]] = gzip.decompress(content).decode()
    assert set(indexes) == {"primary", "filelists", "other", "modules"}
    package = ET.fromstring(indexes["primary"])[0]  # noqa: S314
    file = (tmp_path / SAMPLE.filename).read_bytes()
    assert package.findtext("c:checksum", namespaces=space) == hashlib.sha256(file).hexdigest()
    assert 'name="nvidia-kmod" flags="EQ" epoch="3" ver="580.126.09" rel="1.el9"' in indexes["primary"]
    assert "<file>/usr/lib64/libcuda.so.1</file>" in indexes["filelists"]
    stream, defaults = yaml.safe_load_all(indexes["modules"])
    assert stream["data"]["stream"] == "580-open"
    assert stream["data"]["artifacts"]["rpms"] == ["nvidia-driver-cuda-3:580.126.09-1.el9.x86_64"]
    assert stream["data"]["dependencies"] == [{"requires": {"platform": ["el9"]}}]
    assert defaults["data"]["stream"] == "latest-dkms"


def test_a_release_without_modules_has_none(tmp_path: Path) -> None:
    rpm_repository.write(tmp_path, [SAMPLE], None, "10", modules=False)
    assert not list((tmp_path / "repodata").glob("*modules*"))


@pytest.mark.parametrize("major", MAJORS)
def test_the_shipped_fixtures_are_whole(major: str) -> None:
    found = shipped(major)
    every = [rpm for rpms in found.values() for rpm in rpms]
    provided = {one.name for rpm in every for one in rpm.related("provides")}
    for rpm in every:
        for one in rpm.related("requires"):
            assert one.name in provided or one.name.startswith("/"), f"{rpm.nevra} requires {one.name}"
    cuda = {rpm.nevra for rpm in found["cuda"]}
    assert f"nvidia-driver-cuda-3:580.126.09-1.el{major}.x86_64" in cuda
    assert "libnccl-0:2.29.7-1+cuda12.9.x86_64" in cuda
    assert "cuda-toolkit-12-9-0:12.9.1-1.x86_64" in cuda


def test_a_stream_has_the_packages_of_its_branch_and_flavour() -> None:
    rpms = shipped("9")["cuda"]
    inside = {rpm.nevra for rpm in rpms if "580-open" in rpm.streams}
    assert {nevra.partition("-3:")[0] for nevra in inside if "kmod-nvidia" in nevra} == {
        "kmod-nvidia-open-dkms"
    }
    assert all(":580." in nevra for nevra in inside)


def test_what_the_apt_repository_has_is_said_in_rpms_words() -> None:
    found = {rpm.name: rpm for rpm in shipped("9")["cuda"]}
    devel = found["libnccl-devel"]
    assert devel.related("requires")[0].name == "libnccl"
    assert "/usr/lib64/libnccl.so" in devel.files
    common = found["cuda-toolkit-12-9-config-common"]
    assert common.architecture == "noarch"
    assert common.scripts["preun"].startswith('if [ "$1" = 0 ]; then set -- remove'), (
        "rpm says how many are left, dpkg what it does"
    )


GOOD = '- {name: x, versions: ["1:2.0-1{dist}"], repository: cuda, requires: ["y >= 1"]}\n'


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ('- {name: x, versions: ["2.0"], repository: cuda}\n', "not a name and a version of rpm"),
        ('- {name: x, versions: ["2-1"], repository: moon}\n', "'moon' is not one of"),
        ('- {name: x, versions: ["2-1"], repository: cuda, depends: [y]}\n', "unknown key 'depends'"),
        ('- {name: x, versions: ["2-1"], repository: cuda, requires: ["y (>= 1)"]}\n', "is not NAME or NAME"),
        ('- {name: x, versions: ["2-1"], repository: cuda, scripts: {postinst: "x"}}\n', "scripts are pre"),
        ("- {name: x, repository: cuda}\n", "are missing"),
        ('- {same_as: "no-such-*"}\n', "no package of the apt repository is called no-such-*"),
        (GOOD + GOOD, "is there twice"),
    ],
)
def test_a_mistake_is_named_with_its_entry(tmp_path: Path, text: str, about: str) -> None:
    (tmp_path / "redhat").mkdir()
    (tmp_path / "redhat" / "mine.yml").write_text(text)
    with pytest.raises(LabError) as refused:
        read_rpms(tmp_path, KERNEL, "9")
    assert about in refused.value.what
    assert "mine.yml" in refused.value.what


@pytest.mark.parametrize(
    ("kernel", "nevra"),
    [
        ("5.14.0-503.el9.x86_64", "kernel-devel-0:5.14.0-503.el9.x86_64"),
        ("6.12.107-amd64", "kernel-devel-0:6.12.107-amd64.x86_64"),
        ("6.12.107", "kernel-devel-0:6.12.107-1.x86_64"),
        ("6.1.0-13-amd64", "kernel-devel-6.1.0-0:13-amd64.x86_64"),
    ],
)
def test_headers_are_found_under_the_name_of_the_running_kernel(kernel: str, nevra: str) -> None:
    """`rpm -q kernel-devel-$(uname -r)` finds them by it, whatever the kernel of this host is called."""
    assert nevra in [rpm.nevra for rpm in read_rpms(PACKAGES, kernel, "9")["system"]]


def test_there_are_fixtures_of_the_family() -> None:
    assert len(fixture_files(PACKAGES / "redhat")) >= 3


def test_the_tools_that_look_at_cards_and_drives_come_with_their_packages() -> None:
    built = shipped("9")
    for repository, name, path in (
        ("system", "perftest", "/usr/bin/ib_write_bw"),
        ("system", "perftest", "/usr/bin/ib_write_lat"),
        ("system", "libibverbs-utils", "/usr/bin/ibv_devinfo"),
        ("tools", "fio", "/usr/bin/fio"),
        ("tools", "nvme-cli", "/usr/sbin/nvme"),
        ("cuda", "datacenter-gpu-manager-4-core", "/usr/bin/dcgmi"),
    ):
        (rpm,) = (one for one in built[repository] if one.name == name)
        assert rpm.files[path].content.endswith(f'/run.py {path.rpartition("/")[2]} "$@"\n'.encode())
