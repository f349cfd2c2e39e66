"""No secret in a configuration: it is written into the results, into journals and on the server's command line."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from longctx.errors import ConfigError
from longctx.redaction import SHORTEST_SECRET, looks_secret, mask, secret_values

# Arguments of servers and engines, and fields of JSON, whose value is a secret. --secret of a build names a file.
_SECRET = (
    r"(?:token|auth|[\w.-]*(?:(?:api|access|private|secret)-?key|(?<!--)secret|passw(?:or)?d|passphrase|credentials?|creds"
    r"|(?:hf|hub|auth|access|bearer|api|session|security|refresh|registry)-?token))"
)
_SECRET_ARGUMENT = re.compile(rf"(?i)--{_SECRET}(?:[= ].*)?", re.DOTALL)
_SECRET_FIELD = re.compile(rf"(?i)[\"']{_SECRET}[\"']\s*:\s*[\"'][^\"']{{{SHORTEST_SECRET},}}")
# NAME=value, alone or behind the argument that gives a variable to a container or a build: --env=NAME=value.
_ASSIGNMENT = re.compile(r"(?:--?(?:env|e|build-arg)[= ]?)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Variables are given to servers and builds by these; everywhere else a key's name is one of the schema's.
_VARIABLES = ("env", "build_args")


def refuse_secrets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError naming the key, never the value, of the first thing in `config` that looks like a secret."""
    for path, value in _leaves(config):
        if fault := _fault(path, value):
            raise ConfigError(
                f"config key {mask('.'.join(path), [])}: {fault} would be written into results and command lines;"
                " export it in the shell instead (a local server inherits it, container.pass_env and"
                " external.api_key_env name it)"
            )


def _fault(path: tuple[str, ...], value: str) -> str | None:
    """Say what is secret about a value, None where nothing is."""
    named = {path[-1]: value} if len(path) > 1 and path[-2] in _VARIABLES else {}
    if assigned := _ASSIGNMENT.fullmatch(value):
        named[assigned[1]] = assigned[2]
    if any(not secret.isdecimal() for secret in secret_values(named)):
        return "a secret"
    if looks_secret(value) or any(map(looks_secret, path)):
        return "a password or token in an address" if "://" in value else "what looks like a token"
    if _SECRET_ARGUMENT.fullmatch(value.replace("_", "-")):
        return "the key behind this argument"
    return "a secret in this JSON text" if _SECRET_FIELD.search(value.replace("_", "-")) else None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every value that is no container, as text, with its path."""
    if not isinstance(value, Mapping | list | tuple):
        yield path, str(value)
        return
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves(part, (*path, str(key)))
