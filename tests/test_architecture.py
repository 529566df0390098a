"""Architecture rules that readers rely on: library owners, allowed imports, and code for nodes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from provision import cli

ROOT = Path(cli.__file__).resolve().parent
LAB = ROOT.parent / "lab" / "gpuprov_lab"  # another distribution; its files are called lab/… here
NODE_CODE = ("node/", "lab/silicon/")  # sent to nodes: standard library only, compatible with Python 3.6

# Each library is imported by as few files as possible, so that its changes affect only them.
OWNERS = {
    "ansible_runner": {"remote/ansible/runner.py"},
    "cryptography": {"desired/receptor.py", "remote/workers/sealed.py", "validate/plays/launch.py"},
    "jinja2": {"desired/templating/__init__.py", "report/html.py"},
    "kubernetes": {"remote/schedulers/kubernetes/cluster.py"},
    "markupsafe": {"report/html.py"},
    "paramiko": {"remote/ssh/client.py", "remote/ssh/login.py"},
    "pytest": set(),  # gpuprov/pytest_plugin.py
    "rich": {"terminal.py"},
    "shtab": {"cli.py"},
    "testinfra": {"drift/testinfra/fleet.py"},
    "urllib3": {"remote/schedulers/kubernetes/cluster.py"},
    # yamlfile.py parses users' files, and documents.py their inventories event by event; the others read
    # shipped data or write the lab's inventory.
    "yaml": {
        "yamlfile.py",
        "desired/inventory/plain/documents.py",
        "checks/thresholds.py",
        "lab/inventory_file.py",
        "lab/packages.py",
    },
}

# The lab's imports from gpuprov, with reasons. As another distribution, it has its own of everything else.
OF_THE_LAB = {
    "provision.errors": "a problem is told, and ends the command, as in every verb",
    "provision.paths": "the command that is proposed to who is not root (own_command)",
    "provision.terminal": "progress and foreign text are shown as by every verb",
}

# Packages in their order from the top down, as listed in docs/architecture.md.
DOCUMENT = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
ORDER = {name: int(order) for order, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCUMENT, re.M)}
WIDEST = 40  # modules in one folder
PACKAGES = 12  # at the top level

LINES = 400  # per module
# Longer modules, with the reason.
LONG = {
    "node/modules/gpuprov_run.py": "an Ansible module is one file, and this one has to outlive what it runs",
    "node/modules/gpuprov_packages.py": "an Ansible module is one file, for two package managers",
    "node/modules/gpuprov_burnin.py": "an Ansible module is one file; each state of it is a few lines",
}


def sources(*below: str) -> list[Path]:
    """Return the package's files, optionally only of these folders, sorted by path."""
    files = (path for root in (ROOT, LAB) for path in root.rglob("*.py") if "_packed" not in path.parts)
    return sorted(path for path in files if not below or relative(path).startswith(below))


def relative(path: Path) -> str:
    return f"lab/{path.relative_to(LAB)}" if of_the_lab(path) else path.relative_to(ROOT).as_posix()


def controller_sources() -> list[Path]:
    return [path for path in sources() if not relative(path).startswith(NODE_CODE)]


def of_the_lab(path: Path) -> bool:
    return path.is_relative_to(LAB)


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """Parse a file once; code for nodes is parsed with the grammar of Python 3.6."""
    ours = path.is_relative_to(ROOT) or of_the_lab(path)
    old = ours and relative(path).startswith(NODE_CODE)
    return ast.parse(text(path), feature_version=(3, 6) if old else None)


@cache
def is_module(name: str) -> bool:
    inside = (LAB.parent if name.startswith(LAB.name) else ROOT.parent).joinpath(*name.split("."))
    return inside.with_suffix(".py").exists() or (inside / "__init__.py").exists()


