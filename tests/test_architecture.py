"""The house rules a reader of the code relies on: who owns which library, imports whom, and runs where."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from provision import cli

ROOT = Path(cli.__file__).resolve().parent
NODE_CODE = ("node/", "lab/silicon/")  # sent to nodes: standard library only, as old as Python 3.6

# Each library is known by as few files as can be; what it changes, they change.
OWNERS = {
    "ansible_runner": {"runner.py", "worker_entry.py", "worker_runs.py"},
    "cryptography": {"launch_keys.py"},
    "jinja2": {"templating.py", "report/html.py"},
    "jsonschema": set(),  # the schema is held by tests; the program reads reports with health.from_json
    "matplotlib": {"report/canvas.py"},
    "markupsafe": {"report/fleet_rows.py", "report/html.py"},
    "packaging": set(),
    "paramiko": {"ssh.py", "ssh_login.py"},
    "pytest": {"testinfra_suite/plugin.py"},
    "rich": {"terminal.py"},
    "shtab": {"cli.py"},
    "testinfra": {"testinfra_suite/fleet.py"},
    # yamlfile reads what users write, documents their inventories event by event; the others read shipped
    # data, or write the lab's inventory.
    "yaml": {
        "yamlfile.py",
        "plain_inventory/documents.py",
        "thresholds.py",
        "checks/kernel_log.py",
        "checks/limits.py",
        "lab/inventory_file.py",
        "lab/packages.py",
    },
}

# From the top down. A module imports from its own layer and those below; a folder stands for what is in it.
LAYERS: tuple[tuple[str, set[str]], ...] = (
    ("the command line, and pytest's", {"cli", "testinfra_suite"}),
    ("one file per verb", {"commands"}),
    ("simulated nodes", {"lab"}),
    (
        "what a verb does",
        {
            "baseline",
            "baseline_certainty",
            "campaign",
            "check_settings",
            "plan_report",
            "report_context",
            "seen",
            "shown",
        }
        | {"seen", "shown", "starter", "validation"}
        | {"burnin", "selftest"}
        | {
            "checks_asked",
            "drift_formats",
            "drift_report",
            "fleet_pairs",
            "fleet_stream",
            "outliers",
        }
        | {"node_commands", "pair_campaign", "pair_plays", "perftest_pairs"}
        | {"launch", "nccl_pairs"}
        | {
            "health_gate",
            "hooks",
            "up_execute",
            "up_executor",
            "up_result",
            "up_resume",
            "up_run",
            "up_types",
        },
    ),
    ("reports", {"report"}),
    (
        "what differs, and what to do about it",
        {
            "ask_ansible",
            "assess",
            "drift",
            "history",
            "lock_sources",
            "package_changes",
            "plan",
            "resolve",
            "waves",
        }
        | {"diagnosis"},
    ),
    (
        "reaching nodes",
        {
            "ansible_events",
            "ansible_handover",
            "ansible_messages",
            "fault_causes",
            "answer",
            "connection",
            "crew",
            "level",
            "own_limits",
            "hops",
            "host_keys",
        }
        | {
            "known_hosts",
            "node_error",
            "node_program",
            "fleet_lock",
            "launch_keys",
            "observe",
            "question",
            "same_machine",
            "remote_python",
            "runner",
            "ssh",
            "ssh_config",
            "ssh_login",
        }
        | {"fanout", "ssh_processes", "ssh_threads", "interrupts", "processes", "shards", "streams"}
        | {"workers", "worker_asks", "worker_entry", "worker_link", "worker_runs", "worker_stream"},
    ),
    (
        "what is declared",
        {"ansible_inventory", "compatibility", "compatibility_rules", "expectations", "inventory"}
        | {"lockfile", "majority", "patterns", "plain_inventory"}
        | {"role", "skus", "stack", "template_filters", "templating", "variables"},
    ),
    (
        "what is measured",
        {
            "checks",
            "fingerprint",
            "health",
            "json_lines",
            "judge",
            "lazy_rows",
            "node_history",
            "store",
            "stored_health",
            "suspects",
            "thresholds",
            "threshold_evidence",
        }
        | {"fleet_judge", "fleet_metrics", "pairs", "threshold_metrics", "offenders"},
    ),
    (
        "words and files",
        {
            "atomic_file",
            "errors",
            "nearest",
            "paths",
            "node_names",
            "render_cache",
            "secrets_mask",
            "shared_facts",
            "parallel_map",
            "student_t",
            "wording",
            "terminal",
            "versions",
            "yamlfile",
        },
    ),
)

LINES = 400  # of a module
# Longer ones, with the reason.
LONG = {
    "node/modules/gpuprov_run.py": "an Ansible module is one file, and this one has to outlive what it runs",
    "node/modules/gpuprov_burnin.py": "an Ansible module is one file; each state of it is a few lines",
}


def sources(*below: str) -> list[Path]:
    """The package's files (of these folders), by path."""
    files = (path for path in ROOT.rglob("*.py") if "_packed" not in path.parts)
    return sorted(path for path in files if not below or relative(path).startswith(below))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def controller_sources() -> list[Path]:
    return [path for path in sources() if not relative(path).startswith(NODE_CODE)]


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """Parsed once; what runs on nodes as Python 3.6 would parse it."""
    old = relative(path).startswith(NODE_CODE) if path.is_relative_to(ROOT) else False
    return ast.parse(text(path), feature_version=(3, 6) if old else None)


