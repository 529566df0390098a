"""Fixture packages: valid packages.yml files; the real dpkg, kmod, ldconfig and gpg accept them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov_lab import repository, signing
from gpuprov_lab.debfile import Deb, PackedFile
from gpuprov_lab.elf import kernel_module, shared_library
from gpuprov_lab.packages import read_packages, upstream
from gpuprov_lab.places import PACKAGES, SILICON
from provision.errors import LabError
from tests.support.commands import ran
from tests.support.processes import until

KERNEL = "6.1.0-test"
SAMPLE = """
- name: nvidia-open
  versions: ["1:580.95.05-1", "1:575.57.08-1"]
  repository: cuda
  depends: ["nvidia-utils (= {version})", "linux-headers-{kernel_release} | dkms"]
  conflicts: [nvidia-proprietary]
  files:
    /usr/lib/modules/{kernel_release}/updates/dkms/nvidia.ko: {kernel_module: nvidia, flavour: open}
    /usr/lib/modules/{kernel_release}/updates/dkms/nvidia-uvm.ko: {kernel_module: nvidia-uvm, flavour: open}
- name: nvidia-utils
  versions: ["580.95.05-1"]
  repository: tools
  description: |
    NVIDIA utilities

    for {upstream}
  conffiles: [/etc/nvidia/x.conf]
  scripts: {postinst: "#!/bin/sh\\necho {name} {version}\\n"}
  files:
    /usr/bin/nvidia-smi: {launcher: nvidia-smi}
    /etc/nvidia/x.conf: {content: "a=1\\n", mode: "0640"}
    /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1: {link: "libnvidia-ml.so.{upstream}"}
    /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{upstream}: {elf: true, soname: libnvidia-ml.so.1}
"""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "packages.yml"
    path.write_text(SAMPLE)
    return path


def tool(name: str) -> str:
    """Return the path of a host program, or skip: a developer's machine need not run Debian."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def output(*words: object) -> str:
    return ran([str(w) for w in words], check=True).stdout


def package(sample: Path, repository_name: str, folder: Path) -> Path:
    deb = read_packages(sample, KERNEL)[repository_name][0]
    return deb.build(folder)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("580.95.05-1", "580.95.05"),
        ("1:580.95.05-1", "580.95.05"),
        ("2.27.3-1+cuda12.9", "2.27.3"),
        ("1.0~rc-2-3", "1.0~rc-2"),
        ("12.9.1", "12.9.1"),
    ],
)
def test_upstream_is_the_version_without_epoch_and_revision(version: str, expected: str) -> None:
    assert upstream(version) == expected


def test_every_version_becomes_a_package_with_its_placeholders_filled(sample: Path) -> None:
    built = read_packages(sample, KERNEL)
    assert [deb.filename for deb in built["cuda"]] == [
        "nvidia-open_580.95.05-1_amd64.deb",
        "nvidia-open_575.57.08-1_amd64.deb",
    ]
    newest = built["cuda"][0]
    assert newest.control["Depends"] == f"nvidia-utils (= 1:580.95.05-1), linux-headers-{KERNEL} | dkms"
    assert f"/usr/lib/modules/{KERNEL}/updates/dkms/nvidia.ko" in newest.files
    launcher = built["tools"][0].files["/usr/bin/nvidia-smi"]
    assert launcher.content.decode().splitlines() == [
        "#!/bin/sh",
        'SILICON_VERSION=580.95.05 exec /usr/bin/python3 -I -S /usr/lib/silicon/run.py nvidia-smi "$@"',
    ]
    assert launcher.mode == 0o755


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (("repository: tools", "repository: other"), "repository 'other' is not one of"),
        (('versions: ["580.95.05-1"]', "versions: [580.95]"), "'versions' must be a list of texts"),
        (('versions: ["580.95.05-1"]', 'versions: ["v580"]'), "'v580' is not a Debian version"),
        (('versions: ["580.95.05-1"]', 'versions: ["1-1", "1-1"]'), "is there twice"),
        (("description:", "descripton:"), "unknown key 'descripton'"),
        (("{launcher: nvidia-smi}", "{launch: nvidia-smi}"), "/usr/bin/nvidia-smi: needs exactly one of"),
        (("flavour: open}\n- ", "flavour: closed}\n- "), "'closed' is none of open, proprietary"),
        (("/usr/bin/nvidia-smi", "usr/bin/nvidia-smi"), "is not an absolute path"),
        (("/usr/bin/nvidia-smi", "/usr/../nvidia-smi"), "is not an absolute path"),
        (("- name: nvidia-utils\n ", "- nickname: x\n "), "package 2 (no name): 'name' is missing"),
        (("- name: nvidia-utils", "- name: NVIDIA"), "'NVIDIA' is not a Debian package name"),
        (("scripts: {postinst", "scripts: {install"), "scripts are preinst"),
        ((SAMPLE, "name: x"), "expected a list"),
        ((SAMPLE, "- [\n"), "is not YAML"),
    ],
)
def test_a_mistake_in_packages_yml_is_named_with_its_entry(
    sample: Path, change: tuple[str, str], about: str
) -> None:
    assert change[0] in SAMPLE
    sample.write_text(SAMPLE.replace(*change))
    with pytest.raises(LabError) as refused:
        read_packages(sample, KERNEL)
    assert about in refused.value.what
    assert "packages.yml" in refused.value.what


