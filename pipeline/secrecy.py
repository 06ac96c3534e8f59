"""Passwords stay where they were configured: out of texts that leave the process, out of what it starts.

Two nets. A pattern hides whatever stands where a URL or a ``key=value`` pair holds a password. And the passwords that
this process was configured with (:func:`remember_secrets`) are hidden literally, wherever a library quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"

#: A literal shorter than this is not searched for, nor a longer one of small letters alone: a word like any other would
#: be hidden in ordinary sentences.
_LITERAL_LENGTH, _WORD_LENGTH = 8, 16

#: The part of a URL between ``//`` and the last ``@`` before a blank or a quote; a password may hold ``/``, ``:``, ``@``.
_USERINFO = re.compile(r"(?P<head>(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/\s:@'\"]*):(?P<secret>[^\s'\"]*)@")

#: Names whose value is a secret. A bare ``token`` is not among them: leases have one, and logs name it.
_SECRET_WORD = (
    r"[a-z0-9_-]*(?:password|passwd|passphrase|pwd)|[a-z0-9_-]*(?:secret|secret_?key|access_?key|api_?key)|"
    r"(?:[a-z0-9_-]*_)?(?:session|access|auth|refresh)_token"
)
_PAIR = re.compile(rf"(?P<head>(?<![A-Za-z0-9_-])(?:{_SECRET_WORD})=)(?P<secret>'[^']*'|[^\s&'\";,]+)", re.IGNORECASE)

#: Environment variables that no engine needs: our settings, and what is a credential by its name.
_CREDENTIAL = re.compile(
    r"^(AWS_.*|PIPELINE_.*|PGPASSWORD|PGPASSFILE|REDISCLI_AUTH|(.*_)?(PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIALS?|"
    r"API_?KEY|ACCESS_?KEY(_ID)?|SECRET_?KEY|PRIVATE_?KEY)(_FILE)?)$",
    re.IGNORECASE,
)

#: Ours, and no setting: tests arm it, and it is meant for children too.
_NO_SECRET = frozenset({"PIPELINE_FAIL_POINT"})

#: One for the process, like its log: wherever a text leaves it, the secrets to hide are the same.
_remembered: set[str] = set()


def mask_secrets(text: str) -> str:
    """``text`` without passwords: in URLs, in ``password=...`` pairs, and those that were remembered, as they are."""
    for secret in sorted(_remembered, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _USERINFO.sub(rf"\g<head>:{MASK}@", text)
    return _PAIR.sub(rf"\g<head>{MASK}", text)


def mask_url(url: str) -> str:
    """A URL to show. One that is no URL may be a password alone, or begin with one."""
    return mask_secrets(url) if "://" in url else MASK


def remember_secrets(urls: Iterable[str | None], environ: Mapping[str, str] | None = None) -> None:
    """Hide from now on what these URLs, and variables of the environment that are credentials by name, hold."""
    for url in filter(None, urls):
        for secret, rest in _secrets_of(url):
            _remember(secret, rest)
    for name, value in (environ or {}).items():
        if _CREDENTIAL.match(name) and not name.startswith("PIPELINE_") and not name.endswith("_FILE"):
            _remember(value, "")


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that needs neither the database nor the broker nor the store's keys."""
    return {name: value for name, value in environ.items() if name in _NO_SECRET or not _CREDENTIAL.match(name)}


def _secrets_of(url: str) -> Iterable[tuple[str, str]]:
    """(password, the rest of the URL) for each password in it."""
    for pattern in (_USERINFO, _PAIR):
        for found in pattern.finditer(url):
            start, end = found.span("secret")
            yield found["secret"].strip("'"), url[:start] + url[end:]


def _remember(secret: str, rest: str) -> None:
    """All spellings of it, and the pieces that a parser cuts one into whose special characters were not escaped.

    One that is also a name elsewhere (``pipeline:pipeline@``) cannot be told from that name.
    """
    plain = {secret, unquote(secret), unquote_plus(secret), *re.split(r"[/:@?#]", secret)}
    spellings = plain | {quote(one, safe="") for one in plain} | {quote_plus(one) for one in plain}
    for one in spellings:
        is_word = one.isascii() and one.isalpha() and one.islower()
        if len(one) >= (_WORD_LENGTH if is_word else _LITERAL_LENGTH) and one not in rest:
            _remembered.add(one)
