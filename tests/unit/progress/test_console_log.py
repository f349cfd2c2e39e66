"""What is said never costs what is measured: a reader that goes is no error."""

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from longctx.progress import console_log
from longctx.progress.lines import TerminalLine

SCRIPTS = Path(console_log.__file__).parents[2]
SPEAKER = """
import sys
from pathlib import Path
from longctx.progress.lines import ProgressLine
from longctx.progress.console_log import log_to_file
from longctx.progress.lines import TerminalLine
sys.stdin.read(1)
line = TerminalLine()
with log_to_file(Path(sys.argv[1])) as speak, ProgressLine("x") as progress:
    speak("one")
    line.show("two")
    line.finish()
    progress(1)
    print("to the pipe that is gone as well")
    sys.stdout.flush()
    speak("four")
"""


@pytest.mark.process
def test_a_closed_pipe_ends_nothing_and_the_log_file_goes_on(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", SPEAKER, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=writer,
        stderr=writer,
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
    )
    os.close(writer)
    os.close(reader)
    process.communicate(b"x")
    assert process.returncode == 0
    assert [line.split()[-1] for line in (tmp_path / "log").read_text().splitlines()] == ["one", "four"]


def test_a_full_disk_under_a_stream_is_passed_over_and_the_stream_stays() -> None:
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:
        line = TerminalLine(full)
        line.show("something")
        line.finish()
        assert os.readlink(f"/proc/self/fd/{full.fileno()}") == "/dev/full"


def test_a_logger_whose_reader_is_gone_raises_nothing() -> None:
    class Strict(logging.StreamHandler):  # type: ignore[type-arg]
        def handleError(self, record: logging.LogRecord) -> None:
            raise

    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        logger = logging.getLogger("longctx.test_say")
        logger.propagate = False
        logger.addHandler(Strict(stream))
        console_log.tolerate_broken_pipes(logger.name)
        logger.error("nobody reads this")
        logger.handlers.clear()
