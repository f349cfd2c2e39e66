"""Replace functions of a standard module in one module alone: other threads, and pytest itself, keep the real ones."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def replace_in(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, **replacements: Any) -> None:
    """Give `module` its own copy of the standard module that it calls `name`, with these functions replaced."""
    monkeypatch.setattr(module, name, SimpleNamespace(**(vars(getattr(module, name)) | replacements)))
