"""Both reports as files; where one fails, its file says why and the other is written."""

import logging
from collections.abc import Callable
from html import escape
from pathlib import Path

from longctx.errors import DataError
from longctx.report.documents.html import to_html
from longctx.report.documents.markdown import to_markdown
from longctx.report.sections import ReportInput
from longctx.storage.atomic import write_atomic

_log = logging.getLogger(__name__)


def write_reports(report: ReportInput, md: Path, html: Path) -> None:
    """Write the Markdown and the HTML report; DataError where neither can be made."""
    pages: tuple[tuple[Path, Callable[[ReportInput, Path], str]], ...] = ((md, to_markdown), (html, to_html))
    faults = []
    for path, make in pages:
        try:
            text = make(report, path.parent)
        except Exception as error:
            text = f"{path.name} could not be made: {type(error).__name__}: {error}"
            _log.warning(text)
            faults.append(text)
            text = f"<!doctype html><meta charset=utf-8><p>{escape(text)}</p>\n" if path == html else f"{text}\n"
        write_atomic(path, text.encode())
    if len(faults) == len(pages):
        raise DataError("; ".join(faults))