@pytest.mark.parametrize(
    ("repository_name", "name", "path"),
    [
        ("tools", "perftest", "/usr/bin/ib_write_bw"),
        ("tools", "perftest", "/usr/bin/ib_write_lat"),
        ("tools", "ibverbs-utils", "/usr/bin/ibv_devinfo"),
        ("tools", "fio", "/usr/bin/fio"),
        ("tools", "nvme-cli", "/usr/sbin/nvme"),
        ("cuda", "datacenter-gpu-manager-4-core", "/usr/bin/dcgmi"),
    ],
)
@pytest.mark.parametrize("distribution", ["debian", "ubuntu"])
def test_a_tool_comes_with_the_package_of_its_name(
    repository_name: str, name: str, path: str, distribution: str
) -> None:
    built = read_packages(PACKAGES, KERNEL, distribution)[repository_name]
    (package,) = (deb for deb in built if deb.control["Package"] == name)
    tool = path.rpartition("/")[2]
    assert package.files[path].content.decode().endswith(f'/run.py {tool} "$@"\n')
    assert package.files[path].mode == 0o755


def test_every_tool_that_can_be_broken_is_in_some_package_or_in_the_layer() -> None:
    launched = {
        file.content.decode().rpartition("run.py ")[2].split()[0]
        for debs in read_packages(PACKAGES, KERNEL).values()
        for deb in debs
        for file in deb.files.values()
        if b"/usr/lib/silicon/run.py " in file.content
    }
    listed = ran(
        [sys.executable, "-I", "-S", str(SILICON / "run.py"), "fault", "--list", "--json"], check=True
    )
    (missing,) = (fault for fault in json.loads(listed.stdout) if fault["id"] == "tool_missing")
    (breakable,) = (one["allowed"] for one in missing["parameters"] if one["name"] == "tool")
    assert set(breakable) - launched == {"dmesg"}


