"""Answers to command lines that Ansible would understand: what to type instead.

Commands of gpuprov stand in backticks; a test parses each.
"""

from __future__ import annotations

import os

from provision import TYPE_CHECKING
from provision.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_CONNECTION = "connection settings are variables of the inventory, or stand in ansible.cfg"
_VAULTED = "vaulted, in the inventory, and give `gpuprov up --vault-password-file FILE`"
_MODULE = (
    "gpuprov runs no single modules: `ansible` does, with the same inventory; `gpuprov drift` connects to "
    "every node and names those it cannot reach"
)

# What gpuprov does not take, by the names that ansible and ansible-playbook have for it.
FLAGS = {
    "--become-user": "leave it out: gpuprov becomes root",
    "--become-method": f"set ansible_become_method: {_CONNECTION}",
    "--become-password-file --become-pass-file": f"`gpuprov up -K` asks for it; or set "
    f"ansible_become_password, {_VAULTED}",
    "--connection-password-file --conn-pass-file": f"`gpuprov up -k` asks for it; or set ansible_password, "
    f"{_VAULTED}",
    "--private-key --key-file": f"set ansible_ssh_private_key_file: {_CONNECTION}",
    "-c --connection": f"set ansible_connection: {_CONNECTION}",
    "--ssh-common-args": f"set ansible_ssh_common_args: {_CONNECTION}",
    "--ssh-extra-args": f"set ansible_ssh_extra_args: {_CONNECTION}",
    "-T": "write `gpuprov plan --timeout S`: the time limit for each node",
    "-J --ask-vault-pass --ask-vault-password": "give `gpuprov up --vault-password-file FILE`",
    "--vault-id --vault-pass-file": "give `gpuprov up --vault-password-file FILE`",
    "-t --tags --skip-tags": "up runs only the steps that a node needs; to choose among roles: "
    "`gpuprov up -e '{gpuprov_roles: [nccl]}'`",
    "--start-at-task --step": "up begins with what still differs; `gpuprov up --resume` continues a run",
    "-f --forks": "`gpuprov up --forks N` limits how many nodes are changed at the same time, "
    "`gpuprov plan --connections N` how many are looked at",
    "--list-hosts": "`gpuprov plan -l PATTERN` lists the nodes, and what up would do to each",
    "--list-tasks --list-tags": "`gpuprov plan` lists each node's roles, `gpuprov up --check` the tasks "
    "that would change something",
    "--syntax-check": "`gpuprov plan` reads the inventory, names the place of a mistake, and changes nothing",
    "-m --module-name -a --args": _MODULE,
    "-C --check": "`gpuprov up --check` shows what the roles would change",
    "-D --diff": "`gpuprov up --check --diff` shows what roles would change, `gpuprov drift` what differs",
    "-v --verbose": "`gpuprov up -v` shows the result of every task, `gpuprov plan -v` every reason",
    "-i --inventory": "it reads no inventory",
    "-l --limit": "it works on no nodes of an inventory",
    "-e --extra-vars": "it reads no variables",
    "-u --user -b --become -k --ask-pass -K --ask-become-pass": "it logs in to no nodes of an inventory",
    "--flush-cache": "leave it out: every command looks at the nodes anew",
    "--force-handlers": "leave it out: up looks again at what roles promise, and says what does not hold",
    "-M --module-path --playbook-dir": "gpuprov runs its own roles; for playbooks of yours see "
    "docs/ansible.md",
}

# First words that are no command.
WORDS = {
    "ping setup facts gather": "`gpuprov drift` connects to every node, names those it cannot reach, and "
    "keeps the facts in its run folder",
    "playbook ansible-playbook ansible": "gpuprov has its own playbook: `gpuprov up -i INVENTORY`; "
    "yours, run by ansible-playbook, can use its roles: docs/ansible.md",
    "apply deploy install provision converge run update upgrade": "`gpuprov plan` shows what would "
    "be done, `gpuprov up` does it",
    "check": "`gpuprov up --check` shows what roles would change, `gpuprov validate` checks the hardware",
    "test verify": "`gpuprov validate` checks the hardware, `gpuprov drift` compares with the inventory",
    "state": "`gpuprov status` shows the nodes now, `gpuprov drift` compares them with the inventory",
    "diff": "`gpuprov drift` shows what differs, `gpuprov up --check --diff` what the roles would change",
    "inventory hosts list ls": "`gpuprov plan -i INVENTORY` lists every node",
    "completion completions": "`gpuprov --print-completion bash` prints it, also for zsh, fish and tcsh",
    "vault": "ansible-vault encrypts; `gpuprov up --vault-password-file FILE` reads what it wrote",
}

# Flags that stand before a command, or instead of one.
_BEFORE = ("-h", "--help", "--version", "--print-completion")

# Flags that stand after the command, and those of gpuprov's commands that have them.
_AFTER = {
    "-i --inventory -l --limit --nodes": ("plan", "up", "validate", "drift", "burnin", "lock"),
    "-e --extra-vars --set": ("plan", "up", "validate", "drift", "burnin", "lock"),
    "-u --user -b --become": ("plan", "up", "validate", "drift", "burnin", "lock"),
    "-k --ask-pass -K --ask-become-pass": ("plan", "up", "validate", "drift", "burnin", "lock"),
    "-C --check -D --diff": ("up",),
    "-v --verbose": ("up", "plan"),
}


def refuse_flags(verb: str | None, unknown: Sequence[str]) -> None:
    """Raises UsageError when `unknown`, which `verb` does not know, has a flag of Ansible's."""
    for word in unknown:
        for names, answer in FLAGS.items():
            if _name(word) in names.split():
                raise UsageError(f"{verb or 'gpuprov'} has no {_name(word)}: {answer}")


def refuse_words(arguments: Sequence[str], verbs: Collection[str]) -> None:
    """Raises UsageError for a command line that begins as one of Ansible's, and with none of `verbs`."""
    word = arguments[0]
    if word.startswith("-"):
        for names, having in _AFTER.items():
            if _name(word) in names.split():
                verb = next((each for each in arguments if each in having), having[0])
                raise UsageError(f"the command comes first: `gpuprov {verb} {_name(word)} …`")
        refuse_flags(None, [word])
        verb = next((each for each in arguments if each in verbs), "")
        if verb and _name(word) not in _BEFORE:
            raise UsageError(f"the command comes first: `gpuprov {verb} {_name(word)} …`")
        return
    for names, answer in WORDS.items():
        if word in names.split():
            raise UsageError(f"there is no command {word}: {answer}")
    if any(_name(each) in ("-m", "-a", "--module-name", "--args") for each in arguments):
        raise UsageError(f"there is no command {word}: {_MODULE}")
    if word == "all" or os.path.exists(word):  # noqa: PTH110 - pathlib would cost `gpuprov --help` a tenth
        import shlex

        nodes = "-l all" if word == "all" else f"-i {shlex.quote(word)}"
        raise UsageError(f"the command comes first: `gpuprov plan {nodes}`, or one of {', '.join(verbs)}")


def _name(word: str) -> str:
    """The flag that a word is, or begins with: `--tags=x`, `-uroot`, `-bK`."""
    return word.partition("=")[0] if word.startswith("--") else word[:2] if word.startswith("-") else ""
