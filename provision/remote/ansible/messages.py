"""Formatter of failed Ansible tasks: one line with the cause and the next step (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from provision.remote.ansible.fault_causes import cause_of
from provision.secrets_mask import masked

MESSAGE_LIMIT = 600
_SAID = ("stdout", "module_stdout", "stderr", "module_stderr", "msg")
_SEARCHED = 64 * 1024  # characters, from the end, in which a cause is looked for

_NOISE = (
    re.compile(r"^(Task failed: |Module failed: |Action failed: )+"),
    re.compile(
        r'^Data could not be sent to remote host "[^"]*"\. Make sure this host can be reached over ssh: '
    ),
    re.compile(r"^Failed to connect to the host via ssh: "),
    # The whole command line of apt-get, in front of what apt-get said.
    re.compile(r"^'?/usr/bin/apt-get .*?' failed: ", re.DOTALL),
)


_TRANSLATED = (
    (
        re.compile(r"^Timeout \((\d+)s\) waiting for privilege escalation prompt:?.*", re.DOTALL),
        r"sudo did not answer within \1 s: the node stopped responding, or sudo waits for input",
    ),
    (
        re.compile(
            r"^(Missing sudo password|Incorrect sudo password|.*sudo: a password is required).*", re.DOTALL
        ),
        "sudo refused: set ansible_become_password (vaulted), or let this user use sudo without a password",
    ),
)


def _last_lines(text: Any, count: int = 3) -> list[str]:
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E: ", "Error: ", "error: ", "fatal: "))]
    return (errors or lines)[-count:]


# The first line in which a compiler or linker says why, in the midst of notes, carets and the end of make.
# Seen of nvcc 13.5, g++ 14.2 and GNU ld 2.44: `nvcc fatal   : Unsupported gpu architecture 'compute_50'`,
# `compare.cu(12): error: identifier "x" is undefined`, `/usr/bin/ld: cannot find -lcuda: No such file or …`,
# `gpu_burn-drv.cpp:113:31: error: too few …`, `a.cpp:1:10: fatal error: cublas_v2.h: No such file or …`.
_COMPILER = re.compile(
    r"^(?:[^\s:(]{1,200}(?::\d{1,7}){1,2}: (?:fatal )?error: "
    r"|[^\s(]{1,200}\(\d{1,7}\): (?:catastrophic )?error\b"
    r"|(?:nvcc|ptxas|nvlink|cicc) (?:fatal|error)\s*: "
    r"|[^\s:]{0,200}\bld: cannot find |CMake Error\b).{1,240}",
    re.MULTILINE,
)


def _compiler_line(*texts: Any) -> list[str]:
    """Why a build failed, in the compiler's own words; empty when no compiler spoke."""
    found = (_COMPILER.search(str(text or "")[:_SEARCHED]) for text in texts)
    return next(([match[0].strip()] for match in found if match), [])


def message_of(result: Mapping[str, Any], secrets: Collection[str] = ()) -> str:
    """One line a person can act on: what the module said, and the last lines of what the program said."""
    if result.get("censored"):
        return "it failed, and the task hides its output (no_log)"
    said = result.get("msg") or result.get("reason") or ""
    text = "\n".join(map(str, said)) if isinstance(said, list) else str(said)
    for noise in _NOISE:
        text = noise.sub("", text)
    for pattern, words in _TRANSLATED:
        if pattern.match(text):
            return pattern.sub(words, text)
    if text in ("", "non-zero return code") and isinstance(result.get("rc"), int):
        text = f"the command ended with status {result['rc']}"
    parts = _last_lines(text, 4) or ["it failed without a message"]
    details = _compiler_line(result.get("stderr"), result.get("stdout"))
    details = details or _last_lines(result.get("stderr") or result.get("module_stderr"))
    details = details or _last_lines(result.get("stdout") or result.get("module_stdout"), 2)
    joined = " · ".join(parts)
    parts += [line for line in details if line not in joined]
    everything = "\n".join(str(result.get(name) or "") for name in _SAID)
    cause = cause_of(everything[-_SEARCHED:])
    if cause:
        parts = [f"{cause} · output: {' · '.join(parts)}"]
    line = str(masked(" · ".join(parts), secrets))
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"
