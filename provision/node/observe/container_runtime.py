"""Container runtimes of this machine, and how their settings configure them for GPUs."""

import os

from provision.node.observe.files import ReadError, at, link_target, names_in, read_bytes, read_text
from provision.node.observe.probe import FAMILIES, Family, Probe, RefusedError, attribute_of, one_each

RUNTIMES = {
    "docker": ("/usr/bin/dockerd", "/usr/sbin/dockerd"),
    "containerd": ("/usr/bin/containerd", "/usr/local/bin/containerd"),
    "crio": ("/usr/bin/crio", "/usr/local/bin/crio"),
    "podman": ("/usr/bin/podman",),
}
DOCKER_FILE = "/etc/docker/daemon.json"
CONTAINERD_FILE = "/etc/containerd/config.toml"
CONTAINERD_DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
# Attributes that are read from containerd itself.
EFFECTIVE = ("path", "cdi", "keeps_runc", "runtime_type")
CRIO_DROP_IN = "/etc/crio/conf.d/99-nvidia.toml"
TOOLKIT_FILE = "/etc/nvidia-container-runtime/config.toml"


def no_number(constant):
    raise ValueError("%s is no number" % constant)


def docker_settings():
    import json

    data = read_bytes(DOCKER_FILE)
    if data is None or not data.strip():
        return {}
    try:
        # Like dockerd 26.1 and 28.5, accept a byte order mark and `null`, but no NaN.
        settings = json.loads(data.decode("utf-8-sig"), parse_constant=no_number)
    except ValueError as error:
        raise ReadError("%s is not JSON: %s" % (DOCKER_FILE, error)) from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ReadError("%s is JSON, but not an object" % DOCKER_FILE)
    return settings


def docker_value(what):
    settings = docker_settings()
    if what == "cdi":
        features = settings.get("features")
        return features.get("cdi") if isinstance(features, dict) else None
    runtimes = settings.get("runtimes")
    runtime = runtimes.get("amd" if what == "amd_path" else "nvidia") if isinstance(runtimes, dict) else None
    return runtime.get("path") if isinstance(runtime, dict) else None


def toml_value(path, table, key):
    """Return the value of a key, as text without quotes, in the table with a name ending in `table`."""
    return toml_text_value(read_text(path) or "", table, key)


def toml_text_value(text, table, key):
    here = not table
    for line in text.splitlines():
        line = line.strip()
        if line[:1] == "[":
            here = line.strip("[] ").replace('"', "").replace("'", "").endswith(table)
        elif here and line[:1] != "#":
            name, equals, value = line.partition("=")
            if equals and name.strip() == key:
                return value.partition(" #")[0].strip().strip("\"'")
    return None


def containerd_imports():
    """Return whether containerd's main file imports our drop-in."""
    lines = [line for line in (read_text(CONTAINERD_FILE) or "").splitlines() if line.strip()[:1] != "#"]
    return os.path.dirname(CONTAINERD_DROP_IN) + "/" in "\n".join(lines)


def containerd_told(text):
    """Return {attribute: value} of the NVIDIA runtime, runc and CDI in a configuration of containerd."""
    cdi = [toml_text_value(text, name, "enable_cdi") for name in (".cri.v1.runtime", ".v1.cri")]
    kind = toml_text_value(text, "containerd.runtimes.nvidia", "runtime_type") or None
    import re

    # "cri" in format 1, later io.containerd.grpc.v1.cri or io.containerd.cri.v1.runtime
    if re.search(r"(?m)^ *disabled_plugins = \[[^\]]*\bcri\b", text):
        kind = "the CRI plugin is in disabled_plugins"
    return {
        "runtime_type": kind,
        "path": toml_text_value(text, "containerd.runtimes.nvidia.options", "BinaryName") or None,
        "keeps_runc": bool(toml_text_value(text, "containerd.runtimes.runc", "runtime_type")),
        "cdi": {"true": True, "false": False}.get(cdi[0] or cdi[1]),
    }


def containerd_merged():
    """Return the settings in force, from the main file and an imported drop-in of no newer format.
    Releases of containerd merge several drop-ins about one plugin in different ways."""
    texts = [read_text(path) or "" for path in (CONTAINERD_FILE, CONTAINERD_DROP_IN)]
    main, drop_in = [int("0" + (toml_text_value(text, "", "version") or "")) for text in texts]
    if not containerd_imports():
        return texts[0]
    folder, ours = os.path.split(CONTAINERD_DROP_IN)
    others = [name for name in names_in(folder) if name.endswith(".toml") and name != ours]
    if others:
        raise ReadError(
            "containerd config dump told nothing, and %s/%s may override our drop-in" % (folder, others[-1])
        )
    return "\n".join(texts if drop_in <= main else texts[:1])


