"""Formatter of failed Ansible tasks: one line with the cause and the next step (pure).

Samples of matched text stand above each pattern. The original output follows the explained cause, so that
readers can check the explanation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from provision.secrets_mask import HIDDEN, masked

Words = Callable[[re.Match[str]], str]


def _repository(match: re.Match[str]) -> str:
    return (
        f"the package repository {match['host']} did not serve the request ({match['why'].strip(' .:-')}): "
        "is it up, and may this node reach it?"
    )


def _unmet(match: re.Match[str]) -> str:
    lines = " · ".join(" ".join(line.split()) for line in match["lines"].splitlines())
    return (
        f"apt cannot install these versions together: {lines[:300]}: does a pin or a hold keep one of them "
        "back (apt-cache policy, apt-mark showhold)?"
    )


def _kept(match: re.Match[str]) -> str:
    return (
        f"somebody keeps back {match['names']}, which is in the way of the declared packages: release it on "
        f"the node ({match['command'].strip()}), then run again"
    )


def _unsigned(match: re.Match[str]) -> str:
    key = match.groupdict().get("key")
    return "the package list is not signed by the key that is trusted for it: nothing of it was taken" + (
        f" (its key is {key})" if key else ""
    )


def _missing(match: re.Match[str]) -> str:
    return (
        f"{match['host']} does not have {match['file']} (404 Not Found): the node's package lists are likely "
        "older than the mirror (apt-get update there, or dnf clean metadata), or the mirror is incomplete"
    )


def _name(match: re.Match[str]) -> str:
    return (
        f"the name {match['name']} does not resolve on this machine: correct ansible_host, or the resolver "
        "(DNS, /etc/hosts)"
    )


def _locked(match: re.Match[str]) -> str:
    holder = {name: value for name, value in match.groupdict().items() if value}
    who = f"process {holder['pid']}" if "pid" in holder else "not named"
    who += f", {holder['name']}" if "name" in holder else ""
    return f"another package manager is at work there ({who}): wait for it, or stop it; nothing was changed"


def _clock(match: re.Match[str]) -> str:
    return (
        f"the package list of {match['url']} {match['what']} ({match['when']}): the node's clock is wrong "
        "(timedatectl), or the mirror was not refreshed"
    )


# The first match counts.
_CAUSES: tuple[tuple[re.Pattern[str], Words], ...] = (
    # E: Release file for http://10.0.0.1/cuda/InRelease is expired (invalid since 400d 3h 2min 1s). Updates …
    # E: Release file for http://… is not valid yet (invalid for another 399d 20h 1min 2s). Updates …
    (
        re.compile(
            r"Release file for (?P<url>\S{1,300}) (?P<what>is expired|is not valid yet) "
            r"\((?:invalid )?(?P<when>[^()]*)\)"
        ),
        _clock,
    ),
    (
        # certificate is not yet valid · certificate verify failed: certificate has expired
        re.compile(r"certificate (?P<what>is not yet valid|has expired|is expired)", re.IGNORECASE),
        lambda match: f"a server's certificate {match['what']}: is the node's clock right (timedatectl)?",
    ),
    # E: You don't have enough free space in /var/cache/apt/archives/.
    (
        re.compile(r"You don't have enough free space in (?P<where>\S+?)\.?(?=\s|$)"),
        lambda match: (
            f"no room on the node for the packages, in {match['where']}: free some (df -h), then run again"
        ),
    ),
    # At least 500MB more space needed on the / filesystem.
    (
        re.compile(r"At least (?P<size>\S+) more space needed on the (?P<where>\S+) filesystem"),
        lambda match: (
            f"no room on the node: {match['size']} more needed on {match['where']}: free some (df -h), "
            "then run again"
        ),
    ),
    # [Errno 28] No space left on device: '/var/lib/apt/lists/…' · dpkg: error …: No space left on device
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        lambda match: (
            f"the node's disk is full ({match[0].lower()}): free space (df -h, df -i), then run again"
        ),
    ),
    # E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (unattended-upgr)
    (
        re.compile(
            r"Could not get lock \S{1,200}?\. It is held by process (?P<pid>\d{1,9}) \((?P<name>[^()]*)\)"
        ),
        _locked,
    ),
    # dpkg: error: dpkg frontend lock was locked by another process with pid 4711 (dpkg 1.21)
    # dpkg: error: dpkg frontend lock was locked by /usr/bin/apt-get process with pid 4711 (dpkg 1.22)
    (
        re.compile(r"lock was locked by (?:another|(?P<name>\S{1,200})) process with pid (?P<pid>\d{1,9})"),
        _locked,
    ),
    # Failed to lock apt for exclusive operation: … · E: Unable to acquire the dpkg frontend lock (…), is …
    # yum lockfile is held by another process · Failed to obtain the transaction lock (logged in as: root).
    (
        re.compile(
            r"Failed to lock apt|Unable to (?:acquire|lock) the|[Ll]ockfile is held by another process|"
            r"Failed to obtain the transaction lock|Waiting for process with pid (?P<pid>\d+) to finish"
        ),
        _locked,
    ),
    # E: Failed to fetch http://m/x.deb  Hash Sum mismatch · File has unexpected size (12 != 34). Mirror …
    (
        re.compile(
            r"Failed to fetch \w+://(?P<host>[^/\s]+)(?:/\S*)?\s{1,20}"
            r"(?P<why>Hash Sum mismatch|File has unexpected size)"
        ),
        lambda match: (
            f"{match['host']} sent something else than its signed list promises ({match['why']}): "
            "a mirror in the middle of an update, or a changed package; it was not installed"
        ),
    ),
    # … error message is: Error: Failed to parse keyring "/etc/apt/keyrings/a.gpg"  Caused by: … (sqv 1.3)
    (
        re.compile(r'Failed to parse keyring "(?P<file>[^"\n]{1,300})"'),
        lambda match: (
            f"apt cannot read the keyring {match['file']} of a source: restore it, or correct Signed-By"
        ),
    ),
    # The following signatures couldn't be verified because the public key is not available: NO_PUBKEY A4B4…
    # … error message is: Missing key 67AC…, which is needed to verify signature. (sqv 1.3, of apt 3.0)
    (re.compile(r"(?:NO_PUBKEY|Missing key) (?P<key>[0-9A-F]{16,64})"), _unsigned),
    # Package x.rpm is not signed · Public key for x.rpm is not installed. Failing package is: x-1.noarch
    # The GPG keys listed for the "t" repository are already installed but … (dnf 4)
    # from repo "t" has failed: Import of the key didn't help, wrong key? (dnf 5)
    (
        re.compile(
            r"Package (?P<package>\S{1,200}\.rpm) is not signed|"
            r"(?:Public key for|they are not correct for) (?P<other>\S{1,200}\.rpm|this package)|"
            r'OpenPGP check for package "(?P<third>[^"\n]{1,200})"'
        ),
        lambda match: (
            f"the package {match['package'] or match['other'] or match['third']} is not signed by a key that "
            "is trusted for its repository: it was not installed"
        ),
    ),
    # The repository 'http://a ./ Release' is no longer signed. (apt 2.6)
    # Sub-process /usr/bin/sqv returned an error code (1), error message is: … has been manipulated
    # … repo 't': GPG verification is enabled, but GPG signature is not available. (dnf 4 and 5)
    # … repo 't': GPG signature verification error: Bad GPG signature (dnf 5: Signing key not found)
    (
        re.compile(
            r"The following signatures were invalid|is (?:not|no longer) signed|"
            r"Sub-process /usr/bin/sqv returned an error|GPG signature is not available|"
            r"GPG signature verification error"
        ),
        _unsigned,
    ),
    # E: Somebody keeps back: sitewatch. Release: apt-mark unhold sitewatch (our module; then apt's text)
    (
        re.compile(
            r"Somebody keeps back: (?P<names>[^\n]{1,300}?)\. "
            r"Release: (?P<command>[^\n]{1,400}?)(?=\n|·| E: | Error: |$)"
        ),
        _kept,
    ),
    # The following packages have unmet dependencies: (apt 2.6) · Unsatisfied dependencies: (apt 3.0)
    #  libfoo1 : Depends: libfoo-common (= 580.1) but 570.1 is to be installed
    (
        re.compile(
            r"(?:have unmet dependencies|Unsatisfied dependencies):\n(?P<lines>(?: [^\n]{1,300}\n){1,6})"
        ),
        _unmet,
    ),
    # Unable to satisfy dependencies. Reached two conflicting decisions: (apt 3.0)
    #    1. ceph-common:amd64=19.2.3-pve1 is not selected for install
    (
        re.compile(
            r"Reached two conflicting (?:decisions|assignments):\n(?P<lines>(?: [^\n]{1,300}(?:\n|$)){1,6})"
        ),
        _unmet,
    ),
    # E: Sources that disagree are in: /etc/apt/sources.list.d/a.list, … (our module) · E: Conflicting values
    # set for option Signed-By regarding source http://mirror.example/cuda/ /: a.gpg != b.gpg (apt 2.6)
    (
        re.compile(
            r"Sources that disagree are in: (?P<files>[^\n]{1,400})[^·]{0,20}?"
            r"Conflicting values set for option (?P<what>\S+) regarding source (?P<url>\S+)"
        ),
        lambda match: (
            f"apt reads no source at all while two of them disagree about {match['what']} of "
            f"{match['url']}: correct or remove one, in {match['files'].strip()}"
        ),
    ),
    # E: Failed to fetch http://m/x.deb  404  Not Found [IP: 10.0.0.1 80] (the text is the server's)
    (
        re.compile(
            r"Failed to fetch \w+://(?P<host>[^/\s]+)/(?:\S{0,500}/)?(?P<file>[^/\s]+\.deb)\s{1,20}"
            r"(?P<why>404\s{1,9}\S)"
        ),
        _missing,
    ),
    # [MIRROR] x.rpm: Status code: 404 for http://m/x.rpm (IP: 10.0.0.1) (librepo 1.14)
    (
        re.compile(
            r"(?P<why>Status code: 404) for \w+://(?P<host>[^/\s]+)/(?:\S{0,500}/)?(?P<file>[^/\s]+\.rpm)"
        ),
        _missing,
    ),
    #   x-2.0-1.noarch: Cannot download, all mirrors were already tried without success (dnf 4 --quiet)
    #  Librepo error: Cannot download noarch/x-2.0-1.noarch.rpm: All mirrors were tried (dnf 5)
    (
        re.compile(
            r"(?:^  (?P<package>\S{1,200}): Cannot download, all mirrors were|"
            r"Librepo error: Cannot download (?P<file>\S{1,300}\.rpm): All mirrors were)",
            re.MULTILINE,
        ),
        lambda match: (
            f"no mirror served the package {match['package'] or match['file']}: the node's package lists are "
            "likely older than the mirror (dnf clean metadata), or the mirror is incomplete or down"
        ),
    ),
    # ssh: Could not resolve hostname gpu-99: Name or service not known (OpenSSH 9.2)
    (re.compile(r"ssh: Could not resolve hostname (?P<name>\S{1,255}?):"), _name),
    # E: Failed to fetch http://10.0.0.1:8080/x.deb  Could not connect to 10.0.0.1:8080 (10.0.0.1). - …
    (
        re.compile(
            r"Failed to fetch \w+://(?P<host>[^/\s]+)(?:/\S*)?\s{1,20}"
            r"(?P<why>[^\n·]{3,160}?)(?=\s{0,20}(?:\n|·|$|E: |W:))"
        ),
        _repository,
    ),
    # Could not resolve 'mirror.example' · Could not connect to 10.0.0.1:8080 (10.0.0.1). - connect (111: …)
    (
        re.compile(r"(?P<why>Could not (?:resolve|connect to) '?(?P<host>[\w.:-]+)'?[^\n·]{0,100})"),
        _repository,
    ),
    # Curl error (37): Could not read a file:// file for file:///etc/a.asc [Couldn't open file …] (dnf 4)
    # cannot open file: (2) - No such file or directory [/etc/a.asc] (dnf 5)
    (
        re.compile(
            r"Could(?: not|n't) read a file:// file for file://(?P<file>/\S{1,300})(?<!repomd\.xml) \[|"
            r"cannot open file: \(\d+\) - [^\[\n]{1,99}\[(?P<other>/[^\]\n]{1,300})\]"
        ),
        lambda match: (
            f"dnf cannot read {match['file'] or match['other']}, a key of one of its repositories: restore "
            "it, or correct gpgkey"
        ),
    ),
    # Curl error (7): Couldn't connect to server for http://10.0.0.1/repodata/repomd.xml [Failed to connect …]
    (
        re.compile(r"(?P<why>Curl error \(\d+\): [^\n]{3,100}?) for \w+://(?P<host>[^/\s]+)"),
        _repository,
    ),
    # Error: Failed to download metadata for repo 't': Cannot download repomd.xml: … (dnf 4)
    # Failed to download metadata (baseurl: "http://m/") for repository "t": Usable URL not found (dnf 5)
    # … repo 't': Yum repo downloading error: Downloading error(s): repodata/a-primary.xml.zst - … (dnf 4)
    # … repo 't': repomd.xml parser error: Element <repomd> was not found - … (dnf 5: Parsing unsuccessful)
    (
        re.compile(
            r"""Failed to download metadata .{0,300}?for repo(?:sitory)? ['"](?P<host>[^'"\n]{1,100})['"]: """
            r"(?P<why>Cannot download|Usable URL not found|Yum repo downloading error|"
            r"repomd\.xml parser error|Parsing unsuccessful)"
        ),
        _repository,
    ),
    # Shared connection to 10.0.0.1 closed. · Connection to 10.0.0.1 closed by remote host. · … Broken pipe
    # Timeout, server 10.0.0.1 not responding.
    (
        re.compile(
            r"Shared connection to \S+ closed|Connection to \S+ closed by remote host|Connection reset by|"
            r"client_loop: send disconnect|Timeout, server \S+ not responding|"
            r"mux_client\w{0,40}: .{0,200}[Bb]roken pipe"
        ),
        lambda _match: (
            "the connection broke in the middle: the node went down or booted, or the network was cut"
        ),
    ),
)


def cause_of(said: str) -> str:
    """Return the cause in plain words with advice; empty if it is unknown."""
    for pattern, explain in _CAUSES:
        match = pattern.search(said)
        if match:
            return explain(match)
    return ""


MESSAGE_LIMIT = 600
_SAID = ("stdout", "module_stdout", "stderr", "module_stderr", "msg")
_LOGIN = re.compile(r"(https?://)[^\s/@]{1,400}@")  # apt 2.6 prints it if two sources disagree
_SEARCHED = 64 * 1024  # characters at the end that are searched for a cause

_NOISE = (
    re.compile(r"^(Task failed: |Module failed: |Action failed: )+"),
    re.compile(
        r'^Data could not be sent to remote host "[^"]*"\. Make sure this host can be reached over ssh: '
    ),
    re.compile(r"^Failed to connect to the host via ssh: "),
    # The whole command line of apt-get, before its output.
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
        "sudo refused: give its password with -K or ansible_become_password (vaulted), or let this user do "
        "without one",
    ),
)


def _last_lines(text: Any, count: int = 3) -> list[str]:
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E: ", "Error: ", "error: ", "fatal: "))]
    errors = [
        line for line in errors if not line.endswith("may provide additional context:")
    ]  # apt 3.0: introduces the lines after it
    return (errors or lines)[-count:]


# The first line with a compiler's or linker's reason, among notes, carets and the end of make.
# Seen with nvcc 13.5, g++ 14.2 and GNU ld 2.44: `nvcc fatal   : Unsupported gpu architecture 'compute_50'`,
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
    """Return the compiler's reason for a failed build; empty without a compiler's message."""
    matches = (_COMPILER.search(str(text or "")[:_SEARCHED]) for text in texts)
    return next(([match[0].strip()] for match in matches if match), [])


def message_of(result: Mapping[str, Any], secrets: Collection[str] = ()) -> str:
    """Return one actionable line: the module's message and the last lines of the program's output."""
    if result.get("censored"):
        return "it failed, and the task hides its output (no_log)"
    message = result.get("msg") or result.get("reason") or ""
    text = "\n".join(map(str, message)) if isinstance(message, list) else str(message)
    for noise in _NOISE:
        text = noise.sub("", text)
    for pattern, replacement in _TRANSLATED:
        if pattern.match(text):
            return pattern.sub(replacement, text)
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
    line = _LOGIN.sub(rf"\1{HIDDEN}@", str(masked(" · ".join(parts), secrets)))
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"
