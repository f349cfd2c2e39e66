"""Servers: `with serve(recipe, launcher, …) as server` starts one, proves it ours, describes it and ends it."""

from longctx.server.facts import jit_lines
from longctx.server.launcher import Launch, Launcher, Owner
from longctx.server.life import serve
from longctx.server.ownership import reap
from longctx.server.recipe import Recipe, command
from longctx.server.running import Server

__all__ = ["Launch", "Launcher", "Owner", "Recipe", "Server", "command", "jit_lines", "reap", "serve"]