@cache
def is_module(name: str) -> bool:
    inside = ROOT.parent.joinpath(*name.split("."))
    return inside.with_suffix(".py").exists() or (inside / "__init__.py").exists()


@cache
def imports(path: Path, types: bool = False) -> tuple[str, ...]:
    """Every module a file imports, inside functions too; `types` adds what only type checkers see."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # no import is in one
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
    """`report.html` for report/html.py, `report` for its __init__."""
    return relative(path).removesuffix(".py").removesuffix("__init__").strip("/").replace("/", ".")


@cache
def graph(types: bool = False) -> dict[str, set[str]]:
    """Our modules on the controller, and which of ours each imports when it runs, or for its `types` too."""
    names = {dotted(path): path for path in controller_sources() if dotted(path)}
    return {
        name: {
            found
            for module in imports(path, types)
            if module.startswith("provision.") and (found := module.removeprefix("provision.")) in names
        }
        - {name}
        for name, path in names.items()
    }


def layer(name: str) -> int:
    """The layer of a module: of its own name, else of the folder it is in."""
    for known in (name, name.partition(".")[0]):
        for number, (_, members) in enumerate(LAYERS):
            if known in members:
                return number
    raise AssertionError(f"say in LAYERS where provision.{name} belongs")


# --- libraries ---


def libraries() -> list[tuple[str, str]]:
    ours = sys.stdlib_module_names | {"provision"}
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


def test_ansible_itself_is_imported_nowhere_but_in_our_modules_for_it() -> None:
    for path in sources():
        for module in imports(path, types=True):
            if module.partition(".")[0] == "ansible":
                assert relative(path).startswith("node/modules/"), relative(path)
                assert module.startswith("ansible.module_utils"), f"{relative(path)}: {module}"


# --- who may import whom ---


def packages(name: str) -> set[str]:
    """The packages a module is in: Python runs their __init__ first."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def test_no_two_modules_need_each_other() -> None:
    """Not through the __init__ of a package, so every module can be imported first; nor for types."""
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle of imports: {' -> '.join((*way[way.index(name) :], name))}"
        if name in done:
            return
        first = {package for other in graph()[name] for package in packages(other)}
        inside = {name, *packages(name)}
        needed = graph(types=True)[name] - ({"observe"} if name == "direct" else set())  # `Asked` is to move
        for other in sorted(needed | (first & graph().keys()) - inside):
            visit(other, (*way, name))
        done.add(name)

    for name in graph():
        visit(name, ())


def test_no_judge_knows_a_format_of_reports() -> None:
    judges = {name for name in graph() if name.endswith("judge")} | {"campaign", "fleet_stream", "health"}
    known = {(name, other) for name in judges for other in graph(types=True)[name] if "report" in other}
    assert known == set()


def test_every_module_can_be_imported() -> None:
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    subprocess.run(
        [sys.executable, "-c", program, *(f"provision.{name}" for name in sorted(graph()))],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        timeout=100,
        check=True,
    )


