"""nvidia-ctk: cdi list, cdi generate, config, runtime configure, system create-dev-char-symlinks."""

import os
import re
from pathlib import Path

import devices

from containers import cdi_spec, runtime_config
from containers.logrus import log

CONFIG = "/etc/nvidia-container-runtime/config.toml"
_CONFIG_TEXT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""


def nvidia_ctk(node, arguments: list) -> int:
    """Run nvidia-ctk."""
    version = os.environ.get("SILICON_VERSION") or "1.19.1"
    words = [word for word in arguments if word not in ("--debug", "--quiet", "-d", "-q")]
    if words in (["--version"], ["-v"]):
        print(f"NVIDIA Container Toolkit CLI version {version}\ncommit: {'0' * 40}")
        return 0
    if words[:2] == ["cdi", "list"]:
        return _list(node)
    if words[:2] == ["cdi", "generate"]:
        return _generate(node, _flags(words[2:]), version)
    if words[:2] == ["runtime", "configure"]:
        return runtime_config.configure(node, _flags(words[2:]))
    if words[:1] == ["config"]:
        return _config(node, words[1:])
    if words[:2] == ["system", "create-dev-char-symlinks"]:
        return _dev_char("--dry-run" in words)
    log("error", f"unknown command: {' '.join(arguments)}")
    return 1


def _flags(words: list) -> dict:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _list(node) -> int:
    found = []
    for place in ("etc/cdi", "var/run/cdi"):
        for path in sorted((node.root / place).glob("*.yaml")):
            names = re.findall(r'^    - name: "?([^"\n]*)"?$', path.read_text(), re.MULTILINE)
            found = sorted({*found, *(f"{cdi_spec.KIND}={name}" for name in names)})
    log("info", f"Found {len(found)} CDI devices")
    print("".join(name + "\n" for name in found), end="")
    return 0


def _generate(node, flags: dict, version: str) -> int:
    why = None
    if not node.library():
        why = "ERROR_LIBRARY_NOT_FOUND"
    elif node.driver() is None:
        why = "ERROR_DRIVER_NOT_LOADED"
    elif node.driver()[0] != node.library():
        why = "ERROR_LIB_RM_VERSION_MISMATCH"
    if why:
        log(
            "error",
            f"failed to generate CDI spec: failed to create CDI library: failed to initialize NVML: {why}",
        )
        return 1
    spec = cdi_spec.build(node, version)
    text = "---\n" + cdi_spec.to_yaml(spec)
    output = flags.get("--output") or os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "")
    if not output:
        print(text, end="")
        return 0
    path = node.root / output.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")  # not *.yaml, since runtimes read the folder at any time
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(path)
    log("info", f"Generated CDI spec with version {spec['cdiVersion']}")
    return 0


def _config(node, words: list) -> int:
    """Run `config [--config-file=PATH] [--in-place] [--set SECTION.KEY=VALUE]…`; prints unless --in-place."""
    given = [word.partition("=")[2] for word in words if word.startswith(("--config-file=", "--config="))]
    path = node.root / (given[0] if given else CONFIG).lstrip("/")
    text = path.read_text() if path.exists() else _CONFIG_TEXT
    pairs = [word[len("--set=") :] for word in words if word.startswith("--set=")]
    pairs += [words[number + 1] for number, word in enumerate(words[:-1]) if word == "--set"]
    for pair in pairs:
        name, _, value = pair.partition("=")
        section, _, key = name.rpartition(".")
        block = re.compile(
            rf"(^\[{re.escape(section)}\]\n(?:(?!\[).*\n)*?)#?{re.escape(key)} = .*\n", re.MULTILINE
        )
        if not block.search(text):
            log("error", f"invalid config option {name}")
            return 1
        literal = value if value in ("true", "false") else f'"{value}"'
        text = block.sub(lambda found: f"{found[1]}{key} = {literal}\n", text)  # noqa: B023 - used at once
    if "--in-place" in words:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    else:
        print(text, end="")
    return 0


def _dev_char(dry_run: bool) -> int:
    """Create /dev/char/MAJOR:MINOR for each device file of the driver."""
    place = Path("/dev/char")
    for path in [*sorted(Path("/dev").glob("nvidia*")), *sorted(Path("/dev/nvidia-caps").glob("*"))]:
        if path.is_dir() or path.name.startswith(("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")):
            continue
        major, minor = devices.numbers(str(path))[:2]
        link = place / f"{major}:{minor}"
        log("info", f"Creating link {link} => {path}")
        if dry_run:
            continue
        try:
            place.mkdir(exist_ok=True)
            link.symlink_to(path)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            log("warning", f"Could not create symlink: symlink {path} {link}: {why}")
    return 0
