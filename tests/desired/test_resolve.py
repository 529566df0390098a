"""Templates over the whole inventory: equal results in `drift`, in the Ansible of `up` and in Ansible."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.commands import fleet_options
from provision.desired import inventory, resolve, variables
from provision.desired.role import all_defaults
from provision.desired.templating import BadTemplateError, Renderer
from provision.errors import StackError
from provision.fleet import Fleet
from provision.validate import validation
from tests.support import vault
from tests.support.described import machine

BIN = Path(sys.executable).parent
NODE = machine(sku="h100-sxm")
OPTION = "host_settings_sysctls"
TEMPLATES = {
    "member": "{{ groups['time'] | last }}",
    "count": "{{ groups['all'] | length }}",
    "place": "{{ groups['gpus'].index(inventory_hostname) }}",
    "mine": "{{ group_names | join(',') }}",
    "known": "{{ 'time' in groups }}",
    "servers": ["{{ groups['time'][0] }}", "{{ groups['time'][1] }}"],
    "through_another": "{{ servers | join(' ') }}",
    "of_another": "{{ hostvars['clock-2'].zone }}",
    "of_a_member": "{{ hostvars[groups['time'][0]].zone ~ groups['gpus'] | length }}",
    "from_a_file": "{{ lookup('file', inventory_dir ~ '/zone.txt') ~ groups['all'] | length }}",
    "data_like_a_template": "{{ lookup('file', inventory_dir ~ '/braces.txt') }}",
    "its_own_file": "{{ inventory_file | basename }}",
    "plain": "{{ 1 + 1 }}",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inventory")
    (folder / "hosts").write_text(
        "[gpus]\ngpu-01\ngpu-02\n[time]\nclock-1 zone=eu\nclock-2 zone=us\n[site:children]\ngpus\ntime\n"
    )
    (folder / "zone.txt").write_text("asia\n")
    (folder / "braces.txt").write_text("{{ 6 * 7 }}\n")
    (folder / "group_vars").mkdir()
    (folder / "group_vars" / "all.yml").write_text(yaml.safe_dump(TEMPLATES))
    return folder / "hosts"


@pytest.fixture(scope="module")
def truth(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return Ansible's own value of each template on gpu-02, given the unchanged inventory."""
    folder = tmp_path_factory.mktemp("play")
    content = "{{ dict(" + ", ".join(f"{name}={name}" for name in TEMPLATES) + ") | to_json }}"
    task = {"ansible.builtin.copy": {"content": content, "dest": str(folder / "said.json")}}
    play = {"hosts": "gpu-02", "connection": "local", "gather_facts": False, "tasks": [task]}
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    subprocess.run(
        [BIN / "ansible-playbook", "-i", source, folder / "play.yml"],
        env={**os.environ, "ANSIBLE_PYTHON_INTERPRETER": sys.executable},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return dict(json.loads((folder / "said.json").read_text()))


def seen_by_drift(fleet: Fleet, value: Any) -> tuple[resolve.View, Any]:
    declared = {name: {**node.variables, OPTION: value} for name, node in fleet.nodes.items()}
    view = resolve.resolve(fleet, declared).views["gpu-02"]
    return view, Renderer([{"gpuprov_node": NODE}, view, all_defaults()]).value("{{ " + OPTION + " }}")


def seen_by_up(view: resolve.View) -> Any:
    """Return the value that Ansible computes in `up`, which gives it one node of the fleet."""
    hosts = {"gpu-02": {**view.maps[1], **resolve.for_ansible(view, NODE)}}
    return resolve.ask_ansible(hosts, {"gpu-02": [OPTION]}, ())["gpu-02"][OPTION]


@pytest.fixture(scope="module")
def seen(source: Path) -> Mapping[str, tuple[Any, Any]]:
    """Return the values of each template on gpu-02 in `drift` and in `up`.
    All share one option, since each costs a start of Ansible; `plain` has another, to be resolved alone."""
    selected = inventory.select(inventory.load(source), "gpu-02")  # the templates refer to the other nodes
    values: dict[str, tuple[Any, Any]] = {}
    for names in (TEMPLATES.keys() - {"plain"}, {"plain"}):
        view, by_drift = seen_by_drift(selected, {name: "{{ " + name + " }}" for name in names})
        by_up = seen_by_up(view)
        values |= {name: (by_drift[name], by_up[name]) for name in names}
    return values


@pytest.mark.parametrize("name", TEMPLATES)
def test_drift_and_up_see_what_ansible_sees(
    name: str, seen: Mapping[str, tuple[Any, Any]], truth: Mapping[str, Any]
) -> None:
    """If `drift` expected other values than `up` sets, it would report drift forever."""
    assert seen[name] == (truth[name], truth[name])


def test_which_file_of_a_folder_names_a_node_is_not_known(source: Path) -> None:
    """Undefined is better than a wrong value."""
    _, value = seen_by_drift(inventory.load(source.parent), "{{ inventory_dir }}")
    assert value == str(source.parent)
    with pytest.raises(BadTemplateError, match="'inventory_file' is undefined"):
        seen_by_drift(inventory.load(source.parent), "{{ inventory_file }}")


def test_what_mentions_no_group_is_left_as_it_was_declared(source: Path) -> None:
    """Ansible renders it, since an option may depend on values that only the task has."""
    view, _ = seen_by_drift(inventory.load(source), {"a": "{{ plain }}"})
    assert resolve.for_ansible(view, NODE).keys() == {"inventory_dir", "inventory_file"}


def test_a_vaulted_variable_behind_an_option_is_a_secret(tmp_path: Path) -> None:
    password = vault.password_file(tmp_path)
    vaulted = vault.variable(password, "word", "sesame-open")
    (tmp_path / "hosts").write_text("[gpus]\ngpu-01\ngpu-02\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gpus.yml").write_text(
        f"{vaulted}mirror: 'https://site:{{{{ word }}}}@mirror'\n"
        "nvidia_repository_cuda_url: '{{ mirror }}/cuda'\n"
    )
    fleet = inventory.load(tmp_path, [password])
    declared = {name: node.variables for name, node in fleet.nodes.items()}
    resolved = resolve.resolve(fleet, declared)
    assert resolved.secrets == {"sesame-open"}
    view = resolved.views["gpu-02"]
    assert view["nvidia_repository_cuda_url"] == "https://site:sesame-open@mirror/cuda"
    assert "word" not in resolve.for_ansible(view, NODE)  # Ansible has the vaulted variable and its password

    unlocked = Fleet(fleet.source, fleet.nodes, fleet.groups)
    with pytest.raises(StackError, match=r"gpu-01: word is vaulted") as caught:
        resolve.resolve(unlocked, declared)
    assert "--vault-password-file" in caught.value.fix


OWN = """\
all:
  hosts:
    gpu-01: {gpuprov_rack_loads: "{{ [2, 3] | min }}"}
    gpu-02: {}
  vars:
    gpuprov_rack: "{{ lookup('env', 'RACK') or 'rack-' ~ 7 }}"
    gpuprov_address: "{{ inventory_hostname }}.fabric"
    gpuprov_container_image: "nvcr.io/cuda:{{ cuda_toolkit_version }}"
    gpuprov_slurm_options: ["--partition={{ lookup('file', inventory_dir ~ '/partition') }}"]
    cuda_toolkit_version: "13.0"
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def loaded(source: Path, *arguments: str) -> tuple[Fleet, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    fleet_options.add_arguments(parser)
    return fleet_options.load(parser.parse_args([str(source), *arguments]))


@pytest.mark.usefixtures("state")
def test_variables_for_gpuprov_itself_are_rendered_by_whoever_can(tmp_path: Path) -> None:
    """Readers use `gpuprov_rack` unrendered, so it is resolved before any of them."""
    (tmp_path / "hosts.yml").write_text(OWN)
    (tmp_path / "partition").write_text("gpu\n")
    options = ('gpuprov_nccl_net=\'{{ lookup("vars", "net") }}\'', "net=IB", "gpuprov_wave=2")
    fleet, overrides = loaded(tmp_path / "hosts.yml", *(f"--set={option}" for option in options))
    assert overrides == {"net": "IB", "gpuprov_wave": 2}  # the others are in the nodes' variables
    found = validation.plain_variables(fleet, overrides)["gpu-01"]
    assert {name: found[name] for name in found if name.startswith("gpuprov_")} == {
        "gpuprov_rack": "rack-7",
        "gpuprov_rack_loads": 2,
        "gpuprov_address": "gpu-01.fabric",
        "gpuprov_container_image": "nvcr.io/cuda:13.0",
        "gpuprov_slurm_options": ["--partition=gpu"],
        "gpuprov_nccl_net": "IB",
        "gpuprov_wave": 2,
    }
    variables.check(fleet, overrides)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ lookup('file', '/nonexistent') }}", "Ansible cannot resolve gpuprov_rack: .*nonexistent"),
        ("{{ rack_of_nobody }}", "gpuprov_rack: 'rack_of_nobody' is undefined"),
    ],
)
def test_what_cannot_be_rendered_is_named_with_its_line_and_node(
    template: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("gpu-01\n[all:vars]\n" + f'gpuprov_rack="{template}"\n')
    with pytest.raises(StackError, match=rf"{tmp_path}/hosts:3: gpu-01: {said}"):
        loaded(tmp_path / "hosts")
    with pytest.raises(StackError, match=rf"^--set: gpu-01: {said}"):
        loaded(tmp_path / "hosts", "--set", f'gpuprov_rack="{template}"')


@pytest.mark.parametrize(
    ("variable", "loaded"),
    [("ansible_user: admin", False), ('ansible_host: "{{ inventory_hostname }}.lan"', True)],
)
def test_the_template_engine_is_loaded_for_templates_alone(
    tmp_path: Path, variable: str, loaded: bool
) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(f"all: {{hosts: {{gpu-01: {{{variable}}}}}}}\n")
    program = (
        "import sys; from provision.api import fleets; from provision.api.source import Source; "
        "fleets.load(Source(inventories=sys.argv[1])); print('jinja2' in sys.modules)"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)],
        check=True, capture_output=True, text=True, env=environment, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"{loaded}\n"
