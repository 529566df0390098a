"""The family slurm: output of scontrol in Slurm 22.05 to 24.11 about a node and the configuration."""

from __future__ import annotations

import os

import pytest

from tests.node.machine import Tree

HOST = os.uname().nodename.partition(".")[0]
# Slurm 24.11.5 of Debian 13, shortened.
CONFIG = """\
Configuration data as of 2026-11-25T23:25:31
AccountingStorageBackupHost = (null)
Epilog[0]               = /usr/libexec/gpuprov/slurm-epilog
EpilogMsgTime           = 2000 usec
HealthCheckInterval     = 90 sec
HealthCheckNodeState    = CYCLE,ANY
HealthCheckProgram      = /usr/libexec/gpuprov/slurm-health-check
Prolog[0]               = /etc/slurm/prolog.d/*
Prolog[1]               = /usr/libexec/gpuprov/slurm-prolog
PrologEpilogTimeout     = 65534
PrologFlags             = Alloc
SLURM_VERSION           = 24.11.5
TaskProlog              = (null)
"""
BARE = """\
HealthCheckInterval     = 0 sec
HealthCheckProgram      = (null)
Epilog                  = (null)
Prolog                  = /opt/prolog
"""
FACTS = ("slurm.health_check_program", "slurm.health_check_interval", "slurm.prolog", "slurm.epilog")


def prints(tree: Tree, text: str, status: int = 0, question: str = "show config") -> None:
    """Make scontrol print this text, for this question only."""
    tree.file("/answer", text)
    tree.tool("scontrol", f'[ "$*" = "{question}" ] || exit 9\n/bin/cat {tree.root}/answer\nexit {status}')


def gres(text: str) -> str:
    return f"NodeName={HOST} CoresPerSocket=1 \n   ActiveFeatures=(null)\n   Gres={text}\n   NodeAddr=a\n"


def test_the_programs_are_read_and_patterns_become_files(tree: Tree) -> None:
    prints(tree, CONFIG)
    for name in ("10-site", "50-gpuprov"):
        tree.file(f"/etc/slurm/prolog.d/{name}", "", 0o755)
    assert tree.values(*FACTS) == {
        "slurm.health_check_program": "/usr/libexec/gpuprov/slurm-health-check",
        "slurm.health_check_interval": 90,
        "slurm.prolog": [
            *("/etc/slurm/prolog.d/10-site", "/etc/slurm/prolog.d/50-gpuprov"),
            "/usr/libexec/gpuprov/slurm-prolog",
        ],
        "slurm.epilog": ["/usr/libexec/gpuprov/slurm-epilog"],
    }


def test_an_older_slurm_has_one_prolog_and_none_is_none(tree: Tree) -> None:
    prints(tree, BARE)
    assert list(tree.values(*FACTS).values()) == [None, 0, ["/opt/prolog"], []]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:8", 8),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:h100:4(S:0,2),gpu:a100:2(S:1),shard:64(S:0-1)", 6),
        ("nic:2", 0),
        ("(null)", 0),
    ],
)
def test_the_gpus_that_slurm_hands_out(tree: Tree, text: str, gpus: int) -> None:
    prints(tree, gres(text), question=f"show node {HOST}")
    assert tree.value("slurm.gpus") == gpus


def test_a_node_that_has_fewer_than_slurm_conf_says_is_counted_by_what_it_has(tree: Tree) -> None:
    """Slurm 24.11.5, shortened: gres.conf has 4 of the 8 GPUs."""
    reason = "   Reason=gres/gpu count reported lower than configured (4 < 8) [root@2026-11-29T09:37:14]\n"
    said = gres("gpu:8").replace(
        "   NodeAddr", "   State=UNKNOWN+DRAIN+INVALID_REG ThreadsPerCore=1\n   NodeAddr"
    )
    prints(tree, said + reason, question=f"show node {HOST}")
    assert tree.value("slurm.gpus") == 4
    prints(tree, gres("gpu:8") + reason, question=f"show node {HOST}")  # the node registered again
    assert tree.value("slurm.gpus") == 8


def test_not_knowing_is_no_answer(tree: Tree) -> None:
    assert tree.problem("slurm.gpus") == "scontrol is not installed"
    prints(tree, f"Node {HOST} not found\n", 1, f"show node {HOST}")
    assert tree.problem("slurm.gpus") == f"scontrol answered: Node {HOST} not found"
    trouble = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n"
    prints(tree, trouble, 1)
    assert tree.problem("slurm.prolog") == f"scontrol answered: {trouble.strip()}"
    tree.tool("scontrol", "exec /bin/sleep 60")
    assert tree.problem("slurm.epilog", probe_seconds=0.3) == "scontrol: no answer within 0.3 s"
