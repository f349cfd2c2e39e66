"""Prompt shapes: the texts before and after the corpus."""

from pathlib import Path
from string import Formatter

from longctx.errors import PromptError
from longctx.lengths import format_length
from longctx.resources import shape_folder


def render(path: Path, values: dict[str, str]) -> str:
    """Return a text with its placeholders filled; PromptError names the file and the unknown placeholder."""
    try:
        fields = list(Formatter().parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise PromptError(f"{path}: not a readable prompt text ({error}); write {{{{ for a brace") from error
    text = ""
    for literal, name, form, conversion in fields:
        text += literal
        if name is not None:
            if name not in values or form or conversion:
                whole = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
                raise PromptError(f"{path}: unknown placeholder {{{whole}}}; there are {', '.join(sorted(values))}")
            text += values[name]
    return text.strip()


def shape_texts(shape: str, length: int, repositories: list[str]) -> tuple[str, str]:
    """Return the filled texts before and after the corpus; `shape` is 'report', 'plain' or a folder.

    A shape's folder has system.txt and task.txt. Their placeholders: {tokens} (65536), {length} ('64Ki'),
    {repositories} (names, comma-separated) and {repository_count}; {{ and }} are braces.
    """
    folder = shape_folder(shape)
    values = {"tokens": str(length), "length": format_length(length)}
    values |= {"repositories": ", ".join(repositories), "repository_count": str(len(repositories))}
    return render(folder / "system.txt", values), render(folder / "task.txt", values)
