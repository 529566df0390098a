"""The keys that sign the fixture repositories: one each, generated on this host, never leaving it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuprov_lab.command import PATH, attempt, call
from gpuprov_lab.places import CACHE, make_root_only
from provision.errors import LabError

# gpg's key folder. The path is short because the agent's socket lies in it (at most 107 characters).
HOME = CACHE / "gnupg"


@contextmanager
def keyring(home: Path = HOME) -> Iterator[Path]:
    """Yield the keyring folder, and leave no gpg process behind."""
    make_root_only(home)
    try:
        yield home
    finally:
        stop_agent(home)


def stop_agent(home: Path = HOME) -> None:
    """End the keyring's agent, if one runs."""
    if home.is_dir():
        attempt("gpgconf", "--homedir", home, "--kill", "all")


def fingerprint(home: Path, repository: str) -> str:
    """Return the fingerprint of `repository`'s signing key, upper case; a missing key is generated."""
    user = f"gpuprov lab, {repository} <{repository}@localhost>"
    found = _find(home, user)
    if found is None:
        gpg(home, "--quick-generate-key", user, "ed25519", "sign", "never")
        found = _find(home, user)
    if found is None:
        raise LabError(f"gpg made no key for {user}", f"see gpg --homedir {home} --list-keys")
    return found


def public_key(home: Path, key: str) -> str:
    """Return the armoured public key, as vendors publish it."""
    return gpg(home, "--armor", "--export", key)


# Both forms that apt accepts.
_RELEASE = {"--clear-sign": "InRelease", "--detach-sign": "Release.gpg"}


def sign(home: Path, key: str, index: Path, how: Mapping[str, str] = _RELEASE) -> None:
    """Sign an index in the forms that `how` names: gpg's option → the file next to the index."""
    for option, target in how.items():
        output = index.with_name(target)
        output.unlink(missing_ok=True)
        words = ("--local-user", key, "--digest-algo", "SHA512", "--armor", "--output", str(output))
        gpg(home, *words, option, index)


def sign_packages(home: Path, key: str, folder: Path) -> None:
    """Sign the rpms in `folder` in place."""
    program = shutil.which("gpg", path=PATH)
    macros = (f"__gpg {program}", f"_gpg_name {key}", f"_gpg_path {home}", "_gpg_digest_algo sha256")
    defined = [word for macro in macros for word in ("--define", macro)]
    call("sh", "-c", 'exec rpmsign --addsign "$@" "$0"/*.rpm', folder, *defined, timeout=600)


def gpg(home: Path, *words: str | Path) -> str:
    """Run gpg on the keyring in `home` without any prompt."""
    quiet = ("--batch", "--yes", "--quiet", "--no-tty", "--pinentry-mode", "loopback", "--passphrase", "")
    return call("gpg", "--homedir", home, *quiet, *words)


def _find(home: Path, user: str) -> str | None:
    done = attempt("gpg", "--homedir", home, "--batch", "--with-colons", "--list-secret-keys", f"={user}")
    for line in done.stdout.splitlines():
        if line.startswith("fpr:"):
            return line.split(":")[9]
    return None
