"""Reads facts of this machine (docs/facts.md) and prints them as one framed line of JSON.

The controller sends this text, followed by a call of `main`, to `python3 -I -S -`. It never writes, installs
or leaves anything, and always answers: whatever may hang (a tool, a file) runs in a child process that is
abandoned when its time is up, and never waited for, because a child stuck in the kernel does not die when it
is killed.

Standard library only, Python 3.6 syntax, one file because it travels as one. Imports are few and late: json,
re and subprocess would each cost as much as starting Python does. Paths are bytes, so that the locale of the
login does not matter. Ansible templates the text on its way: no two characters in it may open a template.
"""

import os
import select
import sys
import time

BEGIN = "@gpuprov-facts 1"  # then the length of the JSON in bytes, a newline, the JSON, a newline, and END
END = "@gpuprov-end"
FILE_LIMIT = 64 * 1024
HASH_LIMIT = 256 * 1024 * 1024
TOTAL_LIMIT = 1024 * 1024
TOOL_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
)
NVIDIA = "0x10de"
KERNEL = "{kernel.release}"  # in the name of a fact: this node's own, which the controller cannot know yet
ROOT = b""  # put before every path; not empty only in tests

ESCAPES = {code: "\\u%04x" % code for code in [*range(32), 34, 92, 127]}


class ReadError(Exception):
    """A fact that exists but could not be read; the text says why."""


# Files


def at(path):
    return ROOT + path.encode("utf-8", "surrogateescape")


def because(error):
    """An OSError as a few lower-case words."""
    return (error.strerror or str(error)).lower()


def is_absent(error):
    return isinstance(error, (FileNotFoundError, NotADirectoryError))


