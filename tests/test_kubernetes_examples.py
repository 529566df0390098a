"""docs/examples/kubernetes: the manifests match gpuprov's interfaces. tests/remote/test_kubernetes.py
checks the rights of rbac.yml."""

from __future__ import annotations

import json

import yaml

from provision.checks.on_node import entry, styles
from provision.desired import compatibility
from provision.paths import DOCS, ROLES

FOLDER = DOCS / "examples" / "kubernetes"


def test_node_problem_detector_calls_the_program_that_the_role_installs() -> None:
    config = json.loads((FOLDER / "node-problem-detector.json").read_text("utf-8"))
    (rule,) = config["rules"]
    installed = yaml.safe_load((ROLES / "node_health" / "vars" / "main.yml").read_text("utf-8"))
    assert rule["path"] == installed["__node_health_path"]
    assert config["pluginConfig"]["max_output_length"] == styles.NPD_BYTES
    called = entry._options(rule["args"])
    assert (called.word, called.last) == ("npd", True)
    # A permanent rule needs a default for its condition, meaning no problem.
    (default,) = config["conditions"]
    assert (rule["type"], rule["condition"]) == ("permanent", default["type"])
    assert default["type"] != "GpuHealthy", "that one is True when all is well"
    assert "skip_initial_status" not in config["pluginConfig"], "no condition is ever set with it"


def test_the_operator_leaves_to_gpuprov_what_its_roles_own() -> None:
    values = yaml.safe_load((FOLDER / "gpu-operator-values.yml").read_text("utf-8"))
    owned = {"driver": "nvidia_driver", "toolkit": "container_toolkit", "migManager": "gpu_settings"}
    off = {name for name, settings in values.items() if settings == {"enabled": False}}
    assert off == set(owned)
    (rule,) = (one for one in compatibility._rules() if one.id == "gpu-operator-driver")
    assert set(owned.values()) <= set(rule.data["roles"])
    assert (FOLDER / "gpu-operator-values.yml").name in rule.data["fix"]