def test_a_missing_packages_yml_is_said(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is missing"):
        read_packages(tmp_path / "packages.yml", KERNEL)


def test_dpkg_reads_our_packages(sample: Path, tmp_path: Path) -> None:
    dpkg_deb = tool("dpkg-deb")
    path = package(sample, "tools", tmp_path)
    fields = output(dpkg_deb, "-f", path)
    assert "Package: nvidia-utils\nVersion: 580.95.05-1\nArchitecture: amd64\n" in fields
    assert fields.endswith("Description: NVIDIA utilities\n .\n for 580.95.05\n")
    output(dpkg_deb, "-R", path, tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "usr/bin/nvidia-smi").stat().st_mode & 0o7777 == 0o755
    assert (out / "etc/nvidia/x.conf").stat().st_mode & 0o7777 == 0o640
    assert (out / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").readlink() == Path(
        "libnvidia-ml.so.580.95.05"
    )
    assert (out / "DEBIAN/conffiles").read_text() == "/etc/nvidia/x.conf\n"
    assert (out / "DEBIAN/postinst").read_text() == "#!/bin/sh\necho nvidia-utils 580.95.05-1\n"
    assert os.access(out / "DEBIAN/postinst", os.X_OK)


def test_the_same_package_is_the_same_bytes(tmp_path: Path) -> None:
    tool("dpkg-deb")
    control = {"Package": "a", "Version": "1-1", "Architecture": "all", "Description": "x"}
    one = Deb(control, {"/b": PackedFile(b"b"), "/a": PackedFile(b"a")})
    other = Deb(control, {"/a": PackedFile(b"a"), "/b": PackedFile(b"b")})
    assert one.build(tmp_path).read_bytes() == other.build(tmp_path).read_bytes()


@pytest.mark.parametrize(("flavour", "license_"), [("open", "Dual MIT/GPL"), ("proprietary", "NVIDIA")])
def test_modinfo_reads_our_modules(tmp_path: Path, flavour: str, license_: str) -> None:
    modinfo = tool("modinfo")
    path = tmp_path / "nvidia-uvm.ko"
    path.write_bytes(kernel_module("nvidia-uvm", "580.95.05", flavour, KERNEL, ["nvidia"]))
    answers = {
        key: output(modinfo, "-F", key, path).strip() for key in ("version", "license", "name", "depends")
    }
    assert answers == {"version": "580.95.05", "license": license_, "name": "nvidia_uvm", "depends": "nvidia"}
    assert output(modinfo, "-F", "vermagic", path).startswith(f"{KERNEL} ")


def test_two_versions_of_a_module_have_two_srcversions() -> None:
    def srcversion(version: str) -> bytes:
        module = kernel_module("nvidia", version, "open", KERNEL)
        return next(part for part in module.split(b"\0") if part.startswith(b"srcversion="))

    assert srcversion("580.95.05") != srcversion("575.57.08")
    assert b"\0version=575.57.08\0" in kernel_module("nvidia", "575.57.08", "open", KERNEL)


def test_ldconfig_links_our_libraries_under_their_soname(tmp_path: Path) -> None:
    ldconfig = tool("ldconfig")
    (tmp_path / "libnvidia-ml.so.580.95.05").write_bytes(shared_library("libnvidia-ml.so.1"))
    output(ldconfig, "-n", tmp_path)
    assert (tmp_path / "libnvidia-ml.so.1").readlink() == Path("libnvidia-ml.so.580.95.05")


def test_an_index_names_size_and_digest_of_each_package_and_a_release_those_of_the_index(
    sample: Path, tmp_path: Path
) -> None:
    tool("dpkg-deb")
    folder = tmp_path / "repository"
    repository.write_index(folder, read_packages(sample, KERNEL)["cuda"], "NVIDIA")
    stanzas = (folder / "Packages").read_text().strip().split("\n\n")
    assert len(stanzas) == 2
    for stanza in stanzas:
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if not line.startswith(" "))
        content = (folder / fields["Filename"]).read_bytes()
        assert fields["Size"] == str(len(content))
        assert fields["SHA256"] == hashlib.sha256(content).hexdigest()
    release = (folder / "Release").read_text()
    for name in ("Packages", "Packages.gz"):
        content = (folder / name).read_bytes()
        assert f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n" in release
    assert gzip.decompress((folder / "Packages.gz").read_bytes()) == (folder / "Packages").read_bytes()


def test_a_signed_release_verifies_with_the_published_key_and_not_when_changed(tmp_path: Path) -> None:
    gpg = tool("gpg")
    tool("gpgconf")
    # A short path: an agent's socket path has a length limit, and pytest's folders are long.
    home = Path(f"/tmp/gpuprov-test-{os.getpid()}")
    release = tmp_path / "Release"
    release.write_text("Origin: test\n")
    try:
        with signing.keyring(home):
            key = signing.fingerprint(home, "cuda")
            assert signing.fingerprint(home, "cuda") == key, "the key is made once"
            assert signing.fingerprint(home, "tools") != key, "each repository has its own"
            signing.sign(home, key, release)
            (tmp_path / "key.asc").write_text(signing.public_key(home, key))
        # The agent receives a request to end, and ends by itself.
        until(lambda: ran(["pgrep", "-f", f"homedir {home}"]).stdout == "", seconds=20)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert (tmp_path / "key.asc").read_text().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    output(gpg, "--homedir", tmp_path, "--dearmor", "--output", tmp_path / "key.gpg", tmp_path / "key.asc")
    verify = [
        gpg,
        "--homedir",
        tmp_path,
        "--no-default-keyring",
        "--keyring",
        tmp_path / "key.gpg",
        "--verify",
    ]
    output(*verify, tmp_path / "Release.gpg", release)
    output(*verify, tmp_path / "InRelease")
    release.write_text("Origin: changed\n")
    with pytest.raises(subprocess.CalledProcessError):
        output(*verify, tmp_path / "Release.gpg", release)


def test_the_cache_key_follows_packages_yml_and_the_kernel(sample: Path) -> None:
    key = repository.content_key(sample, KERNEL)
    assert repository.content_key(sample, KERNEL) == key
    assert repository.content_key(sample, "6.1.1") != key
    sample.write_text(SAMPLE + "\n")
    assert repository.content_key(sample, KERNEL) != key


def test_each_release_finds_nvidias_own_folder_and_key_name() -> None:
    assert repository.layout("cuda", "debian12").key.endswith("debian12/x86_64/3bf863cc.pub")
    assert repository.layout("cuda", "debian13").key.endswith("debian13/x86_64/8793F200.pub")
    assert repository.layout("toolkit", "debian12") == repository.layout("toolkit", "debian13")
