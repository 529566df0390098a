"""Settings by others that make apt or dnf deviate from the declared packages, with the real apt-get."""

from __future__ import annotations

import shutil

import pytest

from tests.node.machine import Machine

LIST = "deb [signed-by=/usr/share/keyrings/{key}.gpg] http://mirror.example/cuda/ /\n"
OURS = """# Written by gpuprov (role nvidia_repository); an edit here is drift.
Types: deb
URIs: http://mirror.example/cuda/
Suites: /
Signed-By: /usr/share/keyrings/nvidia-cuda.gpg
"""
FOLDER = "/etc/apt/sources.list.d"


@pytest.fixture
def apt(machine: Machine) -> Machine:
    """Return a machine with our source and a real apt-get that reads it."""
    if shutil.which("apt-get") is None:
        pytest.skip("apt-get is not installed")
    machine.tool(
        "apt-get",
        f'exec {shutil.which("apt-get")} -o Dir={machine.root} -o Dir::State::status=/dev/null "$@"',
    )
    for folder in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "etc/apt/apt.conf.d"):
        (machine.root / folder).mkdir(parents=True)
    machine.file(f"{FOLDER}/nvidia-cuda.sources", OURS)
    return machine


def problems(apt: Machine) -> list[str]:
    found = apt.value("packages.source_problems")
    return [text.replace(str(apt.root), "") for text in found]


def test_a_source_like_ours_with_another_key_is_named_with_both_files(apt: Machine) -> None:
    assert problems(apt) == []
    apt.file("/usr/share/keyrings/other.gpg", "")
    apt.file(f"{FOLDER}/site.list", LIST.format(key="other"))
    (found,) = problems(apt)
    assert found.startswith(
        "Conflicting values set for option Signed-By regarding source http://mirror.example/cuda/ /: "
    )
    assert found.endswith(f"({FOLDER}/nvidia-cuda.sources and {FOLDER}/site.list)")


def test_the_password_in_the_url_of_a_source_is_not_told(apt: Machine) -> None:
    for name, place in (("more", "bob:hunter2@private."), ("site", "private.")):
        apt.file(f"/usr/share/keyrings/{name}.gpg", "")
        apt.file(f"{FOLDER}/{name}.list", LIST.format(key=name).replace("mirror.", place))
    (found,) = problems(apt)
    assert "regarding source http://private.example/cuda/ /: " in found
    assert found.endswith(f"({FOLDER}/more.list and {FOLDER}/site.list)")


def test_a_list_that_is_no_list_is_named(apt: Machine) -> None:
    apt.file(f"{FOLDER}/site.list", "deb http://mirror.example\n")
    assert problems(apt) == [f"Malformed entry 1 in list file {FOLDER}/site.list (Suite)"]
    apt.file(f"{FOLDER}/site.list", "")
    apt.file(f"{FOLDER}/site.sources", "Types deb\nURIs: http://mirror.example/\n")
    assert problems(apt) == [f"Malformed stanza 1 in source list {FOLDER}/site.sources (type)"]


def test_a_key_that_a_foreign_source_misses_is_named(apt: Machine) -> None:
    apt.file(f"{FOLDER}/a.list", LIST.format(key="gone").replace("cuda", "a"))
    apt.file(f"{FOLDER}/b.sources", OURS.partition("\n")[2].replace("cuda", "b"))
    apt.file(f"{FOLDER}/off.sources", "Enabled: no\n" + OURS.partition("\n")[2].replace("cuda", "c"))
    assert problems(apt) == [
        f"its key /usr/share/keyrings/gone.gpg is missing ({FOLDER}/a.list)",
        f"its key /usr/share/keyrings/nvidia-b.gpg is missing ({FOLDER}/b.sources)",
    ]


def test_a_key_within_a_source_is_no_file_and_a_disabled_source_needs_none(apt: Machine) -> None:
    block = "-----{} PGP PUBLIC KEY BLOCK-----"
    lines = (block.format("BEGIN"), ".", "mQINBFit2ioB", "/ab3HNeWQ==", block.format("END"))
    key = "".join(f" {line}\n" for line in lines)
    source = OURS.partition("\n")[2].partition("Signed-By")[0]
    apt.file(f"{FOLDER}/ppa.sources", source.replace("cuda", "a") + "Signed-By:\n" + key)
    for number, word in enumerate(("false", "Off", "0")):
        text = OURS.partition("\n")[2].replace("cuda", f"off{number}")
        apt.file(f"{FOLDER}/off{number}.sources", f"Enabled: {word}\n{text}")
    assert problems(apt) == []


