"""Removal of secrets and of other machines' names from an evidence bundle (pure).

Secrets are recognised by name (`password=`, `--token`, a JSON key) or shape (private keys, known tokens,
password hashes, logins in URLs, Authorization headers), then removed wherever the same value occurs. When in
doubt, text is removed: a masked word costs a vendor nothing, a leaked one a fleet.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from provision.secrets_mask import HIDDEN, is_secret_name

OTHER = "[another machine]"

_NAMED = (
    r"(?:passw(?:or)?d|passphrase|_pass\b|_pwd\b|secret|token|credential|api[_-]?key|access[_-]?key"
    r"|account[_-]?key|private[_-]?key|signing[_-]?key|session[_-]?key)"
)
_KEY = re.compile(_NAMED, re.IGNORECASE)
# The text after a name: `=` or `:`, preceded by a closing quote if the name was quoted (and backslashes if
# quoted within a text), or the `>` of an XML element; then the value, up to its closing quote if it has one.
_THEN = r"""[\w.-]{0,40}(?:\\{0,3}["'])?(?:[ \t]{0,3}(?:=>|[=:])[ \t]{0,3}|>)"""
_VALUE = (
    r"""(?:\\+["'](?P<nested>[^\n]{0,4000}?)\\+["']|"(?P<double>(?:\\.|[^"\\\n])*)|'(?P<single>[^'\n]*)"""
    r"""|(?P<literal>(?:null|true|false|[\d.]+)(?=[,}\]\s]|$))|(?P<bare>[^\s"'<>\x00][^\s<>\x00]*))"""
)
_KEY_BLOCK = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

# kind → patterns; the named groups of a match hold the secret.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, flags))
    for kind, pattern, flags in (
        ("private key", rf"-----BEGIN {_KEY_BLOCK}(?P<s>.*?)(?:-----END {_KEY_BLOCK}|\Z)", re.DOTALL),
        (
            "authorization header",
            r"""\b(?:(?:proxy-)?authorization|(?:set-)?cookie)\b\\{0,3}["']?[ \t]{0,3}[:=]"""
            r"""[ \t]{0,3}["']?(?P<s>[^\r\n"']+)""",
            re.IGNORECASE,
        ),
        (
            "authorization header",
            r"\b(?:bearer|basic)[ \t]{1,3}(?P<s>(?=[^\s\"']{0,400}[0-9=+/_])[\w+/=.~-]{8,})",
            re.IGNORECASE,
        ),
        ("login in a URL", r"\b[a-z][a-z0-9+.-]{0,20}://(?P<s>[^\s/<>]{1,400})@", re.IGNORECASE),
        (
            "token",
            r"""[?&;](?:sig|signature|x-amz-signature|x-amz-credential|code|key)=(?P<s>[^&\s"'<>]+)""",
            re.IGNORECASE,
        ),
        (
            "token",
            r"(?P<s>\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
            r"|xox[abeprs]-[\w-]{10,}|hf_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|sk-[\w-]{20,}|npm_\w{30,}"
            r"|pypi-[\w-]{30,}|dckr_pat_[\w-]{16,}|hv[sb]\.[\w-]{20,}|AIza[\w-]{30,}|AGE-SECRET-KEY-1\w{20,}"
            r"|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]{4,}))",
            0,
        ),
        ("password hash", r"""(?P<s>\$(?:1|2[abxy]?|5|6|7|y|gy|argon2\w{1,2})\$[^\s:"'<>]{8,})""", 0),
        (
            "named secret",  # an environment variable, to the end of its line
            rf"^[ \t]*(?:export +|declare +-x +)?(?=\w{{0,80}}?{_NAMED})[A-Za-z_]\w{{0,120}}="
            r"(?P<s>[^\n\x00]+)",
            re.IGNORECASE | re.MULTILINE,
        ),
        (
            "named secret",
            rf"(?<![\w-])--?[\w-]{{0,40}}?{_NAMED}[\w-]{{0,40}}[ \t]+(?P<s>[^\s\"']+)",
            re.IGNORECASE,
        ),
        ("named secret", rf"{_NAMED}{_THEN}{_VALUE}", re.IGNORECASE),
        ("named secret", r"\blogin\s{1,9}\S{1,200}\s{1,9}password\s{1,9}(?P<s>\S+)", re.IGNORECASE),
        ("named secret", r"\bsshpass[ \t]+-p[ \t]*(?P<s>\S+)", 0),
        ("named secret", r"(?:\s-u|--user|--proxy-user)[ \t=](?P<s>[^\s:]{1,200}:\S+)", 0),
    )
)
_ORDINARY = frozenset(
    {"none", "null", "true", "false", "unset", "required", "disabled", "enabled", "default"}
)
_DIGITS = re.compile(r"\d+")
_FOLDED = re.compile(
    r"(?<![\w.-])([A-Za-z0-9][\w.-]{0,200})\[\d[^\]\n]{0,600}\][\w.-]{0,200}"
)  # gpu-[01-03].pod1
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
_PIECE = re.compile(r"[^._-]+")
_SAYS_NOTHING = re.compile(
    r"gpu\d*|node|localhost|\d+|.", re.IGNORECASE
)  # gpuprov's own device names, and numbers


class Remover:
    """Masker of texts. First `learn` everything that will be in the bundle, then `clean` it.

    `secrets`: known secret values; `others`: machine names to remove; `own`: the machine name to keep.
    `removed`: kind → number of removals.
    """

    def __init__(self, secrets: Iterable[str], others: Iterable[str], own: str) -> None:
        self.removed: Counter[str] = Counter()
        self._known: set[str] = {secret for secret in secrets if len(secret) >= 3}
        self._values: re.Pattern[str] | None = None
        own_words = {own.lower(), own.partition(".")[0].lower()}
        names = {name.lower() for other in others for name in (other, other.partition(".")[0])}
        names = {name for name in names - own_words if name and not _SAYS_NOTHING.fullmatch(name)}
        self._names = {name: OTHER for name in names if _WORD.fullmatch(name)}
        self._names |= dict.fromkeys(filter(_WORD.fullmatch, own_words), "")
        self._prefixes = {name[: digits.start()] for name in names for digits in _DIGITS.finditer(name)}
        self._longest = max((len(_PIECE.findall(name)) for name in self._names), default=0)
        odd = sorted((name for name in names if name not in self._names), key=len, reverse=True)
        self._odd = re.compile("|".join(map(re.escape, odd)), re.IGNORECASE) if odd else None

    def learn(self, value: Any) -> None:
        """Collect the secrets in a text or a document, to recognise them where no name marks them."""
        if isinstance(value, str):
            for _, pattern in _RULES:
                for match in pattern.finditer(value):
                    self._know(_secret(match)[0])
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if isinstance(inner, str) and _is_secret(str(key)):
                    self._know(inner, named=True)
                self.learn(str(key))
                self.learn(inner)
        elif isinstance(value, list | tuple):
            for item, before in zip(value, ["", *value], strict=False):
                if isinstance(item, str) and _asks_for_secret(before):
                    self._know(item, named=True)
                self.learn(item)

    def _know(self, secret: str, *, named: bool = False) -> None:
        for word in {secret.strip(), *secret.split(), secret.rpartition(":")[2].strip()}:
            word = word.strip("\"',;\\")
            plain = word.isalpha() and (word.islower() or word.isupper() or word.istitle()) and len(word) < 16
            if word.lower() in _ORDINARY or HIDDEN in word:
                continue
            if (named and word == secret and len(word) >= 4) or (len(word) >= 6 and not plain):
                self._known |= {word, json.dumps(word)[1:-1], urllib.parse.quote(word, safe="")}
                self._values = None

    def clean(self, value: Any) -> Any:
        """Return `value` (text, or mappings and lists of it) without secrets and names of other machines."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(str(key)): self._under(str(key), inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            pairs = zip(value, ["", *value], strict=False)
            return [self._under("token" if _asks_for_secret(before) else "", item) for item, before in pairs]
        return value

    def _under(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and value and _is_secret(key):
            if value != HIDDEN:
                self.removed["named secret"] += 1
            return HIDDEN
        return self.clean(value)

    def _text(self, text: str) -> str:
        for kind, pattern in _RULES:
            text = pattern.sub(lambda match, kind=kind: self._hidden(kind, match), text)  # type: ignore[misc]
        if self._known:
            if self._values is None:
                longest_first = sorted(self._known, key=lambda secret: (-len(secret), secret))
                self._values = re.compile("|".join(map(re.escape, longest_first)))
            text, count = self._values.subn(HIDDEN, text)
            self.removed["known secret"] += count
        if self._odd:
            text, count = self._odd.subn(OTHER, text)
            self.removed["name of another machine"] += count
        text = _FOLDED.sub(self._without_range, text)
        return _WORD.sub(self._without_names, text) if self._names else text

    def _hidden(self, kind: str, match: re.Match[str]) -> str:
        secret, start, end = _secret(match)
        whole = match[0]
        if not secret or HIDDEN in secret:
            return whole
        self.removed[kind] += 1
        return whole[: start - match.start()] + HIDDEN + whole[end - match.start() :]

    def _without_range(self, match: re.Match[str]) -> str:
        if match[1].lower() not in self._prefixes:
            return match[0]
        self.removed["name of another machine"] += 1
        return OTHER

    def _without_names(self, match: re.Match[str]) -> str:
        """Remove machine names from a word, also within it: `gpu-07-ib0.pod1` contains gpu-07."""
        word = match[0]
        pieces = [piece.span() for piece in _PIECE.finditer(word)]
        made, done, at = [], 0, 0
        while at < len(pieces):
            start = pieces[at][0]
            for upto in range(min(len(pieces), at + self._longest), at, -1):
                end = pieces[upto - 1][1]
                replacement = self._names.get(word[start:end].lower())
                if replacement is not None:
                    if replacement:
                        made += [word[done:start], replacement]
                        done = end
                        self.removed["name of another machine"] += 1
                    at = upto - 1
                    break
            at += 1
        return "".join([*made, word[done:]])


def _secret(match: re.Match[str]) -> tuple[str, int, int]:
    """Return the secret part of a match with its start and end."""
    group = next((name for name, text in match.groupdict().items() if text is not None), 0)
    return match[group], match.start(group), match.end(group)


def _is_secret(name: str) -> bool:
    return is_secret_name(name) or _KEY.search(name) is not None


def _asks_for_secret(argument: Any) -> bool:
    """Return whether the value after this argument is a secret, as with `--password`."""
    return (
        isinstance(argument, str)
        and argument.startswith("-")
        and "=" not in argument
        and _is_secret(argument)
    )
