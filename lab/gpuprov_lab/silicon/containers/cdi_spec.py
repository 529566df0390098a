"""The CDI specification of nvidia-ctk: the device files, libraries and hooks for a container.

The order of keys, the indentation and the options are those of `nvidia-ctk cdi generate` 1.18 to 1.20.
"""

from pathlib import Path

import devices
from nvidia_smi import mig_files
from nvidia_smi.mig import mig_uuid

KIND = "nvidia.com/gpu"
HOOK = "/usr/bin/nvidia-cdi-hook"
OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
BINARIES = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)
# Substitutes of the hardware behind the real device files.
SIMULATED = ("/usr/lib/silicon", "/var/lib/silicon")


def version_of(text: str) -> tuple:
    """Parse a version: 1.19.1 -> (1, 19, 1)."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def build(node, toolkit: str) -> dict:
    """Build the specification, with keys in the order of the file."""
    edits = [(gpu, _edits_of_gpu(gpu, version_of(toolkit))) for gpu in node.usable()]
    named = []
    every = []
    for index, (gpu, edit) in enumerate(edits):
        parts = mig_files.instances(node, gpu)
        if parts is None:
            named += [(str(index), edit), (gpu["uuid"], edit)]
            every.append(edit)
        for number, part in enumerate(parts or []):
            rights = [_right(minor) for minor in mig_files.minors(gpu, part)]
            one = dict(edit, deviceNodes=[*edit["deviceNodes"][:1], *rights])
            named += [(f"{index}:{number}", one), (mig_uuid(gpu, part), one)]
            every.append(one)
    named.append(("all", _together(every)))
    spec = {"cdiVersion": "0.5.0", "kind": KIND}
    if any("additionalGids" in edit for _, edit in named):
        spec["cdiVersion"] = "0.7.0"
    spec["devices"] = [{"name": name, "containerEdits": edit} for name, edit in named]
    spec["containerEdits"] = _common(node, version_of(toolkit))
    return spec


def _right(minor: int) -> dict:
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return _device(path, (1, 19)) or {"path": path}


def _edits_of_gpu(gpu, toolkit: tuple) -> dict:
    slot = gpu["slot"]
    own = _device(f"/dev/nvidia{slot}", toolkit) or {"path": f"/dev/nvidia{slot}"}
    files = [f"/dev/dri/card{slot}", f"/dev/dri/renderD{128 + slot}"]
    nodes = [own, *(found for found in (_device(path, toolkit) for path in files) if found)]
    edits = {"deviceNodes": nodes}
    if len(nodes) > 1:
        links = []
        for name in (found["path"].rpartition("/")[2] for found in nodes[1:]):
            what = name.rstrip("0123456789D")
            links += ["--link", f"../{name}::/dev/dri/by-path/pci-{gpu['address']}-{what}"]
        edits["hooks"] = [_hook("create-symlinks", *links)]
    groups = _closed_groups(nodes) if toolkit >= (1, 19, 1) else []
    if groups:
        edits["additionalGids"] = groups
    return edits


def _closed_groups(nodes: list) -> list:
    """Return the groups that a container needs for devices with restricted access."""
    return sorted({one["gid"] for one in nodes if one.get("gid") and one["fileMode"] & 0o006 != 0o006})


def _together(edits: list) -> dict:
    every = {"deviceNodes": [one for edit in edits for one in edit["deviceNodes"]]}
    hooks = [one for edit in edits for one in edit.get("hooks", [])]
    groups = sorted({one for edit in edits for one in edit.get("additionalGids", [])})
    if hooks:
        every["hooks"] = hooks
    if groups:
        every["additionalGids"] = groups
    return every


def _device(path: str, toolkit: tuple):
    found = devices.numbers(path)
    if found is None:
        return None
    if toolkit < (1, 19):
        return {"path": path}
    major, minor, mode, group = found
    entry = {
        "path": path,
        "major": major,
        "minor": minor,
        "fileMode": mode,
        "permissions": "rwm",
        "gid": group,
    }
    return {key: value for key, value in entry.items() if value}


def _hook(name: str, *arguments: str) -> dict:
    return {
        "hookName": "createContainer",
        "path": HOOK,
        "args": ["nvidia-cdi-hook", name, *arguments],
        "env": ["NVIDIA_CTK_DEBUG=false"],
    }


def _common(node, toolkit: tuple) -> dict:
    driver = node.driver()[0]
    libraries = sorted(_libraries(node, driver))
    folders = sorted({str(Path(path).parent) for path in libraries})
    control = ["/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]
    cuda = [folder for folder in folders if any("/libcuda.so" in path for path in libraries)]
    hooks = [_hook("create-symlinks", *_links(node, libraries, driver))] if libraries else []
    hooks.append(_hook("enable-cuda-compat", f"--host-driver-version={driver}"))
    if folders:
        hooks.append(_hook("update-ldcache", *[word for one in folders for word in ("--folder", one)]))
    hooks.append(_hook("disable-device-node-modification"))
    binaries = [f"/usr/bin/{name}" for name in BINARIES if (node.root / "usr/bin" / name).exists()]
    return {
        "env": [*(f"NVIDIA_CTK_LIBCUDA_DIR={one}" for one in cuda[:1]), "NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [found for found in (_device(path, toolkit) for path in control) if found],
        "hooks": hooks,
        "mounts": [
            {"hostPath": path, "containerPath": path, "options": list(OPTIONS)}
            for path in [*binaries, *libraries, *SIMULATED]
        ],
    }


def _libraries(node, driver: str) -> list:
    found = []
    for folder in LIBRARY_FOLDERS:
        place = node.root / folder.lstrip("/")
        for path in place.glob(f"lib*.so.{driver}") if place.is_dir() else []:
            if path.name.startswith(("libcuda", "libnv")) and not path.is_symlink():
                found.append(f"{folder}/{path.name}")
    return found


def _links(node, libraries: list, driver: str) -> list:
    words = []
    for path in libraries:
        folder, _, name = path.rpartition("/")
        stem = name[: -len(driver) - 1]
        place = node.root / folder.lstrip("/")
        for soname in sorted(one.name for one in place.glob(f"{stem}.*") if one.is_symlink()):
            words += ["--link", f"{name}::{folder}/{soname}"]
        if stem == "libcuda.so":
            words += ["--link", f"libcuda.so.1::{folder}/libcuda.so"]
    return words


def to_yaml(value, depth: int = 0) -> str:
    """Render block style, indented by four, like the toolkit's YAML library."""
    lines = []
    pad, below = " " * depth, depth // 4 * 4 + 4
    for key, one in value.items():
        if isinstance(one, dict):
            lines.append(f"{pad}{key}:\n{to_yaml(one, below)}")
        elif isinstance(one, list):
            lines.append(f"{pad}{key}:\n" + "".join(_item(each, below) for each in one))
        else:
            lines.append(f"{pad}{key}: {_scalar(one)}\n")
    return "".join(lines)


def _item(value, depth: int) -> str:
    if isinstance(value, dict):
        return " " * depth + "- " + to_yaml(value, depth + 2)[depth + 2 :]
    return " " * depth + f"- {_scalar(value)}\n"


def _scalar(value) -> str:
    text = str(value)
    number = text.replace(":", "").isdigit()  # YAML reads 1:0 as sixty
    return f'"{text}"' if isinstance(value, str) and number else text