REPOSITORIES = "/etc/yum.repos.d"
LISTED = "repo id        repo name        status\nnvidia-cuda    NVIDIA           enabled\n"
OURS_OF_DNF = OURS.partition("\n")[0] + "\n[nvidia-cuda]\nname=NVIDIA\nbaseurl=http://m.example/cuda/\n"


@pytest.fixture
def dnf(machine: Machine) -> Machine:
    """Return a RHEL-like machine with our repository; tests/printers/test_dnf.py runs the real dnf."""
    machine.file("/etc/os-release", "ID=rocky\nID_LIKE=rhel\n")
    machine.file(f"{REPOSITORIES}/nvidia-cuda.repo", OURS_OF_DNF)
    machine.tool("dnf", f"printf '{LISTED}'")
    return machine


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            f"Warning: failed loading '{REPOSITORIES}/s.repo', skipping.\n{LISTED}",
            f"failed loading '{REPOSITORIES}/s.repo', skipping.",
        ),
        (
            f'Error in configuration file "{REPOSITORIES}/s.repo"\n Missing section header on line 1\n',
            f'Error in configuration file "{REPOSITORIES}/s.repo": Missing section header on line 1',
        ),
    ],
)
def test_what_dnf_4_and_5_say_of_a_file_that_they_do_not_take(dnf: Machine, said: str, problem: str) -> None:
    assert problems(dnf) == []
    dnf.file("/said", said)
    dnf.tool("dnf", f"cat {dnf.root}/said")
    assert problems(dnf) == [problem]


def test_a_dnf_that_answers_something_else_is_not_known(dnf: Machine) -> None:
    dnf.tool("dnf", "echo Traceback: http://bob:hunter2@m.example/")
    assert dnf.problem("packages.source_problems") == "dnf answered: Traceback: http://m.example/"


def test_repositories_without_an_address_or_with_our_name_are_told(dnf: Machine) -> None:
    dnf.file(f"{REPOSITORIES}/local.repo", "[local]\nbaseurl=file:///var/nvidia-driver-local-repo\n")
    dnf.file(f"{REPOSITORIES}/s.repo", "[off]\nenabled=0\n[none]\nname=none\n[nvidia-cuda]\nenabled=0\n")
    where = "file:///var/nvidia-driver-local-repo"
    local = f"the repository local is at {where}, where there is no repodata/repomd.xml"
    none = "the repository none has no address: no baseurl, no mirrorlist and no metalink"
    assert problems(dnf) == [
        f"{local} ({REPOSITORIES}/local.repo)",
        f"{none} ({REPOSITORIES}/s.repo)",
        "the repository nvidia-cuda is written twice, and one of them counts "
        f"({REPOSITORIES}/nvidia-cuda.repo and {REPOSITORIES}/s.repo)",
    ]
    dnf.file("/var/nvidia-driver-local-repo/repodata/repomd.xml", "")
    dnf.file(f"{REPOSITORIES}/s.repo", "[none]\nname=none\nbaseurl = https://m.example/\n")
    assert problems(dnf) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        # Written by `dnf5 config-manager setopt`.
        ("/etc/dnf/repos.override.d/99-config_manager.repo", "[gon*]\nenabled=0\n"),
        ("/usr/share/dnf5/libdnf.conf.d/20-site.conf", "[main]\nskip_if_unavailable=True\n"),
        ("/etc/dnf/dnf.conf", "[main]\nskip_if_unavailable=1\n"),
    ],
)
def test_settings_by_which_dnf_leaves_a_repository_out_count(dnf: Machine, path: str, text: str) -> None:
    dnf.file(f"{REPOSITORIES}/gone.repo", "[gone]\nbaseurl=file:///gone\n")
    assert len(problems(dnf)) == 1
    dnf.file(path, text)
    assert problems(dnf) == []


PIN = "Package: {package}\nPin: {pin}\nPin-Priority: {priority}\n"


