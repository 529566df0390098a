"""Access of containers to the GPUs, by the CDI specification and the devices and libraries it names.

Everything is read from files. `nvidia-ctk cdi generate` writes the specification as YAML in block style with
one key or list item per line, and only this form of YAML is understood here."""

import os

from provision.node.observe.files import ReadError, at, labelled, link_target, names_in, read_text, status_of
from provision.node.observe.probe import FAMILIES, Family, Probe, single

CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
CDI_FILE = "/var/run/cdi/nvidia.yaml"
CDI_KIND = "nvidia.com/gpu"
CDI_LIMIT = 4 * 1024 * 1024
CDI_LISTED = 32  # missing or stale files to list; the rest is counted
CAPABILITIES = "/proc/driver/nvidia/capabilities"


def cdi_lines(path):
    """Return (indent, starts an item, key, value) of each line with a key; None if there is no file."""
    text = read_text(path, CDI_LIMIT)
    if text is None:
        return None
    lines = []
    for line in text.split("\n"):
        item = line.lstrip(" ")
        indent = len(line) - len(item)
        starts = item.startswith("- ")
        if starts:
            item = item[2:].lstrip(" ")
            indent = len(line) - len(item)
        key, colon, value = item.partition(":")
        if colon and key.replace("_", "").isalnum() and value[:1] in ("", " "):
            lines.append((indent, starts, key, value.strip().strip("\"'")))
    return lines


class CdiSpecification:
    """CDI specification: version, kind, device names, device files (path: (major, minor)), host files."""

    def __init__(self, path):
        self.version = self.kind = None
        self.names = []
        self.nodes = {}
        self.files = []
        lines = cdi_lines(path)
        self.there = lines is not None
        section, parents = "", []
        for indent, starts, key, value in lines or ():
            while parents and parents[-1][0] >= indent:
                parents.pop()
            parent = parents[-1][1] if parents else ""
            if not value:
                parents.append((indent, key))
            if indent == 0:
                section = key
                self.version = value if key == "cdiVersion" else self.version
                self.kind = value if key == "kind" else self.kind
            elif section == "devices" and key == "name" and parent == "devices":
                self.names.append(value)
            elif parent == "deviceNodes":
                self.device_line(starts, key, value)
            elif (parent == "mounts" and key == "hostPath") or (parent == "hooks" and key == "path"):
                self.files.append(value)
        if self.there and (self.version is None or self.kind is None):
            raise ReadError("%s is not a CDI specification in the form nvidia-ctk writes" % path)

    def device_line(self, starts, key, value):
        if starts:
            self.open = {}
        self.open[key] = value
        path = self.open.get("hostPath") or self.open.get("path")
        if path:
            major, minor = self.open.get("major"), self.open.get("minor", "0")
            numbered = major is not None and major.isdigit() and minor.isdigit()
            self.nodes[path] = (int(major), int(minor)) if numbered else None


def cdi_numbers(path):
    """Return (major, minor) of a device file; None if it does not exist."""
    status = status_of(path)
    return status and (os.major(status.st_rdev), os.minor(status.st_rdev))


def cdi_listed(paths):
    paths = sorted(set(paths))
    more = len(paths) - CDI_LISTED
    return paths[:CDI_LISTED] + (["and %d more" % more] if more > 0 else [])


def cdi_minor(path, label):
    value = labelled(read_text(path), label)
    return value if value and value.isdigit() else None


def cdi_of_machine():
    """Yield the device files of this machine's GPUs, or of a GPU's instances if it is partitioned."""
    folder = "/proc/driver/nvidia/gpus"
    for address in names_in(folder):
        minor = cdi_minor("%s/%s/information" % (folder, address), "Device Minor")
        if minor is None:
            raise ReadError("%s/%s/information was not understood" % (folder, address))
        mig = "%s/gpu%s/mig" % (CAPABILITIES, minor)
        if not os.path.isdir(at(mig)):
            yield "/dev/nvidia" + minor
            continue
        for instance in names_in(mig):
            computes = [name for name in names_in("%s/%s" % (mig, instance)) if name[:2] == "ci"]
            for below in [""] + ["/" + name for name in computes] if computes else []:
                number = cdi_minor("%s/%s%s/access" % (mig, instance, below), "DeviceFileMinor")
                if number is not None:
                    yield "/dev/nvidia-caps/nvidia-cap" + number


