# ruff: noqa: E501 - messages of tools are quoted verbatim
"""Verbatim error messages of tools, and the explanations that gpuprov prints for them."""

from __future__ import annotations

import pytest

from provision.remote.ansible.messages import MESSAGE_LIMIT, cause_of, message_of

SAID = {
    # apt 3.0 with its server stopped
    "E: Failed to fetch http://10.78.0.1:8080/cuda/libnccl2_2.27.7.deb  Could not connect to 10.78.0.1:8080 "
    "(10.78.0.1). - connect (111: Connection refused)\nE: Unable to fetch some archives, maybe run apt-get update": (
        "the package repository 10.78.0.1:8080 did not serve the request (Could not connect to 10.78.0.1:8080 "
        "(10.78.0.1). - connect (111: Connection refused)): is it up, and may this node reach it?"
    ),
    "E: Failed to fetch http://mirror/debian/x.deb  503  Unable to download in offline mode [IP: 10.0.0.1 80]": (
        "the package repository mirror did not serve the request (503  Unable to download in offline mode "
        "[IP: 10.0.0.1 80]): is it up, and may this node reach it?"
    ),
    # apt 2.6, lists older than the mirror
    "E: Failed to fetch http://10.0.0.1/cuda/./libnccl2_2.27.7-1_amd64.deb  404  Not Found [IP: 10.0.0.1 80]\n"
    "E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?": (
        "10.0.0.1 does not have libnccl2_2.27.7-1_amd64.deb (404 Not Found): the node's package lists are likely "
        "older than the mirror (apt-get update there, or dnf clean metadata), or the mirror is incomplete"
    ),
    "[MIRROR] libnccl-2.27.7-1.x86_64.rpm: Status code: 404 for http://m/cuda/libnccl-2.27.7-1.x86_64.rpm (IP: 10.0.0.1)": (
        "m does not have libnccl-2.27.7-1.x86_64.rpm (404 Not Found): the node's package lists are likely older "
        "than the mirror (apt-get update there, or dnf clean metadata), or the mirror is incomplete"
    ),
    # OpenSSH 9.2
    "Failed to connect to the host via ssh: ssh: Could not resolve hostname gpu-99: Name or service not known": (
        "the name gpu-99 does not resolve on this machine: correct ansible_host, or the resolver (DNS, /etc/hosts)"
    ),
    # apt 2.6
    "E: Sources that disagree are in: /etc/apt/sources.list.d/a.list, /etc/apt/sources.list.d/b.sources\n"
    "E: Conflicting values set for option Signed-By regarding source http://m/cuda/ /: /a.gpg != /b.gpg\n"
    "E: The list of sources could not be read.": (
        "apt reads no source at all while two of them disagree about Signed-By of http://m/cuda/: correct or "
        "remove one, in /etc/apt/sources.list.d/a.list, /etc/apt/sources.list.d/b.sources"
    ),
    # our module, before apt 2.6's message
    "E: Somebody keeps back: sitewatch. Release: apt-mark unhold sitewatch\nE: Error, pkgProblemResolver::Resolve "
    "generated breaks, this may be caused by held packages.": (
        "somebody keeps back sitewatch, which is in the way of the declared packages: release it on the node "
        "(apt-mark unhold sitewatch), then run again"
    ),
    # apt 2.6 of Debian 12
    "The following packages have unmet dependencies:\n ceph-mgr : Depends: librados2 (= 19.2.3-pve1) but 19.2.3-pve4 "
    "is to be installed\nE: Unable to correct problems, you have held broken packages.": (
        "apt cannot install these versions together: ceph-mgr : Depends: librados2 (= 19.2.3-pve1) but 19.2.3-pve4 "
        "is to be installed: does a pin or a hold keep one of them back (apt-cache policy, apt-mark showhold)?"
    ),
    "W: Failed to fetch http://a/InRelease  Temporary failure resolving 'a'\nW: Some index files failed": (
        "the package repository a did not serve the request (Temporary failure resolving 'a'): "
        "is it up, and may this node reach it?"
    ),
    "Errors during downloading metadata for repository 'cuda':\n  - Curl error (7): Couldn't connect to server "
    "for http://10.0.0.1:8080/repodata/repomd.xml [Failed to connect]": (
        "the package repository 10.0.0.1:8080 did not serve the request (Curl error (7): Couldn't connect to "
        "server): is it up, and may this node reach it?"
    ),
    "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (unattended-upgr)\n"
    "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?": (
        "another package manager is at work there (process 4711, unattended-upgr): wait for it, or stop it; "
        "nothing was changed"
    ),
    "dpkg: error: dpkg frontend lock was locked by another process with pid 151\nNote: removing the lock file": (
        "another package manager is at work there (process 151): wait for it, or stop it; nothing was changed"
    ),
    "dpkg: error: dpkg frontend lock was locked by /usr/bin/apt-get process with pid 15\nNote: removing": (
        "another package manager is at work there (process 15, /usr/bin/apt-get): wait for it, or stop it; "
        "nothing was changed"
    ),
    "yum lockfile is held by another process": (
        "another package manager is at work there (not named): wait for it, or stop it; nothing was changed"
    ),
    "E: You don't have enough free space in /var/cache/apt/archives/.": (
        "no room on the node for the packages, in /var/cache/apt/archives/: free some (df -h), then run again"
    ),
    "E: Write error - write (28: No space left on device)": (
        "the node's disk is full (no space left on device): free space (df -h, df -i), then run again"
    ),
    "  - At least 512MB more space needed on the / filesystem.": (
        "no room on the node: 512MB more needed on /: free some (df -h), then run again"
    ),
    "E: Release file for http://10.0.0.1/cuda/InRelease is expired (invalid since 400d 3h 2min 1s). Updates for "
    "this repository will not be applied.": (
        "the package list of http://10.0.0.1/cuda/InRelease is expired (since 400d 3h 2min 1s): the node's clock "
        "is wrong (timedatectl), or the mirror was not refreshed"
    ),
    "E: Release file for http://a/InRelease is not valid yet (invalid for another 399d 20h 1min 2s).": (
        "the package list of http://a/InRelease is not valid yet (for another 399d 20h 1min 2s): the node's clock "
        "is wrong (timedatectl), or the mirror was not refreshed"
    ),
    "SSL certificate problem: certificate is not yet valid": (
        "a server's certificate is not yet valid: is the node's clock right (timedatectl)?"
    ),
    "E: Failed to fetch http://a/x.deb  Hash Sum mismatch\n   Hashes of expected file:": (
        "a sent something else than its signed list promises (Hash Sum mismatch): a mirror in the middle of an "
        "update, or a changed package; it was not installed"
    ),
    "W: GPG error: http://a InRelease: The following signatures couldn't be verified because the public key is "
    "not available: NO_PUBKEY A4B469963BF863CC": (
        "the package list is not signed by the key that is trusted for it: nothing of it was taken "
        "(its key is A4B469963BF863CC)"
    ),
    "E: Failed to fetch http://a/InRelease  Sub-process /usr/bin/sqv returned an error code (1), error message is: "
    "Missing key 67ACDFE032E87A965F40F389DB0AA99EA1B61E84, which is needed to verify signature.": (
        "the package list is not signed by the key that is trusted for it: nothing of it was taken "
        "(its key is 67ACDFE032E87A965F40F389DB0AA99EA1B61E84)"
    ),
    "E: The repository 'http://a ./ Release' is no longer signed.": (
        "the package list is not signed by the key that is trusted for it: nothing of it was taken"
    ),
    'error message is: Error: Failed to parse keyring "/etc/apt/keyrings/a.gpg"  Caused by:     0: Reading': (
        "apt cannot read the keyring /etc/apt/keyrings/a.gpg of a source: restore it, or correct Signed-By"
    ),
    "E: Failed to fetch http://a/b/x_1.0_all.deb  404  File not found [IP: 10.0.0.1 80]": (
        "a does not have x_1.0_all.deb (404 Not Found): the node's package lists are likely older than the mirror "
        "(apt-get update there, or dnf clean metadata), or the mirror is incomplete"
    ),
    "Package baz-1.0-1.noarch.rpm is not signed\nError: GPG check FAILED": (
        "the package baz-1.0-1.noarch.rpm is not signed by a key that is trusted for its repository: it was not "
        "installed"
    ),
    "Error: Error downloading packages:\n  foo-2.0-1.noarch: Cannot download, all mirrors were already tried without": (
        "no mirror served the package foo-2.0-1.noarch: the node's package lists are likely older than the mirror "
        "(dnf clean metadata), or the mirror is incomplete or down"
    ),
    "Error: Failed to download metadata for repo 'cuda': Cannot download repomd.xml: Cannot download "
    "repodata/repomd.xml: All mirrors were tried": (
        "the package repository cuda did not serve the request (Cannot download): is it up, and may this node reach "
        "it?"
    ),
    "Public key for foo-1.0-1.noarch.rpm is not installed. Failing package is: foo-1.0-1.noarch\n GPG Keys": (
        "the package foo-1.0-1.noarch.rpm is not signed by a key that is trusted for its repository: it was not "
        "installed"
    ),
    "Curl error (37): Could not read a file:// file for file:///etc/gone.asc [Couldn't open file /etc/gone.asc]": (
        "dnf cannot read /etc/gone.asc, a key of one of its repositories: restore it, or correct gpgkey"
    ),
    'Failed to download metadata (baseurl: "http://a") for repository "s": repomd.xml GPG signature verification error': (
        "the package list is not signed by the key that is trusted for it: nothing of it was taken"
    ),
    "Shared connection to 10.0.0.1 closed.": (
        "the connection broke in the middle: the node went down or booted, or the network was cut"
    ),
    "Timeout, server 10.0.0.1 not responding.": (
        "the connection broke in the middle: the node went down or booted, or the network was cut"
    ),
}