def read_bytes(path, limit=FILE_LIMIT):
    """The content of a regular file of at most `limit` bytes; None when there is none."""
    try:
        # Not blocking: opening a FIFO would wait for a writer.
        handle = os.open(at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if is_absent(error):
            return None
        raise ReadError(because(error)) from None
    try:
        if os.fstat(handle).st_mode & 0o170000 != 0o100000:
            raise ReadError("not a regular file")
        parts = []
        left = limit + 1
        while left > 0:
            part = os.read(handle, min(left, 1 << 20))
            if not part:
                break
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise ReadError(because(error)) from None
    finally:
        os.close(handle)
    if left <= 0:
        raise ReadError("larger than %d KiB" % (limit // 1024))
    return b"".join(parts)


def read_text(path, limit=FILE_LIMIT):
    data = read_bytes(path, limit)
    return None if data is None else data.decode("utf-8", "replace")


def read_line(path):
    text = read_text(path)
    return None if text is None else text.strip()


def names_in(path):
    try:
        return sorted(name.decode("utf-8", "replace") for name in os.listdir(at(path)))
    except OSError as error:
        if is_absent(error):
            return []
        raise ReadError(because(error)) from None


def link_target(path):
    try:
        return os.readlink(at(path)).decode("utf-8", "replace")
    except OSError as error:
        if is_absent(error) or error.errno == 22:  # EINVAL: there is something, but not a link
            return None
        raise ReadError(because(error)) from None


# Base facts


def os_release():
    text = read_text("/etc/os-release")
    if text is None:
        text = read_text("/usr/lib/os-release") or ""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals:
            found[key] = value.strip("\"'")
    return found


def os_family(release):
    kin = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    if "debian" in kin or "ubuntu" in kin:
        return "debian"
    if "rhel" in kin or "fedora" in kin or "centos" in kin:
        return "redhat"
    return release.get("ID")


def probe_system():
    release = os_release()
    name = os.uname()
    return {
        "os.id": release.get("ID"),
        "os.version_id": release.get("VERSION_ID"),
        "os.codename": release.get("VERSION_CODENAME"),
        "os.family": os_family(release),
        "os.arch": name.machine,
        "kernel.release": name.release,
    }


def probe_boot():
    required = os.path.exists(at("/run/reboot-required"))
    reason = None
    if required:
        text = read_text("/run/reboot-required.pkgs") or read_text("/run/reboot-required") or ""
        reason = ", ".join(sorted({line.strip() for line in text.splitlines() if line.strip()})) or None
    return {
        "boot.id": read_line("/proc/sys/kernel/random/boot_id"),
        "boot.required": required,
        "boot.reason": reason,
    }


def as_number(text):
    return int(text) if text and text.isdigit() else None


def pci_id(folder, prefix):
    texts = [read_line(folder + prefix + part) or "" for part in ("vendor", "device")]
    ids = [text.lower().replace("0x", "") for text in texts]
    return ":".join(ids) if all(ids) else None


def probe_gpu():
    gpus = []
    switches = 0
    for address in names_in("/sys/bus/pci/devices"):
        folder = "/sys/bus/pci/devices/%s/" % address
        if (read_line(folder + "vendor") or "").lower() != NVIDIA:
            continue
        kind = (read_line(folder + "class") or "").lower()[:6]
        if kind == "0x0680":
            switches += 1
        if kind[:4] == "0x03":
            gpus.append(
                {
                    "address": address,
                    "device_id": pci_id(folder, ""),
                    "subsystem_id": pci_id(folder, "subsystem_"),
                    "link_width": as_number(read_line(folder + "current_link_width")),
                    "link_width_max": as_number(read_line(folder + "max_link_width")),
                }
            )
    return {"gpu.count": len(gpus), "gpu.pci": gpus, "gpu.nvswitch_count": switches}


# Packages

SHOWN_STATUS = {"not-installed": "absent"}
WITHOUT_VERSION = ("not-installed", "config-files")


def dpkg_paragraphs():
    """Every paragraph of dpkg's database. What an interrupted dpkg left comes last: it overrides."""
    data = read_bytes("/var/lib/dpkg/status", 64 * 1024 * 1024)
    if data is None:
        raise ReadError("there is no dpkg database on this machine")
    for paragraph in data.split(b"\n\n"):
        yield paragraph
    for name in names_in("/var/lib/dpkg/updates"):
        if name.isdigit():
            for paragraph in (read_bytes("/var/lib/dpkg/updates/" + name) or b"").split(b"\n\n"):
                yield paragraph


def dpkg_packages(names):
    """What dpkg knows of the packages asked for. Reading its file costs a third of starting dpkg-query."""
    asked = set(names)
    foreign = {}
    found = {}
    for paragraph in dpkg_paragraphs():
        if paragraph[:9] != b"Package: ":
            continue
        name = paragraph[9 : paragraph.find(b"\n")].decode("ascii", "replace").strip()
        if name not in asked:
            continue
        fields = {}
        for line in paragraph.decode("utf-8", "replace").split("\n"):
            key, colon, value = line.partition(": ")
            if colon and key in ("Status", "Version", "Architecture"):
                fields[key] = value.strip()
        status = (fields.get("Status", "") + "   ").split(" ")
        entry = {
            "status": SHOWN_STATUS.get(status[2], status[2]),
            "version": None if status[2] in WITHOUT_VERSION else fields.get("Version"),
            "held": status[0] == "hold",
        }
        native = fields.get("Architecture") in ("all", DEB_ARCH.get(os.uname().machine))
        (found if native else foreign)[name] = entry
    for name in foreign:
        # A foreign architecture (i386 beside amd64) speaks for a package only when the native one does not.
        if found.get(name, {}).get("version") is None:
            found[name] = foreign[name]
    return found


DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}


def package_facts(names, found):
    nothing = {"status": "absent", "version": None, "held": False}
    facts = {}
    for fact in names:
        item, attribute = fact[len("package.") :].rsplit(".", 1)
        facts[fact] = found.get(item, nothing)[attribute]
    return facts


def rpm_held(names):
    """Which packages dnf's versionlock holds (dnf 4: a list of NEVRA patterns; dnf 5: TOML, name = "...")."""
    lines = (read_text("/etc/dnf/plugins/versionlock.list") or "").splitlines()
    held = set()
    for line in lines:
        for name in names:
            tail = line.strip()[len(name) :]
            if line.strip().startswith(name) and tail[:1] == "-" and tail[1:2].isdigit():
                held.add(name)
    for line in (read_text("/etc/dnf/versionlock.toml") or "").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "name":
            held.add(value.strip().strip("\"'"))
    return held


def parse_rpm(names, output):
    held = rpm_held({fact[len("package.") :].rsplit(".", 1)[0] for fact in names})
    found = {}
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            epoch = "" if fields[1] in ("(none)", "0") else fields[1] + ":"
            version = epoch + fields[2].strip()
            found[fields[0]] = {"status": "installed", "version": version, "held": fields[0] in held}
    if not found and "is not installed" not in output:
        raise ReadError("rpm answered: " + (output.strip()[:200] or "nothing"))
    return package_facts(names, found)


# Files, keys, kernel


def owner_name(path, number):
    # Not pwd and grp: they may ask a directory service that does not answer.
    for line in (read_text(path, 4 * 1024 * 1024) or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(number):
            return fields[0]
    return str(number)


def file_status(path):
    try:
        return os.stat(at(path))
    except OSError as error:
        if is_absent(error):
            return None
        raise ReadError(because(error)) from None


def file_attribute(path, attribute):
    if attribute == "content":
        return read_text(path)
    if attribute == "target":
        return link_target(path)
    if attribute == "sha256":
        import hashlib

        data = read_bytes(path, HASH_LIMIT)
        return None if data is None else hashlib.sha256(data).hexdigest()
    status = file_status(path)
    if attribute == "exists":
        return status is not None
    if status is None:
        return None
    if attribute == "mode":
        return "%04o" % (status.st_mode & 0o7777)
    return owner_name("/etc/passwd", status.st_uid) + ":" + owner_name("/etc/group", status.st_gid)


def dearmour(text):
    """The packets of every armoured block in `text`."""
    import binascii

    packets = b""
    body = None
    for line in text.decode("ascii", "replace").splitlines():
        line = line.strip()
        if line.startswith("-----BEGIN PGP"):
            body, in_header = "", True
        elif line.startswith("-----END PGP") and body is not None:
            packets += binascii.a2b_base64(body)
            body = None
        elif body is not None and in_header:
            in_header = bool(line)
        elif body is not None and not line.startswith("="):  # =XXXX is the checksum
            body += line
    return packets


def packets_of(data):
    """(tag, body) of each OpenPGP packet. Raises ReadError on anything else."""
    at_byte = 0
    while at_byte < len(data):
        head = data[at_byte]
        at_byte += 1
        if head & 0x40:
            tag, first = head & 0x3F, data[at_byte]
            extra = 0 if first < 192 else 1 if first < 224 else 4 if first == 255 else -1
            at_byte += 1
            if extra == 1:
                length = ((first - 192) << 8) + data[at_byte] + 192
            else:
                length = first if extra == 0 else int.from_bytes(data[at_byte : at_byte + 4], "big")
        else:
            tag, extra = (head >> 2) & 0x0F, (1, 2, 4, -1)[head & 3]
            length = int.from_bytes(data[at_byte : at_byte + max(extra, 0)], "big")
        if not head & 0x80 or extra < 0 or at_byte + extra + length > len(data):
            raise ReadError("not an OpenPGP keyring")
        at_byte += extra
        yield tag, data[at_byte : at_byte + length]
        at_byte += length


def fingerprint(body):
    import hashlib

    version = body[0] if body else 0
    if version == 4:
        data = b"\x99" + len(body).to_bytes(2, "big") + body
        # The format's own name for a key (RFC 4880, 12.2), not a choice of ours.
        return hashlib.sha1(data).hexdigest().upper()  # noqa: S324
    if version in (5, 6):
        prefix = b"\x9a" if version == 5 else b"\x9b"
        return hashlib.sha256(prefix + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ReadError("an OpenPGP key of version %d" % version)


def key_fingerprints(path):
    data = read_bytes(path, TOTAL_LIMIT)
    if data is None:
        return None
    if data[8:12] == b"KBXf":
        raise ReadError("a GnuPG keybox, not a keyring")
    try:
        if b"-----BEGIN PGP" in data:
            data = dearmour(data)
        return [fingerprint(body) for tag, body in packets_of(data) if tag == 6]
    except (IndexError, ValueError):
        raise ReadError("not an OpenPGP keyring") from None


def sysctl_value(key):
    dot, slash = key.find("."), key.find("/")
    # As sysctl(8): the first separator decides; after a dot, a slash stands for a dot in a name (eth0/1).
    path = key if 0 <= slash < dot or dot < 0 else key.translate({46: "/", 47: "."})
    text = read_text("/proc/sys/" + path)
    return None if text is None else text.rstrip("\n")


def module_loaded(name):
    # A module built into the kernel has a folder too, but no initstate.
    return os.path.exists(at("/sys/module/%s/initstate" % name.replace("-", "_")))


def looks_like_version(word):
    return "." in word and word.replace(".", "").isdigit()


def driver_loaded(attribute):
    text = read_text("/proc/driver/nvidia/version")
    if text is None:
        return None
    line = text.partition("\n")[0]
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
    if "Kernel Module" not in line:
        raise ReadError("/proc/driver/nvidia/version was not understood")
    if attribute == "flavour":
        return "open" if "Open Kernel Module" in line else "proprietary"
    for word in line.partition("Kernel Module")[2].split():
        if looks_like_version(word):
            return word
    raise ReadError("/proc/driver/nvidia/version was not understood")


def driver_userspace():
    for folder in LIBRARY_FOLDERS:
        path = folder + "/libnvidia-ml.so.1"
        for _ in range(8):  # Debian goes through /etc/alternatives
            target = link_target(path)
            if target is None:
                break
            path = target if target[:1] == "/" else os.path.dirname(path) + "/" + target
            version = path.rpartition("libnvidia-ml.so.")[2]
            if looks_like_version(version):
                return version
    return None


# Tools: what the kernel's files cannot say


def parse_modinfo(names, output):
    for line in output.splitlines():
        if looks_like_version(line.strip()):
            return dict.fromkeys(names, line.strip())
    if "not found" in output:
        return dict.fromkeys(names)
    raise ReadError("modinfo answered: " + (output.strip()[:200] or "nothing"))


def parse_systemctl(names, output):
    """`systemctl show` prints one paragraph per unit, in the order asked."""
    units = units_of(names)
    blocks = []
    for text in output.strip().split("\n\n"):
        pairs = (line.partition("=") for line in text.splitlines())
        blocks.append({key: value for key, equals, value in pairs if equals})
    if len(blocks) != len(units) or any("LoadState" not in block for block in blocks):
        raise ReadError("systemctl answered: " + (output.strip()[:200] or "nothing"))
    facts = {}
    for fact in names:
        item, attribute = fact[len("service.") :].rsplit(".", 1)
        block = blocks[units.index(item)]
        value = block.get("ActiveState" if attribute == "active" else "UnitFileState")
        facts[fact] = value if block["LoadState"] != "not-found" and value else None
    return facts


def units_of(names):
    return sorted({name[len("service.") :].rsplit(".", 1)[0] for name in names})


def find_tool(name):
    for folder in TOOL_FOLDERS:
        path = at(folder + "/" + name)
        if os.access(path, os.X_OK):
            return path
    raise ReadError("%s is not installed" % name)


# What to do for the facts asked: probes


class Probe:
    """One thing that may hang: the facts it reads, and either `read` (run in the reader child) or a tool's
    `command` with the `parse` of its output."""

    def __init__(self, facts, read=None, command=None, parse=None):
        self.facts = facts
        self.read = read
        self.command = command
        self.parse = parse


ATTRIBUTES = {
    "package": ("version", "status", "held"),
    "file": ("content", "exists", "mode", "owner", "sha256", "target"),
    "service": ("active", "enabled"),
    "module": ("loaded",),
    "driver": ("loaded_version", "flavour", "installed_version", "userspace_version"),
    "pgp_key": ("fingerprints",),
    "sysctl": ("value",),
}
BASE = (
    (("os.id", "os.version_id", "os.codename", "os.family", "os.arch", "kernel.release"), probe_system),
    (("boot.id", "boot.required", "boot.reason"), probe_boot),
    (("gpu.count", "gpu.pci", "gpu.nvswitch_count"), probe_gpu),
)


def single(fact, function, *arguments):
    return Probe([fact], read=lambda: {fact: function(*arguments)})


def probe_for(fact):
    """The probe of a fact that has one of its own."""
    kind, _, rest = fact.partition(".")
    item, _, attribute = rest.rpartition(".")
    if kind == "file":
        return single(fact, file_attribute, item, attribute)
    if kind == "pgp_key":
        return single(fact, key_fingerprints, item)
    if kind == "sysctl":
        return single(fact, sysctl_value, item)
    if kind == "module":
        return single(fact, module_loaded, item)
    if fact == "driver.userspace_version":
        return single(fact, driver_userspace)
    return single(fact, driver_loaded, attribute)


def package_probe(names):
    if not os.path.exists(at("/var/lib/dpkg/status")):
        packages = sorted({name[len("package.") :].rsplit(".", 1)[0] for name in names})
        form = "%{NAME}|%{EPOCH}|%{VERSION}-%{RELEASE}\n"
        return Probe(names, command=["rpm", "-q", "--qf", form, "--", *packages], parse=parse_rpm)
    items = [name[len("package.") :].rsplit(".", 1)[0] for name in names]
    return Probe(names, read=lambda: package_facts(names, dpkg_packages(items)))


def is_known(fact):
    kind, _, rest = fact.partition(".")
    item, dot, attribute = rest.rpartition(".")
    return attribute in ATTRIBUTES.get(kind, ()) and (bool(item) if kind != "driver" else not dot)


def plan(names):
    """The probes for the facts asked, and the facts nobody knows."""
    base = {name for names_of, _ in BASE for name in names_of}
    asked = sorted(set(names) - base)
    unknown = [name for name in asked if not is_known(name)]
    probes = [Probe(list(names_of), read=function) for names_of, function in BASE]
    groups = {}
    for name in asked:
        if name in unknown:
            continue
        kind = name.partition(".")[0]
        if kind in ("package", "service") or name == "driver.installed_version":
            groups.setdefault(kind, []).append(name)
        else:
            probes.append(probe_for(name))
    if "package" in groups:
        probes.append(package_probe(groups["package"]))
    if "service" in groups:
        show = ["systemctl", "show", "--no-pager", "--property=LoadState,ActiveState,UnitFileState", "--"]
        command = show + units_of(groups["service"])
        probes.append(Probe(groups["service"], command=command, parse=parse_systemctl))
    if "driver" in groups:
        # Debian's own packages call it nvidia-current.
        command = ["modinfo", "-F", "version", "nvidia", "nvidia-current", "nvidia-current-open"]
        probes.append(Probe(groups["driver"], command=command, parse=parse_modinfo))
    return probes, unknown


# Children and the answer


def to_json(value):
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    if isinstance(value, dict):
        return "{" + members(value) + "}"
    return '"' + value.translate(ESCAPES) + '"'


def members(mapping):
    return ",".join([to_json(key) + ":" + to_json(mapping[key]) for key in mapping])


class Child:
    """A process of our own whose output we collect, and which we may leave behind."""

    def __init__(self, function):
        self.handle, writer = os.pipe()
        self.output = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                nothing = os.open("/dev/null", os.O_RDWR)
                os.dup2(nothing, 0)
                os.dup2(writer, 1)
                os.dup2(writer, 2)
                function()
            finally:
                os._exit(0)
        os.close(writer)

    def abandon(self):
        for action in (lambda: os.killpg(self.pid, 9), lambda: os.close(self.handle)):
            try:
                action()
            except OSError:
                pass


def execute(path, command):
    environment = {"LC_ALL": "C", "PATH": ":".join(TOOL_FOLDERS)}
    os.execve(path, command, environment)  # noqa: S606


def read_all(probes, first):
    """In the reader child: a line at each probe's start and end tells the parent which one hangs."""
    for number in range(first, len(probes)):
        os.write(1, b"?%d\n" % number)
        probe = probes[number]
        facts, problems = attempt(probe, probe.read)
        line = (
            "=" + members(facts) + "\t" + members(problems) + "\n"
        )  # tabs and newlines in values are escaped
        data = line.encode("utf-8", "replace")
        while data:
            data = data[os.write(1, data) :]


def attempt(probe, function, *arguments):
    """The facts and the problems of one probe."""
    try:
        return function(*arguments), {}
    except ReadError as reason:
        return {}, dict.fromkeys(probe.facts, str(reason))
    except Exception as error:  # one misreading must not cost the other facts
        return {}, dict.fromkeys(probe.facts, "the probe failed: %s: %s" % (type(error).__name__, error))


class Observer:
    """Runs the probes and gathers the answer as JSON fragments, within the time given."""

    def __init__(self, request):
        self.probe_seconds = request.get("probe_seconds", 8)
        self.end = time.monotonic() + request.get("seconds", 40)
        self.limit = request.get("bytes", TOTAL_LIMIT)
        self.facts = []
        self.problems = []
        self.size = 0
        self.children = {}  # handle -> (child, its probe or None for the reader, when its time is up)
        self.poll = select.poll()
        self.at = -1  # the probe the reader works on

    def add(self, probe_facts, facts, problems=""):
        self.size += len(facts) + len(problems)
        if self.size > self.limit:
            self.size -= len(facts) + len(problems)
            reason = "left out: the whole answer passed %d KiB" % (self.limit // 1024)
            facts, problems = "", members(dict.fromkeys(probe_facts, reason))
        if facts:
            self.facts.append(facts)
        if problems:
            self.problems.append(problems)

    def complain(self, probe, reason):
        self.add(probe.facts, "", members(dict.fromkeys(probe.facts, reason)))

    def start(self, function, probe):
        child = Child(function)
        self.poll.register(child.handle, select.POLLIN | select.POLLHUP)
        self.children[child.handle] = (child, probe, self.fresh_limit())

    def fresh_limit(self):
        return min(time.monotonic() + self.probe_seconds, self.end)

    def start_tool(self, probe):
        try:
            path = find_tool(probe.command[0])
        except ReadError as reason:
            self.complain(probe, str(reason))
        else:
            self.start(lambda: execute(path, probe.command), probe)

    def start_reader(self, first):
        self.at = first
        if first < len(self.read_probes):
            self.start(lambda: read_all(self.read_probes, first), None)

    def run(self, probes):
        self.read_probes = [probe for probe in probes if probe.read]
        for probe in probes:
            if probe.command:
                self.start_tool(probe)
        self.start_reader(0)
        while self.children:
            soonest = min(limit for _, _, limit in self.children.values())
            wait = max(0, soonest - time.monotonic())
            for handle, _ in self.poll.poll(int(wait * 1000) + 1):
                self.receive(handle)
            now = time.monotonic()
            for handle, (_, _, limit) in list(self.children.items()):
                if limit <= now:
                    self.time_is_up(handle)

    def receive(self, handle):
        child, probe, _ = self.children[handle]
        data = os.read(handle, 1 << 16)
        child.output += data
        if probe is None and data:
            self.take_lines(child)
            self.children[handle] = (child, None, self.fresh_limit())
        elif not data or len(child.output) > TOTAL_LIMIT:
            self.forget(handle)
            if probe is not None:
                self.finish_tool(probe, child.output)
            elif self.at < len(self.read_probes):
                self.complain(self.read_probes[self.at], "the process that read it died")
                self.start_reader(self.at + 1)

    def take_lines(self, child):
        lines = child.output.split(b"\n")
        child.output = lines.pop()
        for line in lines:
            if line[:1] == b"?":
                self.at = int(line[1:])
            elif line[:1] == b"=":  # anything else is a warning of Python's
                facts, _, problems = line[1:].decode("utf-8").partition("\t")
                self.add(self.read_probes[self.at].facts, facts, problems)
                self.at += 1

    def finish_tool(self, probe, output):
        facts, problems = attempt(probe, probe.parse, probe.facts, output.decode("utf-8", "replace"))
        self.add(probe.facts, members(facts), members(problems))

    def time_is_up(self, handle):
        _, probe, _ = self.children[handle]
        self.forget(handle)
        over = time.monotonic() >= self.end
        reason = "no time was left for it" if over else "no answer within %g s" % self.probe_seconds
        if probe is not None:
            self.complain(probe, "%s: %s" % (probe.command[0], reason))
        elif over:
            for unread in self.read_probes[self.at :]:
                self.complain(unread, reason)
        elif self.at < len(self.read_probes):
            self.complain(self.read_probes[self.at], reason)
            self.start_reader(self.at + 1)

    def forget(self, handle):
        child, _, _ = self.children.pop(handle)
        self.poll.unregister(handle)
        child.abandon()


def main(request):
    """Answer one request: `facts` (names), `probe_seconds` and `seconds` (time for one probe, for all),
    `bytes` (size of all values), `root` (put before every path; tests only)."""
    global ROOT
    ROOT = request.get("root", "").encode("utf-8")
    release = os.uname().release
    probes, unknown = plan([name.replace(KERNEL, release) for name in request.get("facts", ())])
    observer = Observer(request)
    observer.run(probes)
    problems = observer.problems
    if unknown:
        problems = [*problems, members(dict.fromkeys(unknown, "no such fact"))]
    uid = os.geteuid()
    parts = (
        '{"uid":',
        str(uid),
        ',"facts":{',
        ",".join(observer.facts),
        '},"problems":{',
        ",".join(problems),
    )
    body = ("".join(parts) + "}}").encode("utf-8", "replace")
    answer = ("\n%s %d\n" % (BEGIN, len(body))).encode("ascii") + body + ("\n%s\n" % END).encode("ascii")
    sys.stdout.flush()
    while answer:
        answer = answer[os.write(1, answer) :]
    os._exit(0)  # no clean-up to wait for: a child may be stuck
