"""No secret in a configuration: it is written into the results, into journals and on the server's command line."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from longctx.errors import ConfigError
from longctx.redaction import SECRET_NAME, SHAPES, SHORTEST_SECRET

_SECRET_ARGUMENT = re.compile(r"--(?:api-key|hf-token)(?:=|$)")
_PASSWORD_IN_URL = re.compile(r"\w+://[^/\s@]*:[^/\s@]*@")
# Variables are given to servers and builds by these; everywhere else a key's name is one of the schema's.
_VARIABLES = ("env", "build_args")


def refuse_secrets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError naming the key, never the value, of the first thing in `config` that looks like a secret."""
    for path, value in _leaves(config):
        if fault := _fault(path, value):
            raise ConfigError(
                f"config key {'.'.join(path)}: {fault} would be written into results and command lines; export it in"
                " the shell instead (a local server inherits it, container.pass_env and external.api_key_env name it)"
            )


def _fault(path: tuple[str, ...], value: str) -> str | None:
    """Say what is secret about a value, None where nothing is."""
    has_secret_name = len(path) > 1 and path[-2] in _VARIABLES and SECRET_NAME.search(path[-1])
    if has_secret_name and len(value) >= SHORTEST_SECRET and not value.isdecimal():
        return "a secret"
    if SHAPES.search(value):
        return "what looks like a token"
    if _SECRET_ARGUMENT.match(value):
        return "the key behind this argument"
    return "a password in an address" if _PASSWORD_IN_URL.search(value) else None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every value that is no container, as text, with its path."""
    if not isinstance(value, Mapping | list | tuple):
        yield path, str(value)
        return
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves(part, (*path, str(key)))
