"""Fixture rpms: the contents of fixtures/redhat, and rpm's view of the packages built from it.

The real rpm and dnf install them on nodes: tests/lab/test_os_matrix.py.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml

from gpuprov_lab import rpm_repository, signing
from gpuprov_lab.command import PATH, call
from gpuprov_lab.debfile import PackedFile
from gpuprov_lab.host import RPM_PROGRAMS
from gpuprov_lab.packages import fixture_files
from gpuprov_lab.places import PACKAGES
from gpuprov_lab.rpm_packages import MAJORS, read_rpms
from gpuprov_lab.rpmfile import Rpm, build
from provision.errors import LabError

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


@pytest.fixture
def rpm(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs the host's rpm; skips without rpm's tools, as on other systems."""
    for program in (*RPM_PROGRAMS, "rpm", "rpmkeys"):
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"{program} is not installed")
    database = f"--dbpath={tmp_path}/rpmdb"
    return lambda program, *words: call(program, database, *map(str, words))


def built(folder: Path) -> Path:
    folder.mkdir()
    build([SAMPLE], folder)
    return folder / SAMPLE.filename


def test_a_package_holds_what_was_asked_for(rpm: Callable[..., str], tmp_path: Path) -> None:
    file = built(tmp_path / "made")
    head = "%{NAME} %{EPOCH} %{VERSION} %{RELEASE} %{ARCH} %{PAYLOADCOMPRESSOR}"
    assert rpm("rpm", "-qp", "--qf", head, file) == "nvidia-driver-cuda 3 580.126.09 1.el9 x86_64 gzip"
    requires = rpm("rpm", "-qp", "--requires", file).splitlines()
    assert [one for one in requires if not one.startswith("rpmlib(")] == [
        *("/bin/sh", "dkms", "nvidia-kmod = 3:580.126.09-1.el9")
    ]
    assert "nvidia-driver-cuda = 3:580.126.09-1.el9" in rpm("rpm", "-qp", "--provides", file).splitlines()
    assert rpm("rpm", "-qp", "--conflicts", file) == "nvidia-x11-drv\n"
    assert "\ndepmod -a\n" in rpm("rpm", "-qp", "--scripts", file)
    rows = "[%{FILENAMES} %{FILEMODES:octal} %{FILEFLAGS:fflags} %{FILELINKTOS}\n]"
    assert rpm("rpm", "-qp", "--qf", rows, file).splitlines() == [
        "/etc/x.conf 100644 cn ",
        "/usr/bin/nvidia-smi 100755  ",
        "/usr/lib64/libcuda.so.1 120777  libcuda.so.580",
    ]
    assert built(tmp_path / "again").read_bytes() == file.read_bytes(), "the same content is the same bytes"


def test_a_signed_package_is_told_from_a_changed_one(rpm: Callable[..., str], tmp_path: Path) -> None:
    """Each repository signs with its own key; a package changed afterwards is refused."""
    file = built(tmp_path / "made")
    home = Path(f"/tmp/gpuprov-test-{os.getpid()}")  # short: an agent's socket path has a length limit
    try:
        with signing.keyring(home):
            key = signing.fingerprint(home, "cuda")
            signing.sign_packages(home, key, file.parent)
            (tmp_path / "key.asc").write_text(signing.public_key(home, key))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    with pytest.raises(LabError, match="NOKEY"):
        rpm("rpmkeys", "--checksig", "--verbose", file)
    rpm("rpmkeys", "--import", tmp_path / "key.asc")
    assert "digests signatures OK" in rpm("rpmkeys", "--checksig", file)
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    with pytest.raises(LabError, match=r"NOT\s+OK"):
        rpm("rpmkeys", "--checksig", file)


@pytest.mark.usefixtures("rpm")
def test_indexes_name_every_package_with_its_digest(tmp_path: Path) -> None:
    repomd = rpm_repository.write(tmp_path / "made", [SAMPLE], None, "9", modules=True)
    space = {"r": "http://linux.duke.edu/metadata/repo", "c": "http://linux.duke.edu/metadata/common"}
    indexes = {}
    for data in ET.parse(repomd).getroot().findall("r:data", space):  # noqa: S314 - our own file
        location = data.find("r:location", space)
        checksum = data.findtext("r:checksum", namespaces=space)
        assert location is not None
        content = (repomd.parent.parent / location.attrib["href"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == checksum
        indexes[data.attrib["type"]] = gzip.decompress(content).decode()
    assert set(indexes) == {"primary", "filelists", "other", "modules"}
    package = ET.fromstring(indexes["primary"])[0]  # noqa: S314
    file = (tmp_path / "made" / SAMPLE.filename).read_bytes()
    assert package.findtext("c:checksum", namespaces=space) == hashlib.sha256(file).hexdigest()
    assert 'name="nvidia-kmod" flags="EQ" epoch="3" ver="580.126.09" rel="1.el9"' in indexes["primary"]
    assert "<file>/usr/lib64/libcuda.so.1</file>" in indexes["filelists"]
    stream, defaults = yaml.safe_load_all(indexes["modules"])
    assert stream["data"]["stream"] == "580-open"
    assert stream["data"]["artifacts"]["rpms"] == ["nvidia-driver-cuda-3:580.126.09-1.el9.x86_64"]
    assert stream["data"]["dependencies"] == [{"requires": {"platform": ["el9"]}}]
    assert defaults["data"]["stream"] == "latest-dkms"


@pytest.mark.usefixtures("rpm")
def test_a_release_without_modules_has_none(tmp_path: Path) -> None:
    rpm_repository.write(tmp_path / "made", [SAMPLE], None, "10", modules=False)
    assert not list((tmp_path / "made" / "repodata").glob("*modules*"))


@pytest.mark.parametrize("major", MAJORS)
def test_the_shipped_fixtures_are_whole(major: str) -> None:
    found = shipped(major)
    every = [rpm for rpms in found.values() for rpm in rpms]
    provided = {text.split()[0] for rpm in every for text in (rpm.name, *rpm.relations["provides"])}
    for rpm in every:
        for text in (*rpm.relations["requires"], *(["/bin/sh"] if rpm.scripts else [])):
            assert text.split()[0] in provided, f"{rpm.nevra} requires {text}"
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
    assert devel.relations["requires"][0].split()[0] == "libnccl"
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
    """`rpm -q kernel-devel-$(uname -r)` finds them by this name, whatever the host's kernel is called."""
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
