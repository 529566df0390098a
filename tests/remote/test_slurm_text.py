"""Parsing the output of Slurm's commands. The texts come from Slurm 24.11.5 of Debian 13, on the nodes
of tests/lab/test_slurm.py; other forms of the state come from Slurm's own tables."""

from __future__ import annotations

import pytest

from provision.remote.schedulers import REASON, Holder, Job
from provision.remote.schedulers import slurm_text as read

NODE = """\
NodeName={name} Arch=x86_64 CoresPerSocket=1 
   CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=16.08
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=(null)
   NodeAddr={name} NodeHostName={name} Version=24.11.5
   OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0 
   RealMemory=1 AllocMem=0 FreeMem=18506 Sockets=2 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,extra 
   BootTime=2026-11-25T19:14:29 SlurmdStartTime=2026-11-25T23:51:50
   LastBusyTime=2026-11-25T23:51:50 ResumeAfterTime=None
   CfgTRES=cpu=2,mem=1M,billing=2
   AllocTRES=cpu=1
   CurrentWatts=0 AveWatts=0
   
{reason}
"""  # noqa: W291, W293 - as Slurm prints it


def printed(name: str, state: str, why: str = "") -> str:
    reason = f"   Reason={why} [root@2026-11-25T23:52:56]\n" if why else ""
    return NODE.format(name=name, state=state, reason=reason)


def node(state: str, why: str = "") -> read.NodeText:
    return read.nodes(printed("s1", state, why))["s1"]


def test_several_nodes_and_one_that_is_unknown() -> None:
    text = printed("s1", "IDLE") + "Node s9 not found\n" + printed("s2", "MIXED+DRAIN", "gpuprov: up 1")
    found = read.nodes(text)
    assert list(found) == ["s1", "s2"]
    assert found["s2"].reason == "gpuprov: up 1 [root@2026-11-25T23:52:56]"
    assert found["s2"].why == "gpuprov: up 1"
    assert found["s2"].pools == ("gpu", "extra")
    assert found["s1"].reason == ""


@pytest.mark.parametrize(
    ("state", "why", "holder"),
    [
        ("IDLE", "", Holder.NOBODY),
        ("IDLE", "gpuprov: up 1", Holder.NOBODY),  # RESUME leaves the reason
        ("MIXED+DRAIN", "gpuprov: up 1", Holder.US),
        ("IDLE+DRAIN", "gpuprovoke", Holder.OTHERS),
        ("IDLE+DRAIN", "bad fan, not gpuprov: x", Holder.OTHERS),
        ("IDLE+DRAIN", "", Holder.OTHERS),
        ("IDLE+DRAIN+FAIL", "gpuprov: up 1", Holder.OTHERS),
        ("DOWN", "swap the board", Holder.OTHERS),
        ("DOWN", "Not responding", Holder.NOBODY),
        ("DOWN+NOT_RESPONDING", "Not responding", Holder.NOBODY),
        ("DOWN", "Node unexpectedly rebooted", Holder.NOBODY),
        ("DOWN*", "gpuprov: up 1", Holder.NOBODY),
        ("DOWN+DRAIN", "gpuprov: (was DOWN: Not responding) x", Holder.US),
    ],
)
def test_whose_it_is(state: str, why: str, holder: Holder) -> None:
    assert node(state, why).holder is holder


def test_down_and_taking_jobs() -> None:
    assert [node(state).down for state in ("IDLE", "DOWN", "IDLE+NOT_RESPONDING", "IDLE*")] == [
        *(False, True, True, True)
    ]
    assert [node(state).takes_jobs for state in ("IDLE", "MIXED+PLANNED", "IDLE+DRAIN", "IDLE+NEW_FLAG")] == [
        *(True, True, False, False)
    ]
    assert [node(state).busy for state in ("IDLE", "MIXED", "ALLOCATED+DRAIN", "IDLE+COMPLETING")] == [
        *(False, True, True, True)
    ]


def test_jobs_by_node() -> None:
    found = read.jobs("1|ops|0:03|s[1-2]\n12_3|eve|1-02:03:04|s2,t[08-10]\n", {"s1", "s2", "t09"})
    array = Job("12_3", "eve", 93784)
    assert found == {"s1": [Job("1", "ops", 3)], "s2": [Job("1", "ops", 3), array], "t09": [array]}
    with pytest.raises(ValueError, match="squeue printed 'JOBID USER'"):
        read.jobs("JOBID USER\n", {"s1"})


def test_host_lists() -> None:
    assert list(read.hosts("a[1-2]b[08-09],c")) == ["a1b08", "a1b09", "a2b08", "a2b09", "c"]
    assert len(list(read.hosts("n[1-999999999]"))) == 4096


@pytest.mark.parametrize(("text", "seconds"), [("0:03", 3), ("2:03:04", 7384), ("INVALID", None), ("", None)])
def test_how_long_a_job_has_run(text: str, seconds: int | None) -> None:
    assert read.seconds(text) == seconds


def test_reasons_are_one_bounded_line() -> None:
    said = read.reason_for("Xid 79\n\x1b[2J" + "x" * 500, node("IDLE"))
    assert said.startswith("gpuprov: Xid 79 �[2Jxxx")
    assert len(said) == REASON
    assert read.reason_for('it\'s "lost"', node("IDLE")) == 'gpuprov: it\'s "lost"'


def test_what_was_down_stays_so_over_a_new_reason() -> None:
    first = read.reason_for("up 1", node("DOWN", "Not responding"))
    assert first == "gpuprov: (was DOWN: Not responding) up 1"
    second = read.reason_for("up 2", node("DOWN+DRAIN", first))
    assert second == "gpuprov: (was DOWN: Not responding) up 2"
    assert read.put_back(node("DOWN+DRAIN", second)) == ["State=UNDRAIN", "Reason=Not responding"]
    assert read.put_back(node("IDLE+DRAIN", "gpuprov: up 1")) == ["State=RESUME"]
