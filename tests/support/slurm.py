"""`scontrol show node` as Slurm prints it.
Follows slurm_sprint_node_table in its src/api/node_info.c, line by line."""

from __future__ import annotations

NODE = """\
NodeName={name} Arch=x86_64 CoresPerSocket=48 
   CPUAlloc=0 CPUEfctv=96 CPUTot=96 CPULoad=0.04
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=gpu:h100:8
   NodeAddr={name} NodeHostName={name} Version=24.05.3
   OS=Linux 6.1.0-31-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.128-1 (2025-02-07) 
   RealMemory=2000000 AllocMem=0 FreeMem=1900000 Sockets=2 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu 
   BootTime=2026-11-24T10:00:00 SlurmdStartTime=2026-11-24T10:01:00
   LastBusyTime=2026-11-25T09:00:00 ResumeAfterTime=None
   CfgTRES=cpu=96,mem=2000000M,billing=96
   AllocTRES=
   CurrentWatts=0 AveWatts=0
{reason}
"""  # noqa: W291 - as Slurm prints it


def sample(name: str, state: str, reason: str = "") -> str:
    """Return the lines of one node."""
    return NODE.format(name=name, state=state, reason=f"   Reason={reason}\n" if reason else "")
