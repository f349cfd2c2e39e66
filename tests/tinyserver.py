"""A server program for the tests of `longctx.serve`: vLLM's arguments, one behaviour named by TINY; no vLLM in it.

TINY (space-separated words): silent (never listens), exit (exits after TINY_AFTER_S with TINY_WORDS), other (serves
another model), environment (prints its environment), family (children that leave the group and ignore SIGTERM),
ignore_term, no_metrics, chatty (prints without end), shared (keeps the shared memory TINY_SHARED, never removes it),
sockets (leaves one where vLLM makes its own), bound (one thread has the last processor to itself).
"""

import argparse
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORDS = os.environ.get("TINY", "").split()
KEPT: list[mmap.mmap] = []
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        names = ["somebody-elses"] if "other" in WORDS else ARGUMENTS.served_model_name
        root = {"root": ARGUMENTS.model, "max_model_len": ARGUMENTS.max_model_len}
        metrics = 'vllm:cache_config_info{cache_dtype="auto",kv_cache_size_tokens="4096",block_size="16"} 1.0\n'
        answers = {
            "/health": "",
            "/v1/models": json.dumps({"data": [{"id": name, **root} for name in names]}),
            "/version": json.dumps({"version": "0.32.0"}),
            "/metrics": None if "no_metrics" in WORDS else "# TYPE vllm:cache_config_info gauge\n" + metrics,
        }
        body = answers.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *_: object) -> None:
        pass


def tiny_python(folder: Path) -> str:
    """Write a Python interpreter whose module vLLM is this program, and return its path."""
    python = folder / "python-with-tiny"
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] && shift 2 && set -- {__file__} "$@"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--served-model-name", nargs="+", default=["tiny"])
    parser.add_argument("--max-model-len", type=int, default=4096)
    return parser.parse_known_args()[0]


def start_family() -> None:
    """A child in a session of its own, and an orphan by a double fork; both ignore SIGTERM."""
    subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True)
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)


def compute_on_one(bound: threading.Event) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    bound.set()
    time.sleep(600)


def main() -> None:
    print("tiny server starts", flush=True)
    if "bound" in WORDS:
        bound = threading.Event()
        threading.Thread(target=compute_on_one, args=(bound,), daemon=True).start()
        bound.wait()
    if "environment" in WORDS:
        print("\n".join(f"{name}={value}" for name, value in os.environ.items()), flush=True)
    if "ignore_term" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "shared" in WORDS:
        with open(os.environ["TINY_SHARED"], "w+b") as file:
            file.truncate(1 << 16)
            KEPT.append(mmap.mmap(file.fileno(), 1 << 16))
    if "sockets" in WORDS:
        socket.socket(socket.AF_UNIX).bind(os.path.join(os.environ["VLLM_RPC_BASE_PATH"], "9" * 36))
    if "family" in WORDS:
        start_family()
    if "exit" in WORDS:
        time.sleep(float(os.environ.get("TINY_AFTER_S", "0")))
        print(os.environ.get("TINY_WORDS", "RuntimeError: told to exit"), flush=True)
        sys.exit(3)
    while "silent" in WORDS:
        time.sleep(60)
    server = ThreadingHTTPServer((ARGUMENTS.host, ARGUMENTS.port), Handler)
    if "chatty" in WORDS:
        while True:
            print("x" * 1000, flush=True)
            server.timeout = 0.01
            server.handle_request()
    server.serve_forever(poll_interval=0.05)


ARGUMENTS = arguments() if __name__ == "__main__" else argparse.Namespace()

if __name__ == "__main__":
    main()
