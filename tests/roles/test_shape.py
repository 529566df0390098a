"""Every role has the same shape, and its files agree with each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision import paths
from provision.desired import expectations
from provision.desired.role import all_roles, steps_without_packages
from tests.support import modules

# All other roles depend on node_facts, which installs nothing and sets no expectation.
ROLES = sorted(path.name for path in paths.ROLES.iterdir() if path.is_dir() and path.name != "node_facts")
OUR_MODULES = {file.stem for file in paths.MODULES.glob("gpuprov_*.py")}
ORDER = [
    "nvidia_repository",
    "amd_repository",
    "rdma",
    "nvidia_driver",
    "amdgpu_driver",
    "amd_gpu_settings",
    "nvlink",
    "gpu_settings",
    "cuda_toolkit",
    "nccl",
    "rccl",
    "rocm",
    "container_toolkit",
    "amd_container_toolkit",
    "gpudirect_rdma",
    "host_settings",
    "validation_tools",
    "amd_validation_tools",
    "gpu_metrics",
    "node_health",
    "slurm_health",
    "monitoring",
    "receptor",
    "package_lock",
]
# Off until enabled, so that an upgrade of gpuprov adds no service and opens no port.
OFF_BY_DEFAULT = {"gpu_metrics", "node_health", "slurm_health", "monitoring", "receptor"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def flat(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return these tasks including those nested in blocks."""
    nested = []
    for task in tasks:
        nested.append(task)
        for part in ("block", "rescue", "always"):
            nested.extend(flat(task.get(part, [])))
    return nested