@cache
def imports(path: Path, types: bool = False) -> tuple[str, ...]:
    """Return every module a file imports, also inside functions; `types` adds imports for type checkers."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # expressions contain no import
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test) and not types:
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                for alias in child.names:  # `from package import module` needs the module
                    inside = f"{child.module}.{alias.name}"
                    yield inside if is_module(inside) else child.module
            yield from walk(child)

    return tuple(walk(tree(path)))


def dotted(path: Path) -> str:
    """Return `report.html` for report/html.py, and `report` for its __init__."""
    return relative(path).removesuffix(".py").removesuffix("__init__").strip("/").replace("/", ".")


def short(module: str) -> str:
    """Return the `dotted` name of one of our modules; empty for any other."""
    root, _, rest = module.partition(".")
    return {"provision": rest, LAB.name: f"lab.{rest}".rstrip(".")}.get(root, "")


def long(name: str) -> str:
    """Return the full name of a module; the inverse of `short`."""
    first, dot, rest = name.partition(".")
    return f"{LAB.name}{dot}{rest}" if first == "lab" else f"provision.{name}"


@cache
def graph() -> dict[str, set[str]]:
    """Return our modules on the controller and their imports of each other, with type annotations."""
    names = {dotted(path): path for path in controller_sources() if dotted(path)}
    return {
        name: {found for module in imports(path, types=True) if (found := short(module)) in names} - {name}
        for name, path in names.items()
    }


def package(name: str) -> str:
    """Return the package of a module; empty for the small files at the top."""
    first = name.partition(".")[0]
    return first if first in ORDER else ""


# --- libraries ---


def libraries() -> list[tuple[str, str]]:
    ours = sys.stdlib_module_names | {"provision", LAB.name}
    return sorted(
        {
            (library, relative(path))
            for path in controller_sources()
            for module in imports(path, types=True)
            if (library := module.partition(".")[0]) not in ours
        }
    )


def test_each_library_is_imported_by_its_owner_only() -> None:
    strays = [
        f"{file} imports {library}" for library, file in libraries() if file not in OWNERS.get(library, set())
    ]
    assert strays == []


def test_each_owner_exists_and_uses_what_it_owns() -> None:
    used = set(libraries())
    idle = [
        f"{file} does not use {name}"
        for name, files in OWNERS.items()
        for file in files
        if (name, file) not in used
    ]
    assert idle == []


def distributions(*files: Path) -> set[str]:
    """Return the third-party distributions that these files import, by their names on PyPI."""
    installed = metadata.packages_distributions()
    top = {module.partition(".")[0] for path in files for module in imports(path, types=True)}
    top -= {"provision", "gpuprov", LAB.name, "tests", "benchmarks", *sys.stdlib_module_names}
    return {canonicalize_name(name) for module in top for name in installed.get(module, [module])}


def declared(*extras: str, of: Path = ROOT.parent) -> set[str]:
    """Return the distributions that pip installs for the project in that folder with these extras."""
    project = tomllib.loads((of / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [
        *project["dependencies"],
        *(one for extra in extras for one in project["optional-dependencies"][extra]),
    ]
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    sources = [path for path in controller_sources() if not of_the_lab(path)]
    imported = distributions(*sources, *(ROOT.parent / "gpuprov").glob("*.py"))
    extras = declared("testinfra", "kubernetes") - declared()
    assert imported - extras == declared() - {"ansible-core"}, "its programs are run, not imported"
    assert extras <= imported
    assert distributions(*(path for path in controller_sources() if of_the_lab(path))) == declared(
        of=LAB.parent
    ) - {"gpuprov"}


def test_what_the_tests_import_is_declared() -> None:
    files = [path for folder in ("tests", "benchmarks") for path in (ROOT.parent / folder).rglob("*.py")]
    assert distributions(*files) - declared("test", "testinfra") == set()


def test_ansible_itself_is_imported_nowhere_but_in_our_modules_for_it() -> None:
    for path in sources():
        for module in imports(path, types=True):
            if module.partition(".")[0] == "ansible":
                assert relative(path).startswith("node/modules/"), relative(path)
                assert module.startswith("ansible.module_utils"), f"{relative(path)}: {module}"


def decoded_json(path: Path) -> list[int]:
    """Return lines that decode JSON with Python's decoder, except of JSON that gpuprov has just encoded."""
    lines = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "json":
            lines += [node.lineno] if node.attr in ("load", "loads", "JSONDecoder") else []
    return [
        line
        for line in lines
        if not re.search(r"json\.loads\(json\.dumps\(", text(path).splitlines()[line - 1])
    ]


