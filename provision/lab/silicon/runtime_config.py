"""`nvidia-ctk runtime configure`: the settings of Docker, containerd and CRI-O, as the tool writes them."""

import json
from pathlib import Path

_CONTAINERD = """\
version = {version}

[plugins]

  [plugins."{plugin}"]
{cdi}
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
{options}"""
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
    """`runtime configure --runtime=NAME [--set-as-default] [--cdi.enabled]`."""
    from nvidia_ctk import log

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
        text = _containerd(node, path, flags.get("--config") or "/etc/containerd/config.toml", default, cdi)
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
        settings["features"] = {"cdi": True}  # the tool forgets the other features here
    return json.dumps(settings, indent=4, sort_keys=True)


def _containerd(node, drop_in: Path, config: str, default: bool, cdi: bool) -> str:
    """The drop-in; containerd reads it only if its main file imports it."""
    main = node.root / config.lstrip("/")
    text = main.read_text() if main.exists() else "version = 2\n"
    pattern = f"/{drop_in.parent.relative_to(node.root)}/*.toml"
    if pattern not in text:
        main.parent.mkdir(parents=True, exist_ok=True)
        main.write_text(f'imports = ["{pattern}"]\n' + text)
    three = "version = 3" in text
    return _CONTAINERD.format(
        version=3 if three else 2,
        plugin="io.containerd.cri.v1.runtime" if three else "io.containerd.grpc.v1.cri",
        default='      default_runtime_name = "nvidia"\n' if default else "",
        cdi="    enable_cdi = true\n" if cdi else "",
        options="            SystemdCgroup = true\n" if "SystemdCgroup = true" in text else "",
    )
