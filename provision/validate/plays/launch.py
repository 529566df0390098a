"""An MPI launch: while it is open, its nodes can start MPI programs on one another.

OpenMPI uses the nodes' own ssh (the module gpuprov_launch does the nodes' part); Slurm needs no preparation.
`close` removes everything again; if `close` is never called, a timer on each node does."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_public_key,
)

from provision import paths
from provision.errors import ParseError
from provision.validate.plays.pair_plays import Plays

FOLDER = "/run/gpuprov-launch"  # repeated in the module gpuprov_launch
MARK = "GPUPROV_LAUNCH"  # in the environment of a launch's processes; data/launch/close.sh finds them by it

_SCRIPTS = ("accept", "reach", "close")
_STEP = 150  # seconds a node may take to open or close
_HOST_KEY = re.compile(r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d{3}) [A-Za-z0-9+/]{40,2000}={0,2}")
_STATE = re.compile(r"[a-z_]{0,40}[*~#!%$@^+-]{0,2}")  # sinfo appends flags such as `*` and `~`
_TEXTS = ("public_key", "mpirun", "version", "mpirun_missing")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}")


@dataclass(frozen=True)
class Ready:
    """A node's answer once it is open.

    `host_keys`: of its sshd (`type base64`); `user`: the user that programs run as; `hostname`: short;
    `mpirun`: its path; `version`: from `mpirun --version`, else `mpirun_missing` is the reason. `slurm_*`:
    its name and state in Slurm, and the MPI types of srun; "" without Slurm."""

    host_keys: tuple[str, ...]
    user: str
    hostname: str
    mpirun: str
    version: str
    mpirun_missing: str
    slurm_node: str
    slurm_state: str
    slurm_mpi: tuple[str, ...]
    public_key: str


def new_name(*words: str) -> str:
    """Return a unique launch name that begins with these words, such as a run and a check."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-.")[:60]
    return f"{plain or 'launch'}-{secrets.token_hex(3)}"