def tasks_of(role: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every task and handler of a role, nested and shared ones too, with its file name."""
    files = [*(paths.ROLES / role / "tasks").glob("*.yml"), *(paths.ROLES / role / "handlers").glob("*.yml")]
    own = [(file.name, task) for file in files for task in flat(load(file) or [])]
    shared = {file.resolve() for _, task in own for file in included(task, role)} - {
        *map(Path.resolve, files)
    }
    return own + [(file.name, task) for file in sorted(shared) for task in flat(load(file))]


KEYWORDS = frozenset(
    (
        *("name", "when", "vars", "register", "loop", "loop_control", "notify", "until", "retries", "delay"),
        *("block", "rescue", "always", "changed_when", "failed_when", "check_mode", "environment", "tags"),
        *("no_log", "delegate_to", "become"),
    )
)


def action(task: dict[str, Any]) -> str | None:
    names = set(task) - KEYWORDS
    assert len(names) <= 1, f"not one action but {names} in {task.get('name')}"
    return names.pop() if names else None


def included(task: dict[str, Any], role: str) -> list[Path]:
    """Return the task files a task may include: for a computed name, those it mentions, or all."""
    named = task.get("ansible.builtin.import_tasks") or task.get("ansible.builtin.include_tasks") or ""
    named = named["file"] if isinstance(named, dict) else named
    folder = paths.ROLES / role / "tasks"
    if "{{" not in named:
        return [folder / named] if named else []
    files = [folder / f"{stem}.yml" for stem in re.findall(r"'(\w+)'", named)]
    return [file for file in files if file.is_file()] or sorted(folder.glob("*.yml"))


def actions_of_step(role: str, step: str) -> set[str | None]:
    """Return the modules of the tasks with this tag, including their included tasks."""
    actions, seen = set[str | None](), set[Path]()
    waiting = [task for task in load(paths.ROLES / role / "tasks/main.yml") if step in task.get("tags", [])]
    while waiting:
        for task in flat([waiting.pop()]):
            actions.add(action(task))
            for file in included(task, role):
                if file not in seen:
                    seen.add(file)
                    waiting += load(file) or []
    return actions


@pytest.mark.parametrize("role", ROLES)
def test_nothing_depends_on_which_roles_run_together(role: str) -> None:
    """`up` runs only the roles a node needs now, but the node's expectations come from all its roles."""
    folder = paths.ROLES / role
    files = [*folder.glob("defaults/*.yml"), *folder.glob("vars/*.yml"), *folder.glob("templates/*")]
    for file in [*files, folder / "expect.yml"]:
        assert "gpuprov_roles" not in file.read_text(), file


OF_PACKAGES = {"gpuprov_packages", "ansible.builtin.apt", "ansible.builtin.dnf", "ansible.builtin.package"}


@pytest.mark.parametrize("step", sorted(steps_without_packages()))
def test_a_step_that_is_said_to_leave_packages_alone_does(step: str) -> None:
    (role,) = (name for name in ROLES if step.startswith(f"{name}_"))
    found = actions_of_step(role, step)
    assert found, "no task has this tag"
    assert not found & OF_PACKAGES


def test_the_step_that_installs_a_driver_does_not() -> None:
    assert actions_of_step("nvidia_driver", "nvidia_driver_install") & OF_PACKAGES


def test_the_order_of_roles_is_the_playbooks() -> None:
    assert list(expectations.roles_in_order()) == list(all_roles()) == ORDER
    assert sorted(ORDER) == ROLES


@pytest.mark.parametrize("role", ROLES)
def test_a_byte_in_a_template_is_made_by_yaml(role: str) -> None:
    """Inside a template, Ansible keeps \\x01 as four characters, which equal nothing."""
    for file in (paths.ROLES / role).rglob("*.yml"):
        assert r"== '\\x" not in json.dumps(load(file)), file


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_all_its_parts(role: str) -> None:
    folder = paths.ROLES / role
    parts = "README.md expect.yml defaults/main.yml meta/main.yml meta/argument_specs.yml tasks/main.yml"
    parts += " tasks/preflight.yml tasks/remove.yml vars/debian.yml vars/ubuntu.yml vars/redhat.yml"
    for part in parts.split():
        assert (folder / part).is_file(), part


@pytest.mark.parametrize("role", ROLES)
def test_a_role_depends_on_the_description_of_the_node(role: str) -> None:
    wanted = {"role": "node_facts", "tags": ["always", "node_facts"]}  # also if a play selects tags
    assert load(paths.ROLES / role / "meta/main.yml")["dependencies"] == [wanted]


def test_fabric_manager_alone_has_the_version_of_the_drivers_default() -> None:
    driver = load(paths.ROLES / "nvidia_driver/defaults/main.yml")["nvidia_driver_version"]
    fabric = load(paths.ROLES / "nvlink/defaults/main.yml")["nvlink_version"]
    assert f"default('{driver}')" in fabric


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_spec_are_one_interface(role: str) -> None:
    defaults = load(paths.ROLES / role / "defaults/main.yml")
    options = load(paths.ROLES / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(defaults) == set(options)
    for name, value in defaults.items():
        option = options[name]
        assert name.startswith(f"{role}_")
        assert option["description"]
        if isinstance(value, str) and "{{" in value:
            assert "default" not in option, f"{name} is computed; the spec cannot state its default"
        else:
            assert option["default"] == value, name
            # Ansible compares a default, even null, with the choices and rejects the role otherwise.
            each = value if isinstance(value, list) else [value]
            assert all(one in option.get("choices", each) for one in each), name
    assert defaults[f"{role}_enabled"] is (role not in OFF_BY_DEFAULT)


@pytest.mark.parametrize("role", ROLES)
def test_defaults_need_nothing_that_a_task_has_to_load(role: str) -> None:
    """Ansible renders every default of the argument spec before the role's first task loads its names."""
    variables = load(paths.ROLES / role / "vars/main.yml")
    needed = re.findall(r"\b__\w+", (paths.ROLES / role / "defaults/main.yml").read_text())
    for name in needed:
        assert name in variables, name
        needed += [each for each in re.findall(r"\b__\w+", str(variables[name])) if each not in needed]


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_explains_every_variable(role: str) -> None:
    text = (paths.ROLES / role / "README.md").read_text()
    for name in load(paths.ROLES / role / "defaults/main.yml"):
        # Table rows may share a stem: `x_url`, `_sha256`.
        words = name.split("_")
        tails = {"_" + "_".join(words[cut:]) for cut in range(1, len(words))}
        named = name in text or any(f"`{tail}`" in text for tail in tails)
        shared = re.sub(r"_(all_gather|reduce_scatter|alltoall)_perf_path$", "_all_reduce_perf_path", name)
        assert named or shared in text, name


@pytest.mark.parametrize("role", ROLES)
def test_tasks_use_builtin_modules_or_ours_by_full_name(role: str) -> None:
    tasks = tasks_of(role)
    assert tasks
    for file, task in tasks:
        name = action(task)
        if name is None:
            continue
        assert name.startswith("ansible.builtin.") or name in OUR_MODULES, f"{role}/{file}: {name}"
        assert "ignore_errors" not in task
        if name in ("ansible.builtin.command", "ansible.builtin.shell"):
            assert "changed_when" in task, f"{role}/{file}: {task['name']}"
            assert "argv" in task[name], f"{role}/{file}: {task['name']} is text, not an argument list"


def options_of(module: str) -> set[str]:
    return set(yaml.safe_load(modules.load(module).DOCUMENTATION)["options"])


@pytest.mark.parametrize("role", [*ROLES, "node_facts"])
def test_tasks_give_our_modules_options_that_they_have(role: str) -> None:
    for file, task in tasks_of(role):
        for name in OUR_MODULES & set(task):
            assert set(task[name]) <= options_of(name), f"{role}/{file}: {task['name']}"


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_that_a_role_enables_is_unmasked(role: str) -> None:
    """systemd neither enables nor starts a masked unit, so each `up` would fail at it."""
    for file, task in tasks_of(role):
        options = task.get("ansible.builtin.systemd_service", {})
        if "enabled" in options and not file.startswith("remove"):
            assert options.get("masked") is False, f"{file}: {task['name']}"


@pytest.mark.parametrize("role", ROLES)
def test_main_is_a_table_of_contents_that_respects_enabled(role: str) -> None:
    for entry in load(paths.ROLES / role / "tasks/main.yml"):
        assert action(entry) in ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks")
        assert f"{role}_enabled" in entry["when"]


@pytest.mark.parametrize("role", ROLES)
def test_each_step_has_a_tag_and_begins_with_the_preflight(role: str) -> None:
    preflight, *entries = load(paths.ROLES / role / "tasks/main.yml")
    tags = {tag for entry in entries for tag in entry["tags"]}
    assert set(preflight["tags"]) == tags
    for entry in (preflight, *entries):
        assert entry["tags"][0] == role
        assert all(tag.startswith(f"{role}_") for tag in entry["tags"][1:])
        included = entry.get("ansible.builtin.include_tasks")
        assert included is None or included["apply"]["tags"] == entry["tags"], "an include's tags are its own"
    steps = [str(item["step"]) for item in load(paths.ROLES / role / "expect.yml") if "step" in item]
    for step in steps:
        (name,) = re.findall(r"ternary\('', '(\w+)'\)", step) or [step]
        assert f"{role}_{name}" in tags


@pytest.mark.parametrize("role", ROLES)
def test_preflight_changes_nothing(role: str) -> None:
    looking = {"assert", "include_vars", "command", "find", "stat", "slurp", "set_fact"}
    for file, task in tasks_of(role):
        if not file.startswith("preflight"):
            continue
        name = action(task)
        if name == "ansible.builtin.include_tasks":
            assert task[name].startswith("preflight_")
            continue
        if name == "ansible.builtin.import_tasks":
            assert task[name] in (f"../../node_facts/tasks/{file}.yml" for file in ("names", "refuse"))
            continue
        ours = ("gpuprov_packages", "gpuprov_gpu_settings", "gpuprov_amd_gpu_settings", "gpuprov_look")
        assert name in ours or name in {f"ansible.builtin.{each}" for each in looking}, name
        if name == "ansible.builtin.command":
            assert task["changed_when"] is False
        if name == "gpuprov_packages":
            assert task[name]["state"] == "asked"
        if name == "ansible.builtin.assert":
            assert len(task[name]["fail_msg"]) > 40, f"{role}: a refusal says what to do"


@pytest.mark.parametrize("role", ROLES)
def test_files_are_written_by_templates_the_controller_can_render(role: str) -> None:
    templates = {path.name for path in (paths.ROLES / role / "templates").glob("*")}
    written = [task for _, task in tasks_of(role) if "ansible.builtin.template" in task]
    for arguments in (task["ansible.builtin.template"] for task in written):
        assert (arguments["owner"], arguments["group"]) == ("root", "root"), arguments["src"]
        assert arguments["mode"] in ("0644", "0755"), arguments["src"]
    used = {task["ansible.builtin.template"]["src"] for task in written}
    looked_up = "\n".join(json.dumps(task) for _, task in tasks_of(role) if "gpuprov_files" in task)
    used.update(re.findall(r"lookup\('ansible\.builtin\.template', '([^']+)'[,)]", looked_up))
    promised = {item["template"] for item in load(paths.ROLES / role / "expect.yml") if "template" in item}
    promised |= {
        item["template_sha256"]
        for item in load(paths.ROLES / role / "expect.yml")
        if "template_sha256" in item
    }
    assert templates == used == promised