def parse_containerd(facts, output):
    """Parse the effective settings as containerd itself prints them.
    If it rejects its configuration, the type of the NVIDIA runtime holds the reason, and the rest is null."""
    refused = [line for line in output.splitlines() if line.startswith("containerd: ")]
    readable = "[plugins" in output
    if not readable and refused and "permission denied" not in output:
        if read_text(CONTAINERD_FILE) is None:
            # Without a file, releases up to 2.0 do not print the settings they run with.
            command = [containerd_program(), "config", "default"]
            raise RefusedError({}, Probe(facts, command=command, parse=parse_containerd))
        settings = dict.fromkeys(EFFECTIVE, None)
        settings["runtime_type"] = refused[-1]
    else:
        settings = containerd_told(output if readable else containerd_merged())
    lists = {"unconfigured": runtimes_unconfigured, "without_cdi": runtimes_without_cdi}
    values = {}
    for fact in facts:
        attribute = attribute_of(fact)
        values[fact] = lists[attribute](settings) if attribute in lists else settings[attribute]
    return values


def containerd_program():
    return next((path for path in RUNTIMES["containerd"] if os.path.exists(at(path))), None)


def runtime_probes(names):
    effective = ["container_runtime.containerd." + name for name in EFFECTIVE]
    effective += ["container_runtime.all.unconfigured", "container_runtime.all.without_cdi"]
    program = containerd_program()
    asked = [name for name in names if name in effective] if program else []
    probes = one_each(runtime_value)([name for name in names if name not in asked])
    if asked:
        probes.append(Probe(asked, command=[program, "config", "dump"], parse=parse_containerd))
    return probes


def runtime_value(runtime, what):
    if what == "restart_required":
        return restart_required(runtime + ".service")
    if what == "mode":
        return toml_value(TOOLKIT_FILE, "nvidia-container-runtime", "mode") if runtime == "nvidia" else None
    if runtime == "all":
        return LISTS[what]() if what in LISTS else None
    if what == "installed":
        return runtime in runtimes_installed()
    if runtime == "docker":
        return docker_value(what)
    if runtime == "crio":
        return toml_value(CRIO_DROP_IN, "runtimes.nvidia", "runtime_path") if what == "path" else None
    if runtime != "containerd":
        return None
    return containerd_imports() if what == "imported" else containerd_told(containerd_merged()).get(what)


def restart_required(unit):
    """Return whether the service still runs with its settings from before a change.

    The role records the service's invocation in a file when it changes them; each start has a new one."""
    noted = read_text("/run/gpuprov/restart-required/" + unit)
    running = link_target("/run/systemd/units/invocation:" + unit)
    return noted is not None and running is not None and noted.strip() == running


def runtimes_installed():
    return [name for name in sorted(RUNTIMES) if any(os.path.exists(at(path)) for path in RUNTIMES[name])]


def runtimes_to_tell():
    """Return the installed runtimes that need GPU settings.
    Next to Docker, containerd is only Docker's helper unless there is a kubelet; podman needs no settings."""
    installed = [name for name in runtimes_installed() if name != "podman"]
    kubelet = any(os.path.exists(at(path)) for path in ("/usr/bin/kubelet", "/usr/local/bin/kubelet"))
    return [name for name in installed if name != "containerd" or "docker" not in installed or kubelet]


def runtimes_unconfigured(containerd=None):
    """Return the installed runtimes that lack the NVIDIA runtime. `containerd`: its parsed settings."""
    configured = {name: runtime_value(name, "path") for name in runtimes_to_tell() if name != "containerd"}
    if "containerd" in runtimes_to_tell():
        # The GPU operator installs the program in another folder.
        ours = "nvidia-container-runtime" in (containerd["path"] or "") and containerd["keeps_runc"]
        configured["containerd"] = ours and (containerd["runtime_type"] or "").startswith("io.containerd.")
    return [name for name in sorted(configured) if not configured[name]]


def runtimes_without_cdi(containerd=None):
    """Return the installed runtimes in which CDI is off; CRI-O and podman have no switch for it."""
    runtimes = [name for name in runtimes_to_tell() if name in ("containerd", "docker")]
    return [n for n in runtimes if (docker_value("cdi") if n == "docker" else containerd["cdi"]) is not True]


def docker_without(what):
    """Return ["docker"] if Docker lacks this setting; AMD's toolkit configures no other runtime."""
    return ["docker"] if "docker" in runtimes_installed() and not docker_value(what) else []


LISTS = {
    "installed": runtimes_installed,
    "unconfigured": runtimes_unconfigured,
    "without_cdi": runtimes_without_cdi,
    "amd_unconfigured": lambda: docker_without("amd_path"),
    "amd_without_cdi": lambda: docker_without("cdi"),
}
FAMILIES["container_runtime"] = Family(
    (
        *("path", "cdi", "imported", "installed", "restart_required", "mode", "keeps_runc", "runtime_type"),
        *("unconfigured", "without_cdi", "amd_path", "amd_unconfigured", "amd_without_cdi"),
    ),
    runtime_probes,
)