class Launch:
    """One launch named by letters, digits, dots and dashes, open for at most `seconds`."""

    def __init__(self, plays: Plays, name: str, seconds: int) -> None:
        self.name, self._plays, self._seconds = name, plays, seconds
        self.folder = f"{FOLDER}/{name}"
        self._opened: list[str] = []

    def open(self, mpiruns: Mapping[str, str]) -> tuple[dict[str, Ready], dict[str, str]]:
        """Open the launch on these nodes (name → mpirun path); return answers, and reasons for failures."""
        self._opened = list(mpiruns)
        answers: dict[str, Mapping[str, Any]] = {}
        scripts = {name: (paths.DATA / "launch" / f"{name}.sh").read_text("utf-8") for name in _SCRIPTS}
        same = {"gpuprov_launch_seconds": self._seconds, "gpuprov_launch_scripts": scripts}
        variables = {node: {**same, "gpuprov_launch_mpirun": path} for node, path in mpiruns.items()}
        silent = self._play("open", variables, answers)
        ready: dict[str, Ready] = {}
        for node, answer in answers.items():
            try:
                ready[node] = _ready(answer)
            except ParseError as error:
                silent[node] = error.what
        return ready, silent

    def admit(self, ready: Mapping[str, Ready]) -> dict[str, str]:
        """Admit these nodes to one another over ssh; return the reason for each node that was refused."""
        authority = Authority(f"gpuprov-launch-{self.name}", self._seconds)
        certificates: dict[str, dict[str, Any]] = {}
        refused: dict[str, str] = {}
        for node, one in ready.items():
            try:
                signed = authority.sign(one.public_key, f"/bin/sh {self.folder}/accept")
            except ParseError as error:
                refused[node] = error.what
                continue
            certificates[node] = {
                "gpuprov_launch_certificate": signed,
                "gpuprov_launch_authority": authority.public,
            }
        return {**refused, **self._play("admit", certificates, {})}

    def end(self, nodes: Sequence[str]) -> None:
        """End the launch's remaining processes on these nodes."""
        self._play("end", {node: {} for node in nodes}, {})

    def close(self) -> None:
        """Close the launch on every node it was opened on."""
        opened, self._opened = self._opened, []
        self._play("close", {node: {} for node in opened}, {})

    def _play(
        self, state: str, wanted: Mapping[str, Mapping[str, Any]], answers: dict[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        asked = {"gpuprov_launch_state": state, "gpuprov_launch_name": self.name}
        hosts = {
            node: {**self._plays.variables[node], **asked, **more, "gpuprov_task_timeout": _STEP}
            for node, more in wanted.items()
        }
        return self._plays.play("launch.yml", hosts, answers.__setitem__)


def _ready(answer: Mapping[str, Any]) -> Ready:
    """Parse a node's answer (untrusted). Raises ParseError."""
    slurm = answer.get("slurm") or {}
    try:
        words = {"user": answer["user"], "hostname": answer["hostname"]}
        keys, texts = answer["host_keys"], [answer[key] for key in _TEXTS]
        node, state, kinds = slurm.get("node", ""), slurm.get("state", ""), slurm.get("mpi", [])
    except (KeyError, TypeError, AttributeError) as error:
        raise ParseError(f"its answer was not understood: {error!r:.80}") from error
    names = [*words.values(), *([node] if node else []), *(kinds if isinstance(kinds, list) else [None])]
    if not all(isinstance(word, str) and _WORD.fullmatch(word) for word in names):
        raise ParseError("its answer has an invalid name")
    if not all(isinstance(text, str) and len(text) < 2000 for text in texts):
        raise ParseError("its answer has something else where a text should be")
    if not isinstance(state, str) or not _STATE.fullmatch(state):
        raise ParseError("its answer has an invalid state of Slurm")
    if not isinstance(keys, list) or not all(isinstance(k, str) and _HOST_KEY.fullmatch(k) for k in keys):
        raise ParseError("its answer has an invalid host key")
    if not keys:
        raise ParseError("its sshd has no host key")
    public_key, mpirun, version, missing = texts
    return Ready(
        host_keys=tuple(keys),
        user=words["user"],
        hostname=words["hostname"],
        mpirun=mpirun,
        version=version,
        mpirun_missing=missing,
        slurm_node=node,
        slurm_state=state,
        slurm_mpi=tuple(kinds),
        public_key=public_key,
    )


# --- SSH keys of a launch: a certificate authority that lives as long as this process, and its certificates.
# Each node creates its own key pair and the authority signs the public key, so a node needs a single line to
# accept all others. Certificates expire by themselves.


_CLOCKS = 86400  # largest clock error of a node, in seconds


class Authority:
    """Certificate authority for one launch's keys; they are valid for `seconds`, plus `_CLOCKS`."""

    def __init__(self, launch: str, seconds: int) -> None:
        self._launch, self._until = launch, int(time.time()) + seconds
        self._key = Ed25519PrivateKey.generate()

    @property
    def public(self) -> str:
        """The public key as a line of authorized_keys: `ssh-ed25519 AAAA…`."""
        encoded = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return encoded.decode("ascii")

    def sign(self, public_key: str, command: str) -> str:
        """Return a certificate that lets this (untrusted) key run only `command`. Raises ParseError."""
        try:
            key = load_ssh_public_key(public_key.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ParseError(f"its new key is invalid: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ParseError("its new key is not an Ed25519 key")
        builder = (
            SSHCertificateBuilder()
            .public_key(key)
            .type(SSHCertificateType.USER)
            .serial(0)
            .key_id(self._launch.encode())
            .valid_principals([self._launch.encode()])
            .valid_after(int(time.time()) - _CLOCKS)
            .valid_before(self._until + _CLOCKS)
            .add_critical_option(b"force-command", command.encode())
        )
        return builder.sign(self._key).public_bytes().decode("ascii")
