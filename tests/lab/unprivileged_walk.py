"""A program that walks over a whole node as an unprivileged user."""

from __future__ import annotations

# Tries every file, folder, socket, FIFO, device, process and unit (of gpuprov and its packages), and prints
# the successes as JSON. Standard input lists texts, one per line, that nothing readable may contain. The
# user's own files are left out. With --hold it then locks everything readable, until it is stopped.
PROGRAM = r"""
import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys

SKIPPED = ("/proc", "/sys", "/var/lib/silicon", "/usr/lib/silicon")  # the kernel's, and the lab's
LARGEST = 1 << 20
done, counts, secrets = set(), {}, [line for line in sys.stdin.read().splitlines() if line]
me = os.getuid()


def count(kind):
    counts[kind] = counts.get(kind, 0) + 1


def tried(name, path, attempt):
    count("attempts")
    with contextlib.suppress(OSError):
        attempt()
        done.add("%s %s" % (name, path))
        return True
    return False


def connect(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(2)
        try:
            one.connect(path)
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
                other.connect(path)


def opened(path, flags):
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))


def read(path):
    with open(path, "rb") as file:
        text = file.read(LARGEST).decode("utf-8", "replace")
    for secret in secrets:
        if secret in text:
            done.add("secret %s" % path)


def replace(path):
    # What the walk can take away, it puts back.
    os.link(path, path + ".walked")
    os.unlink(path + ".walked")
    os.rename(path, path + ".walked")
    os.rename(path + ".walked", path)


def folder(path):
    new = os.path.join(path, ".walked")
    if tried("create-in", path, lambda: opened(new, os.O_CREAT | os.O_WRONLY | os.O_EXCL)):
        os.unlink(new)
    if tried("link-in", path, lambda: os.symlink("/etc/shadow", new)):
        os.unlink(new)


def entry(path, status):
    mode = status.st_mode
    kinds = {stat.S_IFREG: "files", stat.S_IFDIR: "folders", stat.S_IFSOCK: "sockets", stat.S_IFIFO: "fifos",
             stat.S_IFLNK: "links", stat.S_IFCHR: "devices", stat.S_IFBLK: "devices"}  # fmt: skip
    kind = kinds[stat.S_IFMT(mode)]
    count(kind)
    if kind == "links":
        return
    if mode & (stat.S_ISUID | stat.S_ISGID) and kind == "files":
        done.add("setid %s" % path)
    tried("chmod", path, lambda: os.chmod(path, stat.S_IMODE(mode)))
    tried("chown", path, lambda: os.chown(path, me, -1))
    tried("rename", path, lambda: replace(path))
    if kind == "folders":
        folder(path)
    elif kind == "sockets":
        tried("connect", path, lambda: connect(path))
    else:
        tried("write", path, lambda: opened(path, os.O_WRONLY))
        tried("append", path, lambda: opened(path, os.O_WRONLY | os.O_APPEND))
        if kind == "files":
            tried("truncate", path, lambda: os.truncate(path, status.st_size))
            with contextlib.suppress(OSError):
                read(path)
                count("read")


def walk():
    for top in ("/", "/run", "/dev", "/tmp", "/dev/shm"):
        for at, folders, files in os.walk(top):
            folders[:] = [
                one for one in folders
                if not os.path.join(at, one).startswith(SKIPPED)
                and (top != "/" or not os.path.ismount(os.path.join(at, one)))
            ]  # fmt: skip
            for name in [*folders, *files]:
                path = os.path.join(at, name)
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    if status.st_uid != me:
                        entry(path, status)


def processes():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat("/proc/" + pid).st_uid == me:
                continue
            count("processes")
            name = open("/proc/%s/comm" % pid).read().strip()
            tried("signal", name, lambda pid=pid: os.kill(int(pid), 0))
            for file in ("environ", "mem", "maps", "fd/0"):
                tried(file, name, lambda pid=pid, file=file: opened("/proc/%s/%s" % (pid, file), os.O_RDONLY))
            words = open("/proc/%s/cmdline" % pid).read()
            for secret in secrets:
                if secret in words:
                    done.add("secret cmdline of %s" % name)


def units():
    listed = subprocess.run(
        ["systemctl", "list-unit-files", "--no-legend", "--no-pager"], stdout=subprocess.PIPE
    )
    names = re.findall(r"^(\S+\.(?:service|timer|socket|path))\s", listed.stdout.decode(), re.MULTILINE)
    for name in [
        one for one in names if re.search(r"gpuprov|nvidia|amd|gpuagent|prometheus|slurm|receptor", one)
    ]:
        count("units")
        for verb in (["stop"], ["start"], ["kill"], ["disable"], ["mask"], ["set-property"]):
            words = [*verb, name] + (["CPUQuota=1%"] if verb == ["set-property"] else [])
            ended = subprocess.run(["systemctl", "--no-ask-password", *words], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, timeout=60)  # fmt: skip
            if ended.returncode == 0:
                done.add("systemctl %s %s" % (verb[0], name))
    for words in (["set-environment", "PYTHONPATH=/tmp"], ["daemon-reload"], ["daemon-reexec"]):
        if subprocess.run(["systemctl", "--no-ask-password", *words], stderr=subprocess.PIPE).returncode == 0:
            done.add("systemctl " + words[0])


def locks():
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for top in ("/etc", "/run", "/var", "/usr/local", "/usr/bin", "/usr/sbin", "/dev/shm", "/tmp", "/opt"):
        for at, folders, files in os.walk(top):
            for name in [*folders, *files]:
                with contextlib.suppress(OSError):
                    path = os.path.join(at, name)
                    if stat.S_IFMT(os.lstat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                        continue
                    held = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    count("locks")


walk()
processes()
units()
if "--hold" in sys.argv:
    locks()
print(json.dumps({"done": sorted(done), "counts": counts}), flush=True)
if "--hold" in sys.argv:
    signal.pause()
"""
