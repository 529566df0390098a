#!/usr/bin/python
"""Ansible module that lets nodes start an MPI program on one another, with a temporary key."""

DOCUMENTATION = r"""
module: gpuprov_launch
short_description: Let nodes start MPI daemons on one another, for a while
description:
  - OpenMPI starts its daemons on other nodes over ssh. O(state=open) creates a key pair on the node, whose
    private part never leaves it, and returns the host keys of its sshd. O(state=admit) installs the
    certificate for that key and lets everyone with a certificate of the same authority start an MPI daemon
    and nothing else. O(state=end) ends the started programs; O(state=close) also removes key and access.
  - If nothing else closes the launch, a systemd timer does so O(seconds) after it was opened.
options:
  state:
    description: The action.
    type: str
    required: true
    choices: [open, admit, end, close]
  launch:
    description: Name of this launch, made of letters, digits, dots and dashes.
    type: str
    required: true
  user:
    description: User that runs the programs and owns the key; if empty, the user Ansible logged in as.
    type: str
    default: ""
  seconds:
    description: Seconds after which the launch is closed at the latest.
    type: int
    default: 3600
  mpirun:
    description: Path of OpenMPI's mpirun; if empty, it is searched for.
    type: str
    default: ""
  scripts:
    description: Scripts to put on the node as C(accept), C(reach) and C(close); see provision/data/launch.
    type: dict
    default: {}
  certificate:
    description: The certificate of the node's key.
    type: str
    default: ""
  authority:
    description: The public key of the authority that signed it, as in an authorized_keys file.
    type: str
    default: ""
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Open a launch
  gpuprov_launch: {state: open, launch: 20261122T101500-nccl, user: root}
"""

RETURN = r"""
gpuprov:
  description: public_key, host_keys, user, hostname, mpirun, its version (or mpirun_missing) and slurm.
  returned: O(state=open)
  type: dict
"""

import contextlib  # noqa: E402
import os  # noqa: E402
import pwd  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import socket  # noqa: E402
import stat  # noqa: E402
import subprocess  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

HOME = "/run/gpuprov-launch"
SSHD_KEYS = "/etc/ssh"
# Debian and Ubuntu; the RHEL family; NVIDIA's HPC-X
MPIRUNS = ("mpirun", "/usr/lib64/openmpi/bin/mpirun", "/opt/hpcx/ompi/bin/mpirun")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,80}\Z")
_LINE = re.compile(r"[ -~]{1,4000}\Z")


class LaunchError(Exception):
    """A failed action on a launch, with a message for the user."""


def whose(user):
    """Return the account of `user`; if empty, of the login user who became root."""
    name = user or os.environ.get("SUDO_USER") or os.environ.get("DOAS_USER")
    return pwd.getpwnam(name) if name else pwd.getpwuid(os.getuid())


def folder_of(launch):
    return os.path.join(HOME, launch)


def run(argv, timeout=20, **options):
    """Return (exit status, output) of a program, with None as status if it did not start or end in time."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False, **options
        )
    except OSError as error:
        return None, "%s: %s" % (argv[0], error.strerror or error)
    except subprocess.TimeoutExpired as error:
        return None, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def authorized_keys(account):
    """Return the file in which sshd looks for this user's keys. Raises LaunchError."""
    status, output = run(
        ["/usr/sbin/sshd", "-T", "-C", "user=%s,host=localhost,addr=127.0.0.1" % account.pw_name]
    )
    name = ".ssh/authorized_keys"
    for line in output.splitlines() if status == 0 else ():
        key, _, value = line.partition(" ")
        if key == "authorizedkeysfile":
            name = (value.split() or ["none"])[0]
        elif key == "pubkeyauthentication" and value == "no":
            raise LaunchError("its sshd takes no keys (PubkeyAuthentication no)")
    if name == "none":
        raise LaunchError("its sshd reads no file of keys (AuthorizedKeysFile none)")
    for letter, value in (("%h", account.pw_dir), ("%u", account.pw_name), ("%U", str(account.pw_uid))):
        name = name.replace(letter, value)
    return os.path.join(account.pw_dir, name.replace("%%", "%"))