def test_a_module_imports_downwards_only() -> None:
    upwards = [
        f"provision.{name} ({LAYERS[layer(name)][0]}) imports {other} from above"
        for name, others in graph().items()
        for other in sorted(others)
        if layer(other) < layer(name)
    ]
    assert upwards == []


def test_the_product_does_not_know_the_lab() -> None:
    for path in controller_sources():
        if relative(path).startswith("lab/") or relative(path) == "commands/lab.py":
            continue
        known = [module for module in imports(path, types=True) if module.startswith("provision.lab")]
        assert known == [], relative(path)


def test_checks_and_simulated_tools_share_nothing() -> None:
    """One misreading of a tool must not hide the other."""
    for path in sources("lab/silicon/"):
        assert not [module for module in imports(path, types=True) if module.startswith("provision")], (
            relative(path)
        )
        assert "provision.checks" not in text(path)
    for path in sources("checks/", "lab/"):
        if relative(path).startswith("checks/"):
            assert "silicon" not in text(path), relative(path)
        else:
            assert not [module for module in imports(path) if module.startswith("provision.checks")], (
                relative(path)
            )
    ours, theirs = (set().union(*map(meaning, sources(folder))) for folder in ("checks/", "lab/silicon/"))
    assert ours
    assert theirs
    assert not ours & theirs


def meaning(path: Path) -> set[str]:
    """The bodies of a file's functions, as far as they are longer than a line or two."""
    functions = (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))
    bodies = ("\n".join(ast.unparse(statement) for statement in function.body) for function in functions)
    return {body for body in bodies if len(body) > 120}


# --- size and names ---


def test_a_module_is_small_and_its_name_says_what_it_is() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
    assert [relative(path) for path in sources() if path.stem in empty] == []
    lines = {relative(path): len(text(path).splitlines()) for path in sources()}
    assert {name: count for name, count in lines.items() if count > LINES and name not in LONG} == {}
    assert [name for name in LONG if lines[name] <= LINES] == [], "explained as long, and short"


@pytest.mark.parametrize(
    "files", [("node/observe/",), ("node/burnin/", "node/modules/gpuprov_run.py")], ids=["observe", "burnin"]
)
def test_a_program_for_nodes_defines_no_name_twice(files: tuple[str, ...]) -> None:
    """Its files become one text, with one namespace."""
    names = [name for path in sources(*files) for statement in tree(path).body for name in defined(statement)]
    ours = [name for name in names if name not in {"DOCUMENTATION", "EXAMPLES", "RETURN"}]
    assert sorted(ours) == sorted(set(ours))


def defined(statement: ast.stmt) -> list[str]:
    """The names a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


# --- what runs on nodes ---

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
    silicon = ROOT / "lab" / "silicon"  # its programs find each other from that folder
    siblings = {other.stem for other in (silicon if silicon in path.parents else path.parent).iterdir()}
    for module in imports(path, types=True):
        top = module.partition(".")[0]
        # One text on the node.
        ours = module.startswith(("provision.node.observe.", "provision.node.burnin."))
        ours = ours or module == "provision.node.modules.gpuprov_run"
        known = ours or top in sys.stdlib_module_names | siblings | {"ansible"}
        if not known or module in AFTER_36:
            yield f"imports {module}"
    for node in ast.walk(tree(path)):  # the tree is that of Python 3.6
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            if "annotations" in {alias.name for alias in node.names}:
                yield "annotations of the future"
        elif isinstance(node, ast.Attribute) and node.attr in METHODS_AFTER_36:
            yield f"line {node.lineno}: {node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("subprocess."):
            late = {keyword.arg for keyword in node.keywords} & {"capture_output", "text"}
            if late:
                yield f"line {node.lineno}: {late} came with Python 3.7"


# --- a light start ---

HEAVY = ("ansible_runner", "jinja2", "jsonschema", "matplotlib", "paramiko", "rich", "yaml")


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
    """What several share is a plain module: in tests/support, or in the folder of those that share it."""
    tests = ROOT.parent / "tests"
    imported = re.compile(r"^ *(?:from|import) tests\b.*\b(?:test_\w+|conftest)\b.*", re.MULTILINE)
    found = [
        (str(path.relative_to(tests)), line)
        for path in tests.rglob("*.py")
        for line in imported.findall(text(path))
    ]
    assert found == []
