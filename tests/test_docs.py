"""The documents are true: every command shown parses, every role, check and stack named exists, and every
shipped one is documented."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from gpuprov_lab.releases import RELEASES
from provision import cli
from provision.checks.judging import checks_reference, registry
from provision.commands import moved
from provision.desired import variables
from provision.desired.role import all_roles
from provision.errors import ExitCode

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROLES = (ROOT / "docs" / "roles.md").read_text(encoding="utf-8")
VALIDATE = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def shown_commands() -> list[str]:
    """Return every `gpuprov …` line in fenced blocks of all documents. A `text` block also shows output,
    so there only lines behind a prompt count."""
    commands = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for language, block in re.findall(r"```([a-z]*)\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                line = line.split("  #")[0].split(" | jq ")[0].strip()
                typed = line.removeprefix("$ ").removeprefix("sudo ")
                if typed.startswith("gpuprov ") and (language != "text" or line.startswith("$ ")):
                    commands.append(typed)
    return commands


def table_column(first_header: str) -> set[str]:
    """Return the names in the first column of the table of docs/roles.md with this header."""
    names: set[str] = set()
    inside = False
    for line in ROLES.splitlines():
        if line.startswith(f"| {first_header} |"):
            inside = True
        elif inside and not line.startswith("|"):
            inside = False
        elif inside and (match := re.match(r"\| \[?`([^`]+)`", line)):
            names.add(match.group(1))
    return names


def test_the_documents_show_commands() -> None:
    assert len(shown_commands()) >= 10


@pytest.mark.parametrize("command", sorted(set(shown_commands())))
def test_every_shown_command_parses(command: str) -> None:
    words = shlex.split(command)[1:]
    assert cli.parsed(words).verb in cli.COMMANDS


def spans(start: str) -> list[tuple[str, str]]:
    """Return (document, text) of every `code span` outside fenced blocks that begins with `start`."""
    found = []
    for document in DOCUMENTS:
        text = re.sub(r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
        found += [(document.name, " ".join(span.split())) for span in re.findall(rf"`({start}[^`]*)`", text)]
    return found


def test_every_command_in_a_sentence_parses(capsys: pytest.CaptureFixture[str]) -> None:
    for document, text in spans("gpuprov "):
        command = text.partition(" > ")[0].removesuffix("…")
        try:
            cli.parsed(shlex.split(command)[1:])
        except SystemExit:  # --version and --help also exit
            said = capsys.readouterr().err
            assert not said, f"{document}: {command}: {said}"


def test_no_file_has_an_earlier_form_of_a_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Old forms are searched for in prose and messages, and in the commands of tests and scripts."""
    monkeypatch.chdir(tmp_path)  # so that no word of a command is an existing file
    verbs = "|".join(cli.COMMANDS)
    spoken = re.compile(rf"(?:gpuprov |`)((?:{verbs})\b[^`\n]*)")
    typed = re.compile(rf"\"(?:{verbs})\"(?:, f?\"[^\"]*\")*")
    listed = ["git", "ls-files", "-z", "--", "*.md", "*.py", "*.yml", "*.j2", "*.sh", "scripts", "roles"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    left = []
    for name in names.split("\0")[:-1]:
        if name in ("CHANGELOG.md", "tests/test_cli.py", "provision/commands/moved.py", "docs/ansible.md"):
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        found = [[word.strip('.,;:)"') for word in one.split()] for one in spoken.findall(text)]
        found += [re.findall(r"\"([^\"]*)\"", one) for one in typed.findall(text)]
        found = [words for words in found if len(words) > 1]  # a verb by itself is only its name
        left += [f"{name}: {' '.join(words)}: {told}" for words in found if (told := moved.answer(words))]
    assert not left, "\n".join(left)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name for child in action.choices.values() for name in options_of(child)}
    return found


# Options of Ansible, pytest and our scripts that a document mentions.
OPTIONS_OF_OTHERS = {
    "amd.md": {"--use_rocm_dmabuf"},
    "ansible.md": {"--become", "--tags", "--start-at-task", "--list-hosts"},
    "ci.md": {"--gpuprov-nodes", "--gpuprov-set", "--gpuprov-vault-password-file"},
    "detection.md": {"--", "--classes"},
    "health.md": {"--last"},
    "kubernetes.md": {"--config.custom-plugin-monitor", "--delete-emptydir-data"},
    "metrics.md": {"--collector.textfile.directory"},
    "performance.md": {"--only", "--quick", "--rounds"},
    "CONTRIBUTING.md": {"--python", "--sources", "--tree", "--unpack"},
}


