"""The registry of modes: each one is a folder of `longctx.modes`, and every stage loads its own facet from there."""

import importlib
from functools import cache
from typing import Any

from longctx.storage.schemas import ModeName

# The order in which modes are named in tables and figures; the first one measures cold prompts.
MODES = tuple(ModeName)
COLD_MODE = MODES[0]


@cache
def load_facet(mode: str, stage: str) -> Any:
    """Return `FACET` of longctx/modes/<mode>/<stage>.py.

    The folder of modes stands above all stages, so no stage imports it: it is loaded by name, as a plugin is.
    """
    return importlib.import_module(f"longctx.modes.{mode}.{stage}").FACET
