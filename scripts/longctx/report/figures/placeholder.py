"""The file of a figure that could not be drawn: it says why, and needs no matplotlib."""

import logging
import struct
import zlib
from collections.abc import Callable
from html import escape
from pathlib import Path

from longctx.storage.atomic import write_atomic

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="530" height="80" viewBox="0 0 530 80">'
    '<text x="10" y="30" font-size="14">{caption}</text><text x="10" y="55" font-size="12">{text}</text></svg>\n'
)
_log = logging.getLogger(__name__)


def draw_or_explain(stem: Path, caption: str, draw: Callable[[], object]) -> list[Path]:
    """Call `draw`, which writes `stem`.png and `stem`.svg; where it fails, say so in the log and in both files."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    try:
        draw()
    except Exception as error:
        _log.warning("figure %s could not be drawn: %r", stem.name, error)
        text = f"this figure could not be drawn: {type(error).__name__}: {error}"[:200]
        write_atomic(paths[0], _white_png())
        write_atomic(paths[1], SVG.format(caption=escape(caption), text=escape(text)).encode())
    return paths


def _white_png() -> bytes:
    """Return a white pixel, for readers that cannot show text (PNG specification, section 11)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\x00\xff")) + chunk(b"IEND", b"")