def keeper(keys, account):
    """Return the account that edits the file of keys: root if only root can change its parent folders.
    Otherwise it is the login user, because that user's links may lead anywhere."""
    folder = os.path.dirname(keys)
    while folder != os.path.dirname(folder):
        if os.path.lexists(folder):
            info = os.lstat(folder)
            if info.st_uid != 0 or info.st_mode & 0o022 or not stat.S_ISDIR(info.st_mode):
                return account
        folder = os.path.dirname(folder)
    return pwd.getpwuid(0)


@contextlib.contextmanager
def acting_as(account):
    """Work with this user's rights only, so that their links never lead to files they may not change."""
    before, groups = (os.geteuid(), os.getegid()), os.getgroups()
    if account.pw_uid == before[0]:
        yield
        return
    os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(before[0])
        os.setegid(before[1])
        os.setgroups(groups)


def write(path, text, mode):
    """Create a file with this text; fail if it exists."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, mode)) as stream:
        stream.write(text)


def open_launch(launch, account, seconds, scripts):
    """Remove an earlier launch, create the node's key pair and scripts, and return the public key."""
    keys = authorized_keys(account)
    close(launch, keys, account)
    folder = folder_of(launch)
    os.makedirs(HOME, exist_ok=True)
    # Regardless of root's umask: the login user works in the folder below.
    os.chmod(HOME, 0o755)  # noqa: S103 - same mode as /run
    os.mkdir(folder, 0o700)
    os.chown(folder, account.pw_uid, account.pw_gid)
    write(folder + ".close", scripts["close"], 0o600)
    timer = ["systemd-run", "--quiet", "--on-active=%d" % seconds, "--unit=gpuprov-launch-" + launch]
    status, output = run([*timer, "/bin/sh", folder + ".close", *closing(keys, account)])
    if status != 0:
        close(launch, keys, account)
        raise LaunchError("no timer could be set to close it: %s" % output.strip()[-200:])
    with acting_as(keeper(keys, account)):
        fresh = not os.path.exists(keys)
    with acting_as(account):
        if fresh:
            write(os.path.join(folder, "created"), "", 0o600)
        for name in ("accept", "reach"):
            write(os.path.join(folder, name), scripts[name], 0o644)
        path = os.path.join(folder, "key")
        status, output = run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", launch, "-f", path])
        if status != 0:
            raise LaunchError("ssh-keygen made no key: %s" % output.strip()[-200:])
        with open(path + ".pub") as stream:
            return stream.read().strip()


def admit(launch, account, certificate, authority):
    """Install the certificate and authorise all certificates of the same authority."""
    folder, keys = folder_of(launch), authorized_keys(account)
    if not os.path.isdir(folder):
        raise LaunchError("the launch is not open any more")
    with acting_as(account):
        write(os.path.join(folder, "key-cert.pub"), certificate + "\n", 0o600)
    parent = os.path.dirname(keys)
    unended = False
    options = 'restrict,cert-authority,principals="gpuprov-launch-%s"' % launch
    line = "%s %s gpuprov-launch-%s\n" % (options, authority, launch)
    with acting_as(keeper(keys, account)):
        if not os.path.isdir(parent):
            os.mkdir(parent, 0o700)
            os.chown(parent, account.pw_uid, account.pw_gid)
        fresh = not os.path.exists(keys)
        with open(keys, "ab+", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            if fresh:
                os.chown(stream.fileno(), account.pw_uid, account.pw_gid)
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) and stream.seek(0, os.SEEK_END):
                stream.seek(-1, os.SEEK_END)
                unended = stream.read(1) != b"\n"  # closing removes the added newline again
            stream.write((b"\n" if unended else b"") + line.encode("ascii"))
    if unended:
        with acting_as(account):
            write(os.path.join(folder, "unended"), "", 0o600)


