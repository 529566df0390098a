"""fio 3.39 with --output-format=json, limited to a disk's speed (axboe/fio, stat.c)."""

import json
import os
import sys
import time

import noise
from load import Load, wait

WRITE, READ = 2800.0, 6700.0  # MB/s of one NVMe disk of the kind common in such machines
SIDES = ("read", "write", "trim")


def _jobs(arguments: list) -> list:
    """Parse the jobs of the command line; options before the first --name apply to all."""
    common, jobs = {}, []
    for word in arguments:
        name, _, value = word.lstrip("-").partition("=")
        if name == "name":
            jobs.append(dict(common, name=value))
        else:
            (jobs[-1] if jobs else common)[name] = value
    return jobs


def fio(node, arguments: list) -> int:
    """Run fio and return its exit status."""
    jobs = _jobs(arguments)
    if not jobs:
        print("No job(s) defined\n")
        return 1
    if any(job.get("output-format", "normal") != "json" for job in jobs[:1]):
        print("fio: only --output-format=json is simulated", file=sys.stderr)
        return 1
    done = []
    with Load(node, "fio", []):
        for job in jobs:
            done.append(_run(node, job))
    failed = any(job["error"] for job in done)
    now = time.time()
    document = {
        "fio version": "fio-3.39",
        "timestamp": int(now),
        "timestamp_ms": int(now * 1000),
        "time": time.ctime(now),
        "jobs": done,
        "disk_util": [],
    }
    print(json.dumps(document, indent=2))
    return 1 if failed else 0


def _run(node, job: dict) -> dict:
    way, seconds = job.get("rw", "read"), float(job.get("runtime", "10"))
    folder = os.path.dirname(job.get("filename", ""))  # noqa: PTH120 - as fio sees it
    missing = not (node.root / folder.lstrip("/")).is_dir()
    if missing:
        print(
            f"fio: pid={os.getpid()}, err=2/file:filesetup.c:174, func=open, error=No such file or directory",
            file=sys.stderr,
        )
        seconds = 0.0
    wait(node, seconds)
    rate = 0.0 if missing else _rate(node, way) * 1e6
    sides = {side: _side(rate if side == way else 0.0, seconds) for side in SIDES}
    report = {
        "jobname": job["name"],
        "groupid": 0,
        "error": 2 if missing else 0,
        "eta": 0,
        "elapsed": int(seconds),
    }
    report["job options"] = job
    report.update(sides, job_runtime=int(seconds * 1000))
    return report


def _rate(node, way: str) -> float:
    rate = WRITE if way == "write" else READ
    rate *= node.factor("disk_slow")
    rate *= node.factor("scratch_old")
    return rate * noise.jitter(node, "disk", way, 0.01)


def _side(rate: float, seconds: float) -> dict:
    moved = int(rate * seconds)
    return {
        "io_bytes": moved,
        "io_kbytes": moved >> 10,
        "bw_bytes": int(rate),
        "bw": int(rate) >> 10,
        "iops": rate / (1 << 20),
        "runtime": int(seconds * 1000) if rate else 0,
        "total_ios": moved >> 20,
    }
