"""`nvidia-ctk runtime configure`: the settings that the tool writes for Docker, containerd, CRI-O."""

import json
import re
import subprocess
from pathlib import Path

from containers.logrus import log

# The tool's default options of a runtime if its source has no runc.
_RUNTIME = """\
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
{default}
    [crio.runtime.runtimes]

      [crio.runtime.runtimes.nvidia]
        runtime_path = "/usr/bin/nvidia-container-runtime"
        runtime_type = "oci"
"""


def configure(node, flags: dict) -> int:
    """Run `runtime configure --runtime=NAME [--set-as-default] [--cdi.enabled]`."""
    runtime = flags.get("--runtime", "docker")
    default = "--set-as-default" in flags or "--nvidia-set-as-default" in flags
    cdi = bool({"--cdi.enabled", "--cdi.enable", "--enable-cdi"} & set(flags))
    if runtime == "docker":
        path = node.root / (flags.get("--config") or "/etc/docker/daemon.json").lstrip("/")
        try:
            text = _docker(path, default, cdi)
        except ValueError as error:
            log("error", f"unable to load config for runtime docker: {error}")
            return 1
    elif runtime == "containerd":
        path = node.root / (flags.get("--drop-in-config") or "/etc/containerd/conf.d/99-nvidia.toml").lstrip(
            "/"
        )
        text = _containerd(node, path, flags)
    elif runtime == "crio":
        path = node.root / (flags.get("--drop-in-config") or "/etc/crio/conf.d/99-nvidia.toml").lstrip("/")
        text = _CRIO.format(default='    default_runtime = "nvidia"\n' if default else "")
    else:
        log("error", f"unrecognized runtime '{runtime}'")
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    log("info", f"Wrote updated config to /{path.relative_to(node.root)}")
    log("info", f"It is recommended that {runtime} daemon be restarted.")
    return 0


def _docker(path: Path, default: bool, cdi: bool) -> str:
    settings = json.loads(path.read_text()) if path.exists() else {}
    settings.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
    if default:
        settings["default-runtime"] = "nvidia"
    if cdi:
        settings["features"] = {"cdi": True}  # the tool drops the other features here
    return json.dumps(settings, indent=4, sort_keys=True)


def _containerd(node, drop_in: Path, flags: dict) -> str:
    """Build the drop-in; containerd reads it only if its main file imports it.

    Up to 2.0 containerd does not merge two files' settings of one plugin: the drop-in's replace the other's.
    So the tool copies the plugin's whole section from its source, by default the main file. If it is told to
    query containerd instead, defaults that no file contains, such as runc, are included.
    """
    main = node.root / (flags.get("--config") or "/etc/containerd/config.toml").lstrip("/")
    text = main.read_text() if main.exists() else "version = 2\n"
    source = text
    if flags.get("--config-source") == "command":
        dump = subprocess.run(["containerd", "config", "dump"], stdout=subprocess.PIPE, check=True)
        source = dump.stdout.decode()
    pattern = f"/{drop_in.parent.relative_to(node.root)}/*.toml"
    if pattern not in text:
        main.parent.mkdir(parents=True, exist_ok=True)
        main.write_text(f'imports = ["{pattern}"]\n' + text)
    version = 3 if re.search(r"(?m)^version = 3", source) else 2
    plugin = "io.containerd.cri.v1.runtime" if version == 3 else "io.containerd.grpc.v1.cri"
    tables = _tables(source, f'plugins."{plugin}"')
    name = f'plugins."{plugin}"'
    runc = f"{name}.containerd.runtimes.runc"
    added = _RUNTIME.format(plugin=plugin)
    if runc in tables:
        kin = {
            header: body for header, body in tables.items() if header == runc or header.startswith(runc + ".")
        }
        added = "".join(
            f"[{header.replace(runc, runc[:-4] + 'nvidia')}]\n{body}" for header, body in kin.items()
        )
        binary = '  BinaryName = "/usr/bin/nvidia-container-runtime"\n'
        added = re.sub(r"(?m)^ *BinaryName = .*\n", binary, added)
    for header in [one for one in tables if one.startswith(f"{name}.containerd.runtimes.nvidia")]:
        del tables[header]
    plugin_body = re.sub(r"(?m)^ *enable_cdi = .*\n", "", tables.pop(name, ""))
    if "--cdi.enabled" in flags:
        plugin_body = "    enable_cdi = true\n" + plugin_body
    containerd_body = tables.pop(f"{name}.containerd", "")
    if "--set-as-default" in flags:
        containerd_body = re.sub(r"(?m)^ *default_runtime_name = .*\n", "", containerd_body)
        containerd_body = '      default_runtime_name = "nvidia"\n' + containerd_body
    head = f"version = {version}\n\n[plugins]\n\n  [{name}]\n{plugin_body}\n"
    head += f"    [{name}.containerd]\n{containerd_body}\n"
    return head + "".join(f"[{header}]\n{body}" for header, body in tables.items()) + added


def _tables(text: str, prefix: str) -> dict:
    """Return header -> lines of the tables of one plugin in a TOML file."""
    found, header = {}, ""
    for line in text.splitlines():
        if line.strip().startswith("["):
            header = line.strip().strip("[]").replace("'", '"')
            if header == prefix or header.startswith(prefix + "."):
                found[header] = ""
        elif header in found:
            found[header] += line + "\n"
    return found