def end(launch, *close_too):
    """End the programs of a launch. `close_too`: script arguments that close it as well."""
    script = folder_of(launch) + ".close"
    if os.path.exists(script):
        status, output = run(["/bin/sh", script, *close_too], timeout=60)
        if status != 0:
            raise LaunchError("what it started could not be ended: %s" % output.strip()[-200:])


def closing(keys, account):
    """Return the arguments for the close script: the file of keys and the account that edits it."""
    editor = keeper(keys, account)
    return ["close", keys, str(editor.pw_uid), str(editor.pw_gid)]


def close(launch, keys, account):
    """Undo a launch completely."""
    end(launch, *closing(keys, account))
    run(["systemctl", "stop", "gpuprov-launch-%s.timer" % launch])


def host_keys():
    """Return the public keys of the node's sshd as `type base64`, without obsolete types."""
    keys = []
    for name in sorted(os.listdir(SSHD_KEYS)) if os.path.isdir(SSHD_KEYS) else ():
        if name.startswith("ssh_host_") and name.endswith("_key.pub"):
            with open(os.path.join(SSHD_KEYS, name)) as stream:
                keys.append(" ".join(stream.read().split()[:2]))
    return [key for key in keys if key.startswith(("ssh-ed25519 ", "ssh-rsa ", "ecdsa-sha2-"))]


def slurm(hostname):
    """Return this node's Slurm name and state and the MPI types of srun; empty without Slurm."""
    status, output = run(["sinfo", "--noheader", "--Node", "--nodes", hostname, "--format=%N %T"])
    words = output.split()
    if status != 0 or len(words) < 2:
        return {}
    _, kinds = run(["srun", "--mpi=list"])
    listed = [word for word in re.findall(r"[a-z][a-z0-9_]+", kinds) if word != "none"]
    return {"node": words[0], "state": words[1], "mpi": listed[:40]}


def looked(launch, account, params):
    """Open a launch and return the node's data for the controller."""
    hostname = socket.gethostname().partition(".")[0]
    mpirun = params["mpirun"] or next(filter(None, map(shutil.which, MPIRUNS)), "mpirun")
    status, output = run([mpirun, "--version"])
    first = (output.strip().splitlines() or [""])[0][:200]
    return {
        "public_key": open_launch(launch, account, params["seconds"], params["scripts"]),
        "user": account.pw_name,
        "host_keys": host_keys(),
        "hostname": hostname,
        "mpirun": mpirun if status == 0 else "",
        "version": first if status == 0 else "",
        "mpirun_missing": "" if status == 0 else first,
        "slurm": slurm(hostname),
    }


def main():
    states = ["open", "admit", "end", "close"]
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": states},
            "launch": {"type": "str", "required": True},
            "user": {"type": "str", "default": ""},
            "seconds": {"type": "int", "default": 3600},
            "mpirun": {"type": "str", "default": ""},
            "scripts": {"type": "dict", "default": {}},
            "certificate": {"type": "str", "default": ""},
            "authority": {"type": "str", "default": "", "no_log": False},
        }
    )
    params = module.params
    launch = params["launch"]
    if not _NAME.match(launch):
        module.fail_json(msg="no name of a launch: %r" % launch[:80])
    if any(params[key] and not _LINE.match(params[key]) for key in ("certificate", "authority")):
        module.fail_json(msg="a key or certificate is one line of plain text")
    answer = {}
    try:
        account = whose(params["user"])
        if params["state"] == "open":
            answer = looked(launch, account, params)
        elif params["state"] == "admit":
            admit(launch, account, params["certificate"], params["authority"])
        elif params["state"] == "end":
            end(launch)
        else:
            close(launch, authorized_keys(account), account)
    except KeyError:
        module.fail_json(msg="there is no user %s" % params["user"][:80])
    except (LaunchError, OSError) as trouble:
        module.fail_json(msg=str(trouble)[:300])
    module.exit_json(changed=params["state"] != "end", gpuprov=answer)


if __name__ == "__main__":
    main()