@pytest.mark.parametrize(("said", "cause"), SAID.items())
def test_a_cause_is_told_in_plain_words(said: str, cause: str) -> None:
    assert cause_of(said) == cause


@pytest.mark.parametrize(
    "said", ["", "E: Version '2' for 'libnccl2' was not found", "it failed", "a" * 100_000]
)
def test_what_is_not_known_is_left_as_it_is(said: str) -> None:
    assert cause_of(said) == ""


def test_what_was_said_stays_behind_the_cause() -> None:
    said = "dpkg: error: dpkg frontend lock was locked by another process with pid 151"
    message = message_of({"msg": "non-zero return code", "rc": 2, "stderr": said})
    assert message.startswith("another package manager is at work there (process 151)")
    assert message.endswith(said)
    assert "\n" not in message
    assert len(message_of({"msg": f"{'x' * 5000} No space left on device"})) <= MESSAGE_LIMIT


def test_apt_3_tells_the_dependencies_and_not_the_head_of_its_solver() -> None:
    error = (
        "Error: Unable to correct problems, you have held broken packages.\n"
        "Error: The following information from --solver 3.0 may provide additional context:\n"
        "   Unable to satisfy dependencies. Reached two conflicting decisions:\n"
        "   1. ceph-common:amd64=19.2.3-pve1 is not selected for install\n"
        "   2. ceph-common:amd64=19.2.3-pve1 is selected as a downgrade because:\n"
        "      1. ceph-mds:amd64=19.2.3-pve1 is selected for install\n"
    )
    message = message_of({"msg": f"apt-get install failed (100): {error}", "rc": 100, "stderr": error})
    assert message.startswith(
        "apt cannot install these versions together: 1. ceph-common:amd64=19.2.3-pve1 is not selected for install · "
        "2. ceph-common:amd64=19.2.3-pve1 is selected as a downgrade because: · 1. ceph-mds:amd64=19.2.3-pve1"
    )
    assert "--solver" not in message
    listed = "Unsatisfied dependencies:\n zabbix-agent : Depends: libldap-2.5-0 (>= 2.5.4) but it is not installable\n"
    message = message_of(
        {"msg": f"apt-get install failed (100): {error}", "rc": 100, "stdout": listed, "stderr": error}
    )
    assert "zabbix-agent : Depends: libldap-2.5-0 (>= 2.5.4) but it is not installable" in message


def test_a_secret_in_what_was_said_is_masked() -> None:
    said = "E: Failed to fetch http://user:hunter22@mirror/x.deb  401  Unauthorized"
    assert "hunter22" not in message_of({"msg": said}, ["hunter22"])


def test_the_login_in_the_url_of_a_repository_is_hidden() -> None:
    said = (
        "E: Conflicting values set for option Signed-By regarding source http://bob:hunter2@m.example/cuda/ /: "
        "/a.gpg != /b.gpg\nE: The list of sources could not be read."
    )
    line = message_of({"msg": said})
    assert "http://********@m.example/cuda/" in line
    assert "hunter2" not in line
