"""Prompt shapes: the texts before and after the corpus."""

from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter

from longctx.errors import PromptError
from longctx.lengths import format_length
from longctx.resources import shape_folder


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """`shape`: 'report', 'plain', or a folder with system.txt and task.txt; `values` adds placeholders of its own.

    Placeholders always there: {tokens} (65536), {length} ('64Ki'), {repositories} (names, comma-separated) and
    {repository_count}. Write {{ and }} for braces.
    """

    shape: str = "report"
    values: dict[str, str] = field(default_factory=dict)


def render(path: Path, values: dict[str, str]) -> str:
    """Fill one text's placeholders; PromptError names the file and the placeholder that it does not know."""
    try:
        parts = list(Formatter().parse(path.read_text()))
    except (OSError, ValueError) as error:
        raise PromptError(f"{path}: not a readable prompt text ({error}); write {{{{ for a brace") from error
    text = ""
    for literal, name, form, conversion in parts:
        text += literal
        if name is not None:
            if name not in values or form or conversion:
                whole = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
                raise PromptError(f"{path}: unknown placeholder {{{whole}}}; there are {', '.join(sorted(values))}")
            text += values[name]
    return text.strip()


def shape_texts(spec: PromptSpec, length: int, repositories: list[str]) -> tuple[str, str]:
    folder = shape_folder(spec.shape)
    values = {
        "tokens": str(length),
        "length": format_length(length),
        "repositories": ", ".join(repositories),
        "repository_count": str(len(repositories)),
    }
    system, task = (render(folder / name, values | spec.values) for name in ("system.txt", "task.txt"))
    return system, task
