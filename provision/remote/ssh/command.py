"""The command line that starts the program on a node, and the cause when it ends without an answer (pure)."""

from __future__ import annotations

import shlex

from provision.remote.node_error import NodeError
from provision.remote.protocol import AnswerError, CutError, one_line, unframed

READY = "@gpuprov-ready"  # printed when sudo has let us in: the program may be sent


def command(python: str, *, become: bool, prompt: str | None) -> str:
    """The command line that runs a program from standard input: the same for all nodes but for `python`.

    `prompt`: sudo asks for a password with these words, on standard error. The password is sent only when it
    has asked, the program only when READY was printed: neither can be taken for the other.
    """
    start = f"{shlex.quote(python)} -I -S -"
    if not become:
        return start
    # LC_ALL: sudo's messages are matched below. Through env, since a login shell may be csh or fish.
    if prompt is None:
        return f"env LC_ALL=C sudo -n -- {start}"
    inner = shlex.quote(f"echo {READY}; exec {start}")
    return f"env LC_ALL=C sudo -S -p {shlex.quote(prompt)} -- /bin/sh -c {inner}"


_NO_SUDO = "let this user run sudo on the node, or correct ansible_user and ansible_become in the inventory"
_SUDO = (
    (
        "a password is required",
        "sudo needs a password",
        "set ansible_become_password, or NOPASSWD in sudoers",
    ),
    ("no password was provided", "sudo refused the password", "correct ansible_become_password"),
    ("incorrect password", "sudo refused the password", "correct ansible_become_password"),
    ("Sorry, try again", "sudo refused the password", "correct ansible_become_password"),
    (
        "a terminal is required",
        "sudo needs a password",
        "set ansible_become_password, or NOPASSWD in sudoers",
    ),
    ("must have a tty", "sudo wants a terminal", "remove requiretty from sudoers on the node"),
    ("is not in the sudoers file", "this user may not use sudo", _NO_SUDO),
    ("not allowed to execute", "sudo does not let this user run Python as root", _NO_SUDO),
    ("may not run sudo", "this user may not use sudo", _NO_SUDO),
    ("account validation failure", "sudo refused: the account is locked or expired", _NO_SUDO),
    ("Account or password is expired", "sudo refused: the account is locked or expired", _NO_SUDO),
)


def why_no_answer(
    output: bytes, errors: bytes, status: int | None, *, python: str, become: bool
) -> NodeError:
    """The cause of an `output` that is not an answer, from all the node said."""
    said = errors.decode("utf-8", "replace")
    lines = [line for line in said.splitlines() if line.strip()]
    last = one_line(lines[-1]) if lines else ""
    try:
        unframed(output)
    except CutError as error:
        return NodeError(
            "cut", str(error), "run again; if the error persists, check the node's memory and kernel log"
        )
    except AnswerError as error:
        answered = str(error)
    if become:
        for words, what, fix in _SUDO:
            if words in said:
                return NodeError("sudo", what, fix)
        if any(
            line.startswith(("env: ", "sudo: ")) and "sudo: No such" in line.replace("'", "")
            for line in lines
        ):
            return NodeError(
                "sudo", "sudo is not installed on the node", "install sudo there, or connect as root"
            )
    if status == 127 or f"{python}: command not found" in said:
        fix = "install python3 there, or set ansible_python_interpreter"
        return NodeError("python", f"{python} is not installed on the node", fix)
    if "SyntaxError" in said or "unknown option -I" in said.lower():
        fix = "set ansible_python_interpreter to a Python 3.6 or newer"
        return NodeError("python", f"{python} on the node is older than 3.6", fix)
    if become and said.startswith("sudo: "):
        return NodeError("sudo", f"sudo reported: {last}", _NO_SUDO)
    fix = "log in by hand: the account's shell, forced command or start files print this"
    if not output.strip() and last:
        ended = "" if status is None else f" (status {status})"
        return NodeError("garbage", f"the program did not run{ended}: {last}", fix)
    return NodeError("garbage", answered, fix)
