"""Launcher `local`: vLLM from a Python environment on this host."""

import os
import shutil
import tempfile

from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.model.hub import hub_token
from longctx.processes.launch import Launch, Ownership
from longctx.serve.command_line import MODULE, command, environment, loopback
from longctx.serve.launchers import kv_connectors

# vLLM would ask everybody for it, us too; it is exported here for a server of somebody else's.
FOREIGN_KEY = "VLLM_API_KEY"
# Where vLLM makes several sockets a start, named by a UUID, which it never removes.
SOCKETS = "VLLM_RPC_BASE_PATH"
LONGEST_FOLDER = 107 - len("/") - 36  # the kernel's limit for a socket's path


def prepare(recipe: Recipe, options: ServeConfig, owner: Ownership, host: str, port: int) -> Launch:
    """Return how to start the recipe's server with the interpreter in `options`."""
    if (python := shutil.which(options.python)) is None:
        raise ServerError(f"launcher.python: {options.python} is not an executable file", "server_start")
    if recipe.kv_transfer_config and (sentence := kv_connectors.lacking(python, recipe.kv_transfer_config)):
        raise ServerError(sentence, "unsupported")
    if sentence := kv_connectors.no_room(recipe.kv_transfer_config):
        raise ServerError(sentence, "disk_full")
    inherited = _inherited()
    env = inherited | environment(recipe, inherited.get("PYTHONPATH", ""))
    env |= loopback(recipe, env)
    sockets = None if SOCKETS in env else _sockets(owner)
    env |= {SOCKETS: sockets} if sockets else {}
    arguments = [python, "-m", MODULE, *command(recipe, host, port)]
    return Launch(arguments, env, probe=[python], facts={"launcher": "local"}, sockets=sockets)


def _sockets(owner: Ownership) -> str | None:
    """Return the folder for the server's sockets; None, so vLLM's own choice, where their names would be too long."""
    folder = os.path.join(tempfile.gettempdir(), owner.name)
    return folder if len(os.fsencode(folder)) <= LONGEST_FOLDER else None


def _inherited() -> dict[str, str]:
    """Return the environment that a server gets: no key of another server, and the hub's token by its usual name."""
    kept = {name: value for name, value in os.environ.items() if name != FOREIGN_KEY}
    return kept | ({"HF_TOKEN": token} if (token := hub_token()) else {})
