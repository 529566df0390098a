"""nvidia-ctk: cdi list and generate, runtime configure, --version; plausible files at the real places."""

import json
import os
import re
import sys
import time
from pathlib import Path

_CONTAINERD = """\
version = {version}

[plugins]

  [plugins."{plugin}"]

    [plugins."{plugin}".containerd]
{default}
      [plugins."{plugin}".containerd.runtimes]

        [plugins."{plugin}".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_engine = ""
          runtime_root = ""
          runtime_type = "io.containerd.runc.v2"

          [plugins."{plugin}".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
"""
_CRIO = """
[crio]

  [crio.runtime]

    [crio.runtime.runtimes]

      [crio.runtime.runtimes.nvidia]
        runtime_path = "/usr/bin/nvidia-container-runtime"
        runtime_type = "oci"
"""


def nvidia_ctk(node, arguments: list) -> int:
    """The whole program."""
    version = os.environ.get("SILICON_VERSION") or "1.18.0"
    words = [word for word in arguments if word not in ("--debug", "--quiet", "-d", "-q")]
    if words in (["--version"], ["-v"]):
        print(
            f"NVIDIA Container Toolkit CLI version {version}\ncommit: "
            "0000000000000000000000000000000000000000"
        )
        return 0
    flags = {name: value for name, _, value in (word.partition("=") for word in words[2:])}
    if words[:2] == ["cdi", "list"]:
        return _list(node)
    if words[:2] == ["cdi", "generate"]:
        return _generate(node, flags.get("--output", ""))
    if words[:2] == ["runtime", "configure"]:
        return _configure(node, flags)
    _log("error", f"unknown command: {' '.join(arguments)}")
    return 1


def _log(level: str, text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f'time="{stamp}" level={level} msg="{text}"', file=sys.stderr)


def _names(node) -> list:
    gpus = node.usable() if node.driver() else []
    return [str(i) for i in range(len(gpus))] + [gpu["uuid"] for gpu in gpus] + (["all"] if gpus else [])


def _list(node) -> int:
    found = []
    for place in ("etc/cdi", "var/run/cdi", "run/cdi"):
        for path in sorted((node.root / place).glob("*.yaml")):
            names = re.findall(r'^ +- name: "(.*)"$', path.read_text(), re.MULTILINE)
            found = sorted({*found, *(f"nvidia.com/gpu={name}" for name in names)})
    _log("info", f"Found {len(found)} CDI devices")
    print("".join(name + "\n" for name in found), end="")
    return 0


def _generate(node, output: str) -> int:
    if node.driver() is None:
        _log(
            "error",
            "failed to generate CDI spec: failed to create device CDI specs: failed to initialize NVML: "
            "ERROR_DRIVER_NOT_LOADED",
        )
        return 1
    lines = ["---", "cdiVersion: 0.5.0", "kind: nvidia.com/gpu", "devices:"]
    for i, name in enumerate(_names(node)):
        lines += [
            f'  - name: "{name}"',
            "    containerEdits:",
            "      deviceNodes:",
            f"        - path: /dev/nvidia{i % len(node.usable())}",
        ]
    lines += [
        "containerEdits:",
        "  deviceNodes:",
        "    - path: /dev/nvidiactl",
        "    - path: /dev/nvidia-uvm",
    ]
    text = "\n".join(lines) + "\n"
    if not output:
        print(text, end="")
        return 0
    path = node.root / output.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    _log("info", "Generated CDI spec with version 0.5.0")
    return 0


def _configure(node, flags: dict) -> int:
    runtime = flags.get("--runtime", "docker")
    default = "--set-as-default" in flags or flags.get("--nvidia-set-as-default") is not None
    if runtime == "docker":
        path = node.root / flags.get("--config", "/etc/docker/daemon.json").lstrip("/")
        try:
            settings = json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            _log("error", f"unable to load config for runtime docker: {error}")
            return 1
        settings.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
        if default:
            settings["default-runtime"] = "nvidia"
        text = json.dumps(settings, indent=4, sort_keys=True)
    elif runtime == "containerd":
        path = node.root / flags.get("--drop-in-config", "/etc/containerd/conf.d/99-nvidia.toml").lstrip("/")
        plugin = "io.containerd.grpc.v1.cri"
        text = _CONTAINERD.format(
            version=2, plugin=plugin, default='      default_runtime_name = "nvidia"\n' if default else ""
        )
        _import(node, path, flags.get("--config", "/etc/containerd/config.toml"))
    elif runtime == "crio":
        path = node.root / "etc/crio/conf.d/99-nvidia.toml"
        text = _CRIO
    else:
        _log("error", f"unrecognized runtime '{runtime}'")
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    shown = "/" + str(path.relative_to(node.root))
    _log("info", f"Wrote updated config to {shown}")
    _log("info", f"It is recommended that {runtime} daemon be restarted.")
    return 0


def _import(node, drop_in: Path, config: str) -> None:
    """containerd reads a drop-in only if its main file imports it."""
    main = node.root / config.lstrip("/")
    main.parent.mkdir(parents=True, exist_ok=True)
    text = main.read_text() if main.exists() else "version = 2\n"
    if "conf.d" not in text:
        main.write_text(f'imports = ["/{drop_in.parent.relative_to(node.root)}/*.toml"]\n' + text)