# Packages that talk to nodes, workers, schedulers and tools. Others read data of gpuprov or its user.
FOREIGN = ("remote/", "validate/", "burnin/", "checks/", "drift/")
OWN_JSON = {
    "remote/worker_program/worker_entry.py",  # sealed by the controller: an inventory may contain any number
    "validate/selftest/measure.py",  # the archive it has just written
}


def test_the_json_of_others_is_read_in_one_place() -> None:
    strays = [
        f"{relative(path)}:{line} reads JSON without provision/foreign_json.py"
        for path in sources(*FOREIGN)
        if relative(path) not in OWN_JSON
        for line in decoded_json(path)
    ]
    assert strays == []
    assert decoded_json(ROOT / "foreign_json.py"), "the decoder was not recognised"


# --- allowed imports ---


def circles(needs: dict[str, set[str]]) -> list[str]:
    """Return each import cycle once, as `a -> b -> a`."""
    import_cycles: list[str] = []
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            import_cycles.append(" -> ".join((*way[way.index(name) :], name)))
        elif name not in done:
            for other in sorted(needs.get(name, ())):
                visit(other, (*way, name))
            done.add(name)

    for name in needs:
        visit(name, ())
    return import_cycles


def test_no_two_modules_need_each_other() -> None:
    """Includes imports through a package's __init__, so every module can be imported first."""

    def inside(name: str) -> set[str]:
        parts = name.split(".")
        return {".".join(parts[:count]) for count in range(1, len(parts))}

    needs = {
        name: others
        | ({first for other in others for first in inside(other)} & graph().keys()) - inside(name)
        for name, others in graph().items()
    }
    for name, others in needs.items():
        others.discard(name)
    assert circles(needs) == []


def folder(name: str) -> str:
    """Return the folder that contains a module; `cli` stands above all folders."""
    inside = (LAB.parent if name.startswith("lab.") else ROOT.parent).joinpath(*long(name).split("."))
    return name if inside.is_dir() or name == "cli" else name.rpartition(".")[0]


NAMES = re.compile(r"(?:^from |^import |-m )(provision(?:\.\w+)+)", re.M)