def cdi_stale(specification):
    """Yield the files and the driver version in the specification that do not match this machine."""
    here = set(cdi_of_machine())
    for path, numbers in specification.nodes.items():
        actual = cdi_numbers(path)
        # The device file of a MIG instance can outlive the instance.
        gone = path.startswith("/dev/nvidia-caps/") and path not in here
        if actual is None or gone or (numbers is not None and numbers != actual):
            yield path
    for path in specification.files:
        if not os.path.exists(at(path)):
            yield path
    described, present = cdi_driver(specification), cdi_present_driver(specification)
    if described and present and described != present:
        yield "driver " + described


def cdi_present_driver(specification):
    """Return the driver's version if the loaded module and the libraries' link agree, else None.
    Other facts report which of the two is wrong."""
    loaded = (read_text("/proc/driver/nvidia/version") or "").replace("\n", " ")
    for path in specification.files:
        folder, _, name = path.rpartition("/")
        if name.startswith(("libcuda.so.", "libnvidia-ml.so.")):
            link = link_target(folder + "/libnvidia-ml.so.1") or ""
            version = link.rpartition("libnvidia-ml.so.")[2]
            return version if version and " %s " % version in loaded else None
    return None


def cdi_driver(specification):
    """Return the driver version in the specification's library names; all versions if they differ."""
    versions = set()
    for path in specification.files:
        for stem in ("/libcuda.so.", "/libnvidia-ml.so."):
            version = path.partition(stem)[2]
            if version.count(".") > 0 and version.replace(".", "").isdigit():
                versions.add(version)
    return ", ".join(sorted(versions)) or None


def cdi_elsewhere():
    """Return other files with devices of the same kind; a stale one may win, or stop every container."""
    paths = []
    for folder in CDI_FOLDERS:
        for name in names_in(folder):
            path = folder + "/" + name
            if path == CDI_FILE or not name.endswith((".yaml", ".json")):
                continue
            text = (read_text(path, CDI_LIMIT) or "").replace('"', "").replace(" ", "")
            if "kind:" + CDI_KIND in text:
                paths.append(path)
    return paths


def cdi_facts(names):
    attributes = [name.rpartition(".")[2] for name in names]
    specification = CdiSpecification(CDI_FILE)
    values = dict.fromkeys(attributes)
    if "elsewhere" in values:
        values["elsewhere"] = cdi_elsewhere()
    if specification.there:
        values["version"] = specification.version
        values["devices"] = specification.names
        values["driver_version"] = cdi_driver(specification)
        values["stale"] = cdi_listed(cdi_stale(specification))
        values["missing"] = cdi_listed(path for path in cdi_of_machine() if path not in specification.nodes)
    return {"container.cdi." + name: values[name] for name in attributes}


def dev_char_missing():
    """Return the driver's device files without the /dev/char link by which runc and systemd find them."""
    missing = []
    for folder in ("/dev", "/dev/nvidia-caps"):
        for name in names_in(folder):
            path = folder + "/" + name
            # Containers are never given the files of switches and of GPUDirect Storage.
            other = name[:6] != "nvidia" or name.startswith(("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"))
            if other or os.path.isdir(at(path)):
                continue
            numbers = cdi_numbers(path)
            if numbers and link_target("/dev/char/%d:%d" % numbers) is None:
                missing.append(path)
    return cdi_listed(missing)


def container_probes(names):
    cdi = [name for name in names if name.startswith("container.cdi.")]
    probes = [Probe(cdi, read=lambda: cdi_facts(cdi))] if cdi else []
    others = [name for name in names if name not in cdi]
    return probes + [single(name, dev_char_missing) for name in others]


FAMILIES["container"] = Family(
    (
        *("cdi.version", "cdi.devices", "cdi.driver_version", "cdi.missing", "cdi.stale", "cdi.elsewhere"),
        "dev_char.missing",
    ),
    container_probes,
    items=False,
)
