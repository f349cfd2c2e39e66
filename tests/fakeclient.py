"""Short requests to the stand-in server, and that server as a process of its own."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import fakeserver
import numpy as np
from longctx.measure.client.request import Answer, stream

IDS = np.arange(1024, dtype=np.uint32)


def ask(url: str, ids: np.ndarray = IDS, max_new_tokens: int = 16, **options: Any) -> Answer:
    return stream(url, "fake", ids, max_new_tokens=max_new_tokens, **options)


@contextmanager
def fake_program(plan: dict[str, Any]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, fakeserver.__file__, "--port", str(port), "--model", "fake"],
        env={**os.environ, "FAKE_PLAN": json.dumps(plan)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "startup complete" in line:
                break
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.01)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