def named(path: Path) -> set[str]:
    """Return our modules that a file names in strings: relative to any folder above the file
    (`gpu.gpu_burn` in the table of checks; `report.json` is a file name), or after `from`, `import` or `-m`.
    The command line is excluded, because systemd starts it."""
    home = long(dotted(path)).split(".")
    above = ["", *(".".join(home[:count]) + "." for count in range(1, len(home)))]
    texts = [
        node.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    alone = {
        found[1] for text in texts if (found := re.fullmatch(r"((?:\w+\.)+(?!json|html)\w+)(:\w+)?", text))
    }
    alone.update(name for text in texts for name in NAMES.findall(text))
    return {short(way + name) for name in alone for way in above if is_module(way + name)} - {"cli"}


# Modules in these folders are found by the name of a verb, a format, a check or a program.
BY_NAME = ("cli", "commands.", "lab.", "drift.formats.", "drift.testinfra.", "report.", "checks.vendors.")


def test_each_module_is_needed_by_another() -> None:
    needed = {"remote.worker_program.worker_entry", "validate.selftest.hold_memory"}  # run as programs
    for path in controller_sources():
        needed |= (graph().get(dotted(path), set()) | named(path)) - {dotted(path)}
    unused = {dotted(path) for path in controller_sources() if path.stem != "__init__"} - needed
    assert [name for name in sorted(unused) if not name.startswith(BY_NAME)] == []


def folders() -> dict[str, set[str]]:
    """Return folder → folders it needs on the controller, through imports or module names in strings."""
    needs: dict[str, set[str]] = {}
    for path in controller_sources():
        if (name := dotted(path)) not in graph():
            continue
        others = graph()[name] | named(path) & graph().keys()
        needs.setdefault(folder(name), set()).update(map(folder, others))
    return {name: others - {name} for name, others in needs.items()}


def test_no_two_folders_need_each_other() -> None:
    """Includes module names in strings. A folder's own modules and its subfolders count as
    separate things."""
    assert circles(folders()) == []
    assert "checks.gpu" in folders()["checks.judging"], "names in texts are not found"


def test_a_package_names_none_above_it_in_a_text() -> None:
    above = [
        f"{relative(path)} names {other}"
        for path in controller_sources()
        for other in named(path)
        if package(other)
        and package(other) != package(dotted(path))
        and (not package(dotted(path)) or ORDER[package(other)] <= ORDER[package(dotted(path))])
    ]
    assert above == []


def test_no_two_simulated_tools_need_each_other() -> None:
    folder = LAB / "silicon"
    names = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for name, path in names.items():
        statements = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Import | ast.ImportFrom))
        found = {
            f"{getattr(one, 'module', '')}.{alias.name}".strip(".")
            for one in statements
            for alias in one.names
        }
        modules = {
            getattr(one, "module", "") for one in ast.walk(tree(path)) if isinstance(one, ast.ImportFrom)
        }
        needs[name] = ((found | modules) & names.keys()) - {name}
    assert sum(map(len, needs.values())) > len(names), "the imports were not read"
    assert circles(needs) == []


def test_no_judge_knows_a_format_of_reports() -> None:
    judges = {name for name in graph() if name.endswith("judge")} | {
        "validate.campaign",
        "checks.health",
    }
    known = {(name, other) for name in judges for other in graph()[name] if "report" in other}
    assert known == set()


def test_every_module_can_be_imported() -> None:
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    subprocess.run(
        [sys.executable, "-c", program, *(long(name) for name in sorted(graph()))],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        timeout=100,
        check=True,
    )


def test_a_package_imports_only_those_below_it() -> None:
    above = [
        f"{long(name)} imports {long(other)}"
        for name, others in graph().items()
        for other in sorted(others)
        if name != "cli"
        and package(name) != package(other)
        and (not package(name) or (package(other) and ORDER[package(other)] <= ORDER[package(name)]))
    ]
    assert above == []


def test_the_document_names_every_package_and_every_small_file_and_no_other() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in sources() if path.is_relative_to(ROOT)}
    folders = {name for name in folders if not name.endswith(".py")}
    assert folders == set(ORDER)
    assert len(folders) <= PACKAGES
    files = {path.name for path in ROOT.glob("*.py")} - {"__init__.py"}
    beside = DOCUMENT.split("Next to them:")[1].split("\n\n")[0]
    assert files == set(re.findall(r"`(\w+\.py)`", beside))


def test_no_folder_is_too_wide_to_look_through() -> None:
    width = Counter(path.parent for path in sources())
    assert {relative(folder): count for folder, count in width.items() if count > WIDEST} == {}


def test_every_file_the_document_names_exists_and_its_steps_are_joined() -> None:
    """Each file of a journey is imported by another file of it, is a program for nodes, or is data."""
    for name in re.findall(r"`((?:provision|roles|tests|playbooks)/[\w./]+)`", DOCUMENT):
        assert (ROOT.parent / name).exists(), name
    journeys = re.findall(r"^## (How an? .*? travels)\n(.*?)(?=^## )", DOCUMENT, re.M | re.S)
    assert len(journeys) == 5
    for title, body in journeys:
        files = re.findall(r"`provision/([\w./]+\.py)`", body)
        named = {dotted(ROOT / name) for name in files if not name.startswith("node/")}
        for name in named:
            near = graph()[name] | {other for other, others in graph().items() if name in others}
            assert near & named, f"{title}: no other file of this journey has to do with {name}"


