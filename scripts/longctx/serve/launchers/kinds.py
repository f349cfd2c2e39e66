"""What a launcher of servers must offer."""

from collections.abc import Mapping
from typing import Any, Protocol

from longctx.campaign.recipe import Recipe
from longctx.processes.launch import Launch, ProcessOwner


class Kind(Protocol):
    """A launcher module; `prepare` raises ServerError(reason='server_start') where nothing can start, in a sentence."""

    def prepare(
        self, recipe: Recipe, options: Mapping[str, Any], owner: ProcessOwner, host: str, port: int
    ) -> Launch: ...