@pytest.mark.parametrize(
    ("package", "pin", "priority", "named"),
    [
        ("*nvidia*", "version 570.*", 1002, True),
        ("nvidia-open libcuda1", "version 570.195.03-1", 1001, True),
        ("*", "release o=Debian", 1001, True),
        ("*nvidia*", "version 580.*", -1, True),
        ("*nvidia*", "version 580.*", 1001, False),  # NVIDIA's own nvidia-driver-pinning-580
        ("*nvidia*", "version 580.126.09-1", 1002, False),
        ("*nvidia*", "version 595.*", -1, False),
        ("*nvidia*", "version 570.*", 600, False),
        ("*", "release o=Debian", 990, False),
        ("firefox", "release o=Debian", 1001, False),
        ("*", "release l=NVIDIA CUDA", 1001, False),
        ("*nvidia*", "version 570.*", "high", False),
    ],
)  # fmt: skip
def test_a_pin_is_named_when_it_keeps_the_declared_driver_away(
    machine: Machine, package: str, pin: str, priority: object, named: bool
) -> None:
    machine.file("/etc/os-release", "ID=debian\n")
    machine.file("/var/lib/dpkg/status", "")
    text = PIN.format(package=package, pin=pin, priority=priority)
    path = "/etc/apt/preferences.d/site"
    machine.file(path, "# a comment\n" + text)
    said = [f"{path}: Package: {package}, Pin: {pin}, priority {priority}"] if named else []
    for wanted in ("580.126.09", "580"):
        assert machine.value(f"packages.{wanted}.overruled_by") == said
    machine.file(path, "# Written by gpuprov (role package_lock).\n" + text)
    assert machine.value("packages.580.126.09.overruled_by") == []


@pytest.mark.parametrize(("host", "named"), [("mirror.example", False), ("other.example", True), ("", True)])
def test_a_pin_of_the_mirror_that_has_the_declared_driver_is_no_obstacle(
    machine: Machine, host: str, named: bool
) -> None:
    machine.file("/etc/os-release", "ID=debian\n")
    machine.file("/var/lib/dpkg/status", "")
    machine.file(f"{FOLDER}/nvidia-cuda.sources", OURS.replace("mirror", "bob:hunter2@mirror"))
    machine.file(
        "/etc/apt/preferences.d/site", PIN.format(package="*", pin=f'origin "{host}"', priority=1001)
    )
    assert bool(machine.value("packages.580.126.09.overruled_by")) is named


def test_an_exclude_is_named_when_it_hides_nvidias_packages(machine: Machine) -> None:
    machine.file("/etc/os-release", "ID=rocky\nID_LIKE=rhel\n")
    fact = "packages.580.126.09.overruled_by"
    machine.file("/etc/dnf/dnf.conf", "[main]\ngpgcheck=1\n# exclude=nvidia*\nexclude=kernel*\n")
    # Users of EPEL rightly exclude its NVIDIA driver.
    machine.file("/etc/yum.repos.d/epel.repo", "[epel]\nbaseurl=https://epel.example/\nexcludepkgs=nvidia*\n")
    assert machine.value(fact) == []
    machine.file("/etc/dnf/dnf.conf", "[main]\nexcludepkgs = kernel*, *nvidia*\n")
    machine.file(
        "/etc/yum.repos.d/site.repo", "[cuda]\nbaseurl=https://m.example/nvidia/\nexclude=kmod-nvidia*\n"
    )
    assert machine.value(fact) == [
        "/etc/dnf/dnf.conf: excludepkgs=kernel*, *nvidia*",
        "/etc/yum.repos.d/site.repo: exclude=kmod-nvidia*",
    ]


@pytest.mark.parametrize("word", ["0", "false", "No", "off"])
def test_an_exclude_of_a_disabled_repository_hides_nothing(machine: Machine, word: str) -> None:
    machine.file("/etc/os-release", "ID=rocky\nID_LIKE=rhel\n")
    machine.tool("rpm", "exit 0")
    text = "[cuda]\nbaseurl=https://developer.download.nvidia.com/x/\nexcludepkgs=nvidia-*\nenabled="
    machine.file("/etc/yum.repos.d/cuda.repo", text + "1\n")
    assert machine.value("packages.580.126.09.overruled_by") != []
    machine.file("/etc/yum.repos.d/cuda.repo", text + word + "\n")
    assert machine.value("packages.580.126.09.overruled_by") == []


def test_the_enabled_stream_of_a_module(machine: Machine) -> None:
    path, fact = "/etc/dnf/modules.d/nvidia-driver.module", "packages.nvidia-driver.stream"
    assert machine.value(fact) is None
    # Written by dnf 4.
    machine.file(path, "[nvidia-driver]\nname=nvidia-driver\nstream=560-open\nprofiles=\nstate=enabled\n")
    assert machine.value(fact) == "560-open"
    machine.file(path, "[nvidia-driver]\nname=nvidia-driver\nstream=\nprofiles=\nstate=disabled\n")
    assert machine.value(fact) is None