def test_the_product_does_not_know_the_lab() -> None:
    """Neither imports nor strings mention the lab: its verb comes from an entry point."""
    for path in sorted(ROOT.rglob("*")):
        if path.is_file() and "_packed" not in path.parts and path.suffix != ".pyc":
            named = re.search(r"\bgpuprov_lab\b|\bprovision[./]lab\b", path.read_text("utf-8"))
            assert named is None, relative(path)


def test_the_lab_has_little_of_the_product() -> None:
    ours = {
        module
        for path in sources("lab/")
        for module in imports(path, types=True)
        if module.partition(".")[0] in ("provision", "gpuprov")
    }
    assert ours == set(OF_THE_LAB)


def test_checks_and_simulated_tools_share_nothing() -> None:
    """If they shared code, a misunderstanding of a tool in one would hide the same one in the other."""
    for path in sources("lab/silicon/"):
        assert not [module for module in imports(path, types=True) if module.startswith("provision")], (
            relative(path)
        )
        assert "provision.checks" not in text(path)
    for path in sources("checks/"):
        assert "silicon" not in text(path), relative(path)
    ours, theirs = (set().union(*map(meaning, sources(folder))) for folder in ("checks/", "lab/silicon/"))
    assert ours
    assert theirs
    assert not ours & theirs


def meaning(path: Path) -> set[str]:
    """Return the bodies of a file's functions that are longer than a line or two."""
    functions = (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))
    bodies = ("\n".join(ast.unparse(statement) for statement in function.body) for function in functions)
    return {body for body in bodies if len(body) > 120}


# --- the command line and the terminal ---

STREAMS = {"argv", "stdin", "stdout", "stderr"}
PROGRAMS = ("cli.py", "commands/", "lab/", "node/", "checks/on_node/")  # for people and for nodes
STREAMS_OWNER = "terminal.py"


def is_program(path: Path) -> bool:
    """Check whether a module is also a program when Python runs it, and so owns its streams."""
    tests = [one.test for one in tree(path).body if isinstance(one, ast.If)]
    return any(ast.unparse(test) == "__name__ == '__main__'" for test in tests)


def of_a_terminal(path: Path) -> Iterator[str]:
    """Yield a module's uses of features reserved for commands."""
    if "argparse" in imports(path, types=True):
        yield "imports argparse"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "provision.terminal":
            yield from (
                "draws a progress" for one in node.names if one.name in ("Progress", "Redrawn", "say")
            )
        elif isinstance(node, ast.Attribute) and node.attr in STREAMS and ast.unparse(node.value) == "sys":
            yield f"line {node.lineno}: sys.{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "input", "getpass.getpass"):
            yield f"line {node.lineno}: {ast.unparse(node.func)}()"


def test_only_commands_parse_draw_print_and_ask() -> None:
    strays = [
        f"{relative(path)}: {what}"
        for path in sources()
        if not relative(path).startswith((*PROGRAMS, STREAMS_OWNER)) and not is_program(path)
        for what in of_a_terminal(path)
    ]
    assert strays == []
    seen = " ".join(what for path in sources("commands/") for what in of_a_terminal(path))
    for what in ("imports argparse", "draws a progress", "sys.stdout", "sys.stdin", "getpass.getpass()"):
        assert what in seen, "it is not recognised"


