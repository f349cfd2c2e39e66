"""Launcher `local`: vLLM from a Python environment on this host. Options: python (path of its interpreter)."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

from longctx import hub
from longctx.errors import ServerError
from longctx.server import connectors
from longctx.server.launcher import Launch, Owner
from longctx.server.recipe import MODULE, Recipe, command, environment


def prepare(recipe: Recipe, options: Mapping[str, Any], owner: Owner, host: str, port: int) -> Launch:
    """Return how to start the recipe's server with the interpreter in `options`.

    `options['program']` (a list) replaces `python -m vllm…`, for a server that takes vLLM's arguments.
    """
    python = shutil.which(str(options.get("python") or "python3"))
    if python is None:
        raise ServerError(f"launcher.python: {options.get('python')} is not an executable file", "server_start")
    connector = (recipe.kv_transfer_config or {}).get("kv_connector")
    if connector and (sentence := connectors.lacking(python, connector)):
        raise ServerError(sentence, "unsupported")
    program = list(options.get("program") or ["-m", MODULE])
    return Launch(
        command=[python, *program, *command(recipe, host, port)],
        env=dict(os.environ) | ({"HF_TOKEN": token} if (token := hub.token()) else {}) | environment(recipe),
        probe=[python],
        facts={"launcher": "local"},
    )
