"""The programs that `nvidia-smi -q -x` lists on a GPU, without those that only watch it."""

from __future__ import annotations

from xml.etree.ElementTree import Element

# Programs that only watch: they hold a context without work.
_AGENTS = frozenset({"nv-hostengine", "dcgm-exporter", "dcgmi", "nvidia-smi", "nvidia-persistenced"})
_AGENT_STEMS = ("nvidia-persiste",)  # the kernel cuts names at 15 letters


def is_agent(name: str) -> bool:
    """Whether a program only watches GPUs: `/usr/bin/nv-hostengine`, `nvidia-smi`."""
    stem = (name.split() or ["?"])[0].rsplit("/", 1)[-1]
    return stem in _AGENTS or stem.startswith(_AGENT_STEMS)


def programs(gpu: Element) -> str:
    """The programs that use the GPU, without those that only watch: `python3 (pid 4711, 4096 MiB)`."""
    found = []
    for process in gpu.findall("processes/process_info"):
        name = (process.findtext("process_name") or "?").strip()
        if (process.findtext("type") or "").strip() != "G" and not is_agent(name):
            memory = (process.findtext("used_memory") or "?").strip()
            found.append(f"{name[:80]} (pid {(process.findtext('pid') or '?').strip()[:10]}, {memory[:20]})")
    return ", ".join(found[:8])