def test_the_product_starts_no_command_line_of_its_own() -> None:
    """Exceptions: systemd starts the watch, and the lab restarts itself as root."""
    named, started = set(), set()
    for path in controller_sources():
        if relative(path).startswith("lab/"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and node.value == "provision.cli":
                named.add(relative(path))
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("own_command"):
                started |= {relative(path)} if not node.args else set()
    assert named == {"paths.py"}
    assert started == {"up/watch/unit.py"}


# --- size and names ---


def test_a_module_is_small_and_its_name_says_what_it_is() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
    assert [relative(path) for path in sources() if path.stem in empty] == []
    lines = {relative(path): len(text(path).splitlines()) for path in sources()}
    assert {name: count for name, count in lines.items() if count > LINES and name not in LONG} == {}
    assert [name for name in LONG if lines[name] <= LINES] == [], "explained as long, and short"


def test_the_program_that_observes_defines_no_name_twice() -> None:
    """The files of that program are concatenated into one text with a single namespace."""
    bodies = (statement for path in sources("node/observe/") for statement in tree(path).body)
    names = sorted(name for statement in bodies for name in defined(statement))
    assert names == sorted(set(names))


def defined(statement: ast.stmt) -> list[str]:
    """Return the names that a module's statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


# --- code for nodes ---

AFTER_36 = {
    "dataclasses",
    "contextvars",
    "graphlib",
    "tomllib",
    "zoneinfo",
    "importlib.resources",
    "importlib.metadata",
}
METHODS_AFTER_36 = {
    "removeprefix",
    "removesuffix",
    "fromisoformat",
    "time_ns",
    "perf_counter_ns",
    "is_relative_to",
}


def test_what_runs_on_nodes_is_python_36_and_standard_library() -> None:
    assert [f"{relative(path)}: {why}" for path in sources(*NODE_CODE) for why in unfit_for_nodes(path)] == []


def unfit_for_nodes(path: Path) -> Iterator[str]:
    silicon = LAB / "silicon"  # its programs import each other from that folder
    siblings = {other.stem for other in (silicon if silicon in path.parents else path.parent).iterdir()}
    for module in imports(path, types=True):
        top = module.partition(".")[0]
        # Concatenated on the node.
        ours = module.startswith(("provision.node.observe.", "provision.node.burnin."))
        ours = ours or module in ("provision.node.modules.gpuprov_run", "provision.node.scheduler_programs")
        # Part of the collection; its build writes the second module (scripts/collection.py).
        ours = ours or module in ("provision.node.description", "provision.node.products")
        known = ours or top in sys.stdlib_module_names | siblings | {"ansible"}
        # Runs next to Ansible, which requires that library itself.
        known = known or (path.stem == "gpuprov_receptor_authority" and top == "cryptography")
        if not known or module in AFTER_36:
            yield f"imports {module}"
    for node in ast.walk(tree(path)):  # parsed as Python 3.6
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            if "annotations" in {alias.name for alias in node.names}:
                yield "annotations of the future"
        elif isinstance(node, ast.Attribute) and node.attr in METHODS_AFTER_36:
            yield f"line {node.lineno}: {node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("subprocess."):
            late = {keyword.arg for keyword in node.keywords} & {"capture_output", "text"}
            if late:
                yield f"line {node.lineno}: {late} came with Python 3.7"


# --- a fast start ---

HEAVY = ("ansible_runner", "jinja2", "paramiko", "rich", "yaml")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import contextlib, io, sys\nfrom provision import cli\n"
        f"heavy = {HEAVY!r}\n"
        "for words in [], *([verb] for verb in cli.COMMANDS):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "        cli.main([*words, '--help'])\n"
        "    assert out.getvalue().startswith('usage: gpuprov'), words\n"
        "    assert not (found := [name for name in heavy if name in sys.modules]), (words, found)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


# --- the tests ---


def test_no_test_imports_a_test() -> None:
    """Shared code is a plain module in tests/support, or in the folder of the tests that share it."""
    tests = ROOT.parent / "tests"
    imported = re.compile(r"^ *(?:from|import) tests\b.*\b(?:test_\w+|conftest)\b.*", re.MULTILINE)
    found = [
        (str(path.relative_to(tests)), line)
        for path in tests.rglob("*.py")
        for line in imported.findall(text(path))
    ]
    assert found == []


def test_every_seam_has_a_whole_signature() -> None:
    """With `Callable[..., X]` mypy misses a missing argument; a Protocol or explicit arguments reveal it."""
    loose = re.compile(r"\bCallable\[\s*\.\.\.\s*,")
    assert [relative(path) for path in sources() if loose.search(text(path))] == []
