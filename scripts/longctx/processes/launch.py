"""What is launched, and its ownership."""

import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Ownership:
    """The ownership of one server start. `id` is its own."""

    campaign: str
    run_dir: Path
    id: str = field(default_factory=partial(secrets.token_hex, 6))

    @property
    def name(self) -> str:
        """The unique name of this start's container and of its folder for sockets."""
        return f"longctx-{self.id}"


@dataclass(frozen=True, slots=True)
class Launch:
    """One foreground program for the reaper to run, watch and end.

    command: argv on this host. It is written to the log and the results, so it must hold no secret value.
    env: the whole environment of the program; secrets travel here only. Their values are masked in the server's log.
    stop_commands: run in order (each at most 60 s, failures ignored) before any signal, and again by a later run that
      finds the record of a dead owner: e.g. `podman stop -t 20 NAME`, `podman rm -f NAME`. Names made from the owner's
      id only.
    probe: argv prefix that runs Python beside the running server ([python] or [podman, exec, NAME, python3]), or None.
    facts: what the launcher knows of schemas.SERVER_FACTS: launcher, image, image_digest.
    server_env: the server's own environment, where that is not `env` (in a container).
    holds_stdin: the program's standard input stays open for as long as its reaper lives; else it is empty.
    sockets: a folder for the server's sockets, made for it and removed after it, or None.
    """

    command: list[str]
    env: dict[str, str]
    stop_commands: list[list[str]] = field(default_factory=list)
    probe: list[str] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    server_env: dict[str, str] | None = None
    holds_stdin: bool = False
    sockets: str | None = None

    @property
    def seen_env(self) -> dict[str, str]:
        """What the server sees of its environment, as far as the launcher decides it."""
        return self.env if self.server_env is None else self.server_env
