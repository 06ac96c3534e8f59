"""TLS to the broker: what a ``rediss://`` URL says of it, with certificates verified unless the URL asks for less.

Celery on its own verifies nothing when such a URL has no options; here what is not said means "verify".
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pipeline.errors import ConfigError

#: Parameters that name a file on this host.
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

#: The others, with the words each may have.
_WORDS: Mapping[str, Mapping[str, Any]] = {
    "ssl_cert_reqs": {"required": ssl.CERT_REQUIRED, "none": ssl.CERT_NONE},
    "ssl_check_hostname": {"true": True, "false": False},
}

_HINT = "a broker with TLS is rediss://:PASSWORD@HOST:PORT/0?ssl_ca_certs=/path/to/ca.pem; see docs/operations.md"


def split_tls(url: str) -> tuple[str, dict[str, Any] | None]:
    """The URL without its ``ssl_*`` parameters, and TLS options as kombu takes them; None where the URL is not rediss.

    Raises:
        ConfigError: a parameter that is not known or cannot be, or a file that is not there.
    """
    scheme = url.partition("://")[0]
    if scheme != "rediss":
        return url, None
    parts = urlsplit(url)
    options: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    rest = []
    for name, value in parse_qsl(parts.query):
        if name.startswith("ssl"):
            options[name] = _parse(name, value)
        else:
            rest.append((name, value))
    if options["ssl_cert_reqs"] is ssl.CERT_NONE:
        options["ssl_check_hostname"] = False  # there is nothing to compare the name with
    return parts._replace(query=urlencode(rest)).geturl(), options


def is_verified(url: str) -> bool:
    """Whether the broker has to prove who it is; True where there is no TLS to speak of."""
    options = split_tls(url)[1]
    return options is None or options["ssl_cert_reqs"] is not ssl.CERT_NONE


def _parse(name: str, value: str) -> Any:
    if name in _FILES:
        if not Path(value).is_file():
            raise ConfigError(f"broker_url: {name} names no file: {value}", hint=_HINT)
        return value
    if name not in _WORDS:
        raise ConfigError(f"broker_url: {name} is not known; known are {', '.join([*_FILES, *_WORDS])}", hint=_HINT)
    if value.lower() not in _WORDS[name]:
        raise ConfigError(f"broker_url: {name} is {value!r}; it may be {' or '.join(_WORDS[name])}", hint=_HINT)
    return _WORDS[name][value.lower()]