def test_every_option_in_a_sentence_exists() -> None:
    known = options_of(cli.build_parser())
    for document, text in spans("--"):
        option = text.split()[0].partition("=")[0]
        assert option in known | OPTIONS_OF_OTHERS.get(document, set()), f"{document}: {text}"


# Names that look like variables: groups, values that gpuprov passes to Ansible, modules, role steps, a tool.
NO_VARIABLES = {
    *(
        "gpuprov_workers",
        "gpuprov_monitoring",
        "gpuprov_slurm",
        "gpuprov_spares",
        "gpuprov_keep",
        "gpuprov_files",
        "gpuprov_look",
        "gpuprov_packages",
    ),
    *("nccl_configure", "nccl_install", "nccl_tests"),
}


def test_every_variable_in_a_sentence_exists() -> None:
    """Pages with names of metrics and of JSON fields are left out, since other tests compare those."""
    known = {*variables.known(), *variables.RESERVED, *registry.table(), *all_roles(), *NO_VARIABLES}
    for document, text in spans(f"(?:{'|'.join(['gpuprov', *all_roles()])})_"):
        if document in ("metrics.md", "json.md"):
            continue
        name = re.split(r"[:=. ]", text)[0]  # `gpuprov_wave: 2`, the metric `gpu_burn.rate`
        pattern = re.sub(r"[*…]|(?<=_)$", ".+", name)  # `rdma_doca_*`, `gpuprov_…`, the prefix `nccl_`
        assert any(re.fullmatch(pattern, each) for each in known), f"{document}: {text}"


def test_every_connection_variable_is_one_that_gpuprov_reads() -> None:
    """These pages name no variable that only Ansible reads, so a mistyped name shows."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "provision").rglob("*.py"))
    shown = {name for document, name in spans(r"ansible_\w+") if document in ("connecting.md", "errors.md")}
    names = {match[0] for each in shown if (match := re.match(r"\w+", each))}
    assert len(names) >= 10
    assert {name for name in names if f'"{name}"' not in sources} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_variable_of_an_example_in_yaml_exists(document: Path) -> None:
    prefixes = "|".join(["gpuprov", *all_roles()])
    for block in re.findall(r"```yaml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        for name in re.findall(rf"^[\s{{-]*((?:{prefixes})_\w+):", block, re.MULTILINE):
            assert name in {*variables.known(), *variables.RESERVED, *NO_VARIABLES}, name


def test_every_variable_of_the_environment_is_read() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "provision").rglob("*.py"))
    sources += (ROOT / "tests/support/seed.py").read_text(encoding="utf-8")
    for document in DOCUMENTS:
        for name in re.findall(r"\bGPUPROV_[A-Z_]+", document.read_text(encoding="utf-8")):
            assert f'"{name}"' in sources, f"{document.name}: {name}"


def test_the_readme_is_short_and_leads_to_the_index() -> None:
    assert len(README.splitlines()) <= 200
    assert "](docs/index.md)" in README
    assert "](docs/first-hour.md)" in README


def test_the_page_of_checks_has_their_table() -> None:
    assert f"\n\n{checks_reference.table()}\n\n" in VALIDATE, (
        "write it again: python scripts/checks_table.py --write docs/validate.md"
    )


def test_the_page_of_roles_names_every_role_and_no_other() -> None:
    assert table_column("role") == {path.parent.name for path in (ROOT / "roles").glob("*/expect.yml")}


def systems() -> dict[str, str]:
    """Return what each supported operating system was tested on."""
    table = ROLES.split("| system | tested on |")[1].split("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {name: row[2].strip() for row in rows for name in re.findall(r"`([^`]+)`", row[1])}


@pytest.mark.parametrize("role", sorted(all_roles()))
def test_every_role_knows_the_documented_operating_systems_and_no_other(role: str) -> None:
    known = {f"{name} {version}" for name, _, version in all_roles()[role].releases()}
    if role == "monitoring":  # not a GPU node; the role's README lists systems with a Prometheus
        assert known == {"debian 12", "debian 13", "ubuntu 24.04"} < set(systems())
    elif role == "receptor":  # Debian 12 and Ubuntu were not tried as workers
        newer = {f"{name} {major}" for name in ("rhel", "rocky", "almalinux") for major in (9, 10)}
        assert known == {"debian 13"} | newer < set(systems())
    elif role == "amd_container_toolkit":  # AMD has no package for these
        without = {f"{name} {major}" for name in ("rhel", "rocky", "almalinux") for major in (8, 10)}
        assert known == set(systems()) - without < set(systems())
    else:
        assert known == set(systems())


def test_the_page_of_roles_states_which_operating_systems_were_a_lab_tree() -> None:
    """Every lab release is listed; one RHEL-like system represents all others of its major release."""
    stated = systems()
    for name, release in RELEASES.items():
        os_id = name.rstrip("0123456789")
        version = release.major if release.dnf else name.removeprefix(os_id)
        known = [each for each in stated if each.replace(".", "").replace(" ", "") == f"{os_id}{version}"]
        assert len(known) == 1, name
        assert stated[known[0]] == ("Debian itself" if release.real else "a lab tree"), name
    majors = {release.major for release in RELEASES.values() if release.dnf}
    assert majors == {each.split()[1] for each in stated if each.split()[0] in ("rhel", "rocky", "almalinux")}


def test_the_page_of_roles_states_each_stack_as_it_is() -> None:
    files = (ROOT / "provision/data/stacks").glob("*.yml")
    stacks = {path.stem: yaml.safe_load(path.read_text()) for path in files}
    assert table_column("stack") == set(stacks)
    for name, stack in stacks.items():
        row = next(line for line in ROLES.splitlines() if line.startswith(f"| `{name}`"))
        variables = stack["variables"]
        if "rocm_version" in variables:
            assert f"| {variables['amdgpu_driver_version']} | {variables['rocm_version']} |" in row
            continue
        assert f"| {variables['nvidia_driver_version']} |" in row
        assert f"| {variables['cuda_toolkit_version']} |" in row
        nccl, _, build = variables["nccl_version"].partition("+cuda")
        assert f"{nccl.split('-')[0]} (CUDA {build} build)" in row


def test_the_page_of_commands_states_every_exit_code() -> None:
    stated = {int(code) for code in re.findall(r"^\| (\d+) \|", COMMANDS, re.MULTILINE)}
    assert stated == {int(code) for code in ExitCode}


def test_an_entry_of_the_changelog_is_one_short_line() -> None:
    sections = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for section in sections:
        assert len(section.splitlines()) <= 60, section.splitlines()[0]
        for entry in re.findall(r"^- (.+)$", section, re.MULTILINE):
            assert len(re.sub(r"\]\([^)]*\)", "]", entry).split()) <= 25, entry
        assert not re.search(r"^  \S", section, re.MULTILINE), "an entry has a second line"


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def anchors(document: Path) -> set[str]:
    """Return the link targets of a document: its headings as GitHub turns them into anchors."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_into_documents_lead_to_a_heading() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
            file = document.parent / target if target else document
            assert anchor in anchors(file), f"{document.name}: {target}#{anchor}"


GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`|]+)` \|$", GLOSSARY, re.MULTILINE)


def test_every_row_of_the_glossary_names_its_place_in_the_code_and_no_word_twice() -> None:
    rows = [line for line in GLOSSARY.splitlines() if line.startswith("| ") and "| in the code |" not in line]
    assert len(TERMS) == len(rows) > 30
    assert len({word for word, _ in TERMS}) == len(TERMS)


@pytest.mark.parametrize("place", sorted({place for _, place in TERMS}))
def test_what_the_glossary_names_exists(place: str) -> None:
    """An entry is a class, a command, a folder, or the name of an option, variable or field."""
    if place.endswith("/"):
        assert (ROOT / place).is_dir()
    elif place.startswith("gpuprov "):
        with pytest.raises(SystemExit) as ended:
            cli.parsed([*shlex.split(place)[1:], "--help"])
        assert ended.value.code == ExitCode.OK
    else:
        wanted = rf"^class {place}\b" if place[0].isupper() else rf"\"{re.escape(place)}[\"/]"
        sources = (file.read_text(encoding="utf-8") for file in (ROOT / "provision").rglob("*.py"))
        assert any(re.search(wanted, text, re.MULTILINE) for text in sources)


def test_the_execution_environment_takes_the_collection_from_where_it_is_written() -> None:
    """ansible-builder copies `src` to `dest`, and ansible-galaxy finds the collection there under `name`."""
    file = ROOT / "docs" / "examples" / "execution-environment.yml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert document["version"] == 3
    (taken,) = document["additional_build_files"]
    (collection,) = document["dependencies"]["galaxy"]["collections"]
    folder = re.search(r"collection\.py --tree (\w+)", file.read_text(encoding="utf-8"))
    assert folder
    assert (file.parent / taken["src"]).resolve() == ROOT / folder[1] / "ansible_collections"
    assert collection == {"name": f"{taken['dest']}/gpuprov/gpu", "type": "dir"}
