"""A stand-in for vLLM's OpenAI server with faults on demand and a known truth; standard library only.

As a program it takes vLLM's command line (`python tests/fakeserver.py --model m --port 8000 …`, what it does not
know it ignores); in a test `with FakeServer(plan) as server:` gives `.url`, `.requests` and `.truth`.

The fault plan is a JSON object, in FAKE_PLAN itself or in the file that FAKE_PLAN names (read anew for each
request). Its keys, all optional:

    time      model_s [a, b, c]: prefill takes a + b·n + c·n² seconds; ttft_s fixes it; itl_s per token, at least;
              first_slow_s more for the first request; hold: a file, while it exists no first token comes;
              hold_start: the same for the port
    stream    coalesce k tokens per chunk; split true sends byte by byte; crlf; cr; comments; text of one token;
              chat true answers as the chat API does, role first with first_chunk_empty; token_ids; empty_events: one
              without text now and then, like comments;
              done false leaves [DONE] out; usage late | continuous | finish | never; first_chunk_empty
    faults    error_after, close_after, stop_after k tokens; error_message; die_after_s, die_after_tokens;
              hang true (never starts) or hang_after k tokens; http_status with http_message; max_body bytes;
              reject_continuous; prompt_tokens_off; cached; metrics_lag n readings of the metrics
    program   never_listen; exit_after_s; exit_lines; health; model_id; max_model_len; version; capacity; kv_dtype;
              backend;
              jit_line; say text at the start; child true | "ignore_term"; ignore_term; api_key that /v1 asks for
    metrics   true | false | "old"; metrics_text instead; engines k (counters spread over k engine labels)
    scope     by_length {"1024": {…}}, in it or beside it by_max_tokens {"64": {…}}, by_turn {"0": {…}} (the n-th
              request with that max_tokens) and by_request {"0": {…}} override the rest for one request
    record    requests_log: a file that gets one JSON line per request (count, sha256 of the uint32
              little-endian ids, the sampling fields, prefill_s, decode_s, cached, pid)

A token is sent when the client has read the one before: on a busy machine they come later, never together.

Truth: the counters hold the planned durations, not the slept ones; decode_s is (tokens - 1)·itl_s. KV usage
rises during the prefill as the cost model says. With --enable-prefix-caching a prompt's longest prefix seen
before (in blocks of 16) costs nothing. DecodeBenchConnector makes the prefill free, but where prompt_logprobs are
asked for, as in vLLM; a connector of ours claims what the request's kv_transfer_params say; OffloadingConnector with a
root_dir and PYTHONHASHSEED takes back what an earlier process had prefilled.
"""

import argparse
import array
import contextlib
import fcntl
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fakestate import BLOCK, Running, State, metrics_text, unread_bytes

MODEL_S = (0.002, 2e-7, 1e-11)
READ_S = 30.0  # a client that reads nothing for so long is stopped on purpose
KV_TOO_SMALL = (
    "ValueError: To serve at least one request with the model's max seq len ({length}), (9.99 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (1.00 GiB). Based on the available memory, the "
    "estimated maximum model length is {capacity}. Try increasing `gpu_memory_utilization` or decreasing "
    "`max_model_len` when initializing the engine."
)


def log(text: str) -> None:
    print(f"(APIServer pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [fake.py:1] {text}", flush=True)


def wait_logged() -> None:
    """Wait until the other end of standard output, if that is a pipe, has read every line."""
    deadline = time.monotonic() + READ_S
    with contextlib.suppress(OSError):
        while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))) and time.monotonic() < deadline:
            time.sleep(0.001)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State
    quiet = True

    def log_message(self, format: str, *args: Any) -> None:
        if not self.quiet:
            print(
                f'INFO:     {self.client_address[0]} - "{self.requestline}" {args[1] if len(args) > 1 else ""}',
                flush=True,
            )

    def refused(self, plan: dict[str, Any]) -> bool:
        """Answer 401 where the plan has a key that the request lacks."""
        if "api_key" not in plan or self.headers.get("Authorization") == f"Bearer {plan['api_key']}":
            return False
        self.close_connection = True
        self.reply_json(401, {"error": "Unauthorized"})
        return True

    def do_GET(self) -> None:
        plan = self.state.plan()
        if self.path.startswith("/v1") and self.refused(plan):
            return
        if self.path == "/health":
            self.reply(plan.get("health", 200), b"", "text/plain")
        elif self.path == "/version":
            self.reply_json(200, {"version": plan.get("version", "0.32.0")})
        elif self.path == "/v1/models":
            names = [plan["model_id"]] if "model_id" in plan else [self.state.model, *self.state.aliases]
            longest = plan.get("max_model_len", self.state.max_model_len)
            entries = [{"id": name, "object": "model", "owned_by": "vllm", "max_model_len": longest} for name in names]
            self.reply_json(200, {"object": "list", "data": entries})
        elif self.path == "/metrics" and plan.get("metrics", True):
            self.state.read()
            text = plan.get("metrics_text") or metrics_text(self.state, plan)
            self.reply(200, text.encode(errors="replace"), "text/plain; version=0.0.4")
        else:
            self.reply_json(404, {"detail": "Not Found"})

    def reply_json(self, status: int, content: Any) -> None:
        self.reply(status, json.dumps(content).encode(), "application/json")

    def reply(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        if self.refused(self.state.plan()):
            return
        size = int(self.headers["Content-Length"])
        limit = self.state.plan().get("max_body")
        if limit is not None and size > limit:
            self.close_connection = True
            self.reply_json(413, {"error": {"message": f"Maximum request body size {limit} exceeded"}})
            return
        request = json.loads(self.rfile.read(size))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            Completion(self, request).answer()


class Completion:
    """One /v1/completions request, played as the plan says."""

    def __init__(self, handler: Handler, request: dict[str, Any]) -> None:
        self.handler, self.state, self.request = handler, handler.state, request
        self.ids = array.array("I", request["prompt"])
        with self.state.lock:
            self.index, wanted = len(self.state.requests), request.get("max_tokens")
            turn = sum(earlier.get("max_tokens") == wanted for earlier in self.state.requests)
            self.state.requests.append({key: value for key, value in request.items() if key != "prompt"})
        self.plan = self.state.plan(self.index, len(self.ids), wanted, turn)
        self.made = 0

    def answer(self) -> None:
        plan, request = self.plan, self.request
        self.cached = int(plan.get("cached", self._cached()))
        self.prefill_s = self._prefill_s()
        self.itl_s = plan.get("itl_s", 0.0005 + 2e-9 * len(self.ids))
        self.tokens = min(request["max_tokens"], plan.get("stop_after", request["max_tokens"]))
        self._record()
        continuous = (request.get("stream_options") or {}).get("continuous_usage_stats")
        if plan.get("reject_continuous") and continuous:
            return self._refuse(400, "Unknown parameter: stream_options.continuous_usage_stats")
        if "http_status" in plan:
            return self._refuse(plan["http_status"], plan.get("http_message", "told to fail"))
        if len(self.ids) + request["max_tokens"] > self.state.max_model_len:
            return self._refuse(
                400,
                f"This model's maximum context length is {self.state.max_model_len} tokens. "
                f"However, your prompt contains {len(self.ids)} input tokens.",
            )
        if plan.get("jit_line") or (plan.get("jit_first") and self.index == 0):
            log("WARNING [jit_monitor.py:103] Triton kernel JIT compilation during inference: _fwd_kernel")
            wait_logged()
        self._stream(bool(continuous) and plan.get("usage", "continuous") == "continuous")
        return None

    def _refuse(self, status: int, message: str) -> None:
        self.handler.reply_json(status, {"error": {"message": message, "type": "BadRequestError", "code": status}})

    def _cached(self) -> int:
        if self.state.connector.get("kv_connector") == "DecodeBenchConnector":
            return len(self.ids) - 1 if self.request.get("prompt_logprobs") is None else 0
        if "kv_connector_module_path" in self.state.connector:
            claimed = (self.request.get("kv_transfer_params") or {}).get("claimed_tokens", 0)
            return min(int(claimed), len(self.ids) - 1)
        best = self._external()
        if self.state.prefix_caching:
            for old in self.state.seen:
                low, high = 0, min(len(old), len(self.ids) - 1)
                while low < high:
                    middle = (low + high + 1) // 2
                    low, high = (middle, high) if old[:middle] == self.ids[:middle] else (low, middle - 1)
                best = max(best, low // BLOCK * BLOCK)
        return best

    def _checkpoint(self) -> Path | None:
        tiers = (self.state.connector.get("kv_connector_extra_config") or {}).get("secondary_tiers") or [{}]
        root = tiers[0].get("root_dir")
        return Path(root) / "fake-blocks.json" if root and os.environ.get("PYTHONHASHSEED") else None

    def _external(self) -> int:
        path = self._checkpoint()
        stored = json.loads(path.read_text()) if path and path.exists() else {}
        done = int(stored.get(hashlib.sha256(self.ids.tobytes()).hexdigest(), 0))
        return min(done, len(self.ids) - 1) // BLOCK * BLOCK

    def _prefill_s(self) -> float:
        if "ttft_s" in self.plan:
            prefill_s = float(self.plan["ttft_s"])
        else:
            a, b, c = self.plan.get("model_s", MODEL_S)
            n, k = len(self.ids), self.cached
            prefill_s = a + b * (n - k) + c * (n * n - k * k)
        return prefill_s + (self.plan.get("first_slow_s", 0.0) if self.index == 0 else 0.0)

    def _record(self) -> None:
        truth = {
            "count": len(self.ids),
            "sha256": hashlib.sha256(self.ids.tobytes()).hexdigest(),
            "cached": self.cached,
            "prefill_s": self.prefill_s,
            "decode_s": (self.tokens - 1) * self.itl_s,
            "pid": os.getpid(),
            **{key: self.request.get(key) for key in ("max_tokens", "temperature", "ignore_eos")},
        }
        self.state.truth.append(truth)
        if "requests_log" in self.plan:
            with open(self.plan["requests_log"], "a") as file:
                file.write(json.dumps(truth) + "\n")

    def _stream(self, continuous: bool) -> None:
        handler, plan = self.handler, self.plan
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        start = time.monotonic()
        model_s = plan.get("model_s", MODEL_S)
        self.state.running = Running(len(self.ids), self.cached, start, self.prefill_s, model_s, bool(plan.get("hang")))
        try:
            self._wait_prefill(start + self.prefill_s)
            complete = self._tokens(start + self.prefill_s, continuous)
        finally:
            self.state.running = None
        if not complete:
            handler.close_connection = True
            return
        usage = {"prompt_tokens": self._prompt_tokens(), "completion_tokens": self.made}
        if self.state.details or "cached" in plan:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        if plan.get("usage", "continuous") in ("late", "continuous"):
            self._event({"choices": [], "usage": usage})
        self.state.late = (plan.get("metrics_lag", 0), self._count)
        if not plan.get("metrics_lag"):
            self.state.read()
        self._finish()

    def _wait_prefill(self, until: float) -> None:
        stored = self._checkpoint()
        die_at = time.monotonic() + self.plan["die_after_s"] if "die_after_s" in self.plan else math.inf
        while self.plan.get("hang") or time.monotonic() < until or os.path.exists(self.plan.get("hold", "")):
            if time.monotonic() >= die_at:
                self.state.die()
            if self.plan.get("comments"):
                self._raw(": keep-alive\n\n")
            if self.plan.get("empty_events"):
                self._event({"choices": [self._choice("", None)]})
            if stored and self.state.running:
                self._store(stored, int(self.state.running.tokens_done(time.monotonic())))
            left_s = until - time.monotonic()
            time.sleep(left_s if 0 < left_s < 0.02 else 0.02)
        if time.monotonic() >= die_at:
            self.state.die()

    def _store(self, path: Path, tokens_done: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = json.loads(path.read_text()) if path.exists() else {}
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(stored | {hashlib.sha256(self.ids.tobytes()).hexdigest(): tokens_done}))
        temporary.replace(path)

    def _tokens(self, first: float, continuous: bool) -> bool:
        """Send the tokens; return False where the plan breaks the stream off."""
        plan, step = self.plan, int(self.plan.get("coalesce", 1))
        if plan.get("first_chunk_empty"):
            self._event({"choices": [self._choice("", None, role="assistant")]})
        while self.made < self.tokens:
            new = min(step, self.tokens - self.made)
            time.sleep(max(0.0, first + (self.made + new - 1) * self.itl_s - time.monotonic()))
            self._wait_read()
            if self.made >= plan.get("die_after_tokens", math.inf):
                self.state.die()
            while self.made >= plan.get("hang_after", math.inf):
                time.sleep(0.02)
            if self.made >= plan.get("close_after", math.inf):
                return False
            if self.made >= plan.get("error_after", math.inf):
                self._event({"error": {"message": plan.get("error_message", "told to fail"), "code": 500}})
                self._finish()
                return False
            self.made += new
            reason = None if self.made < self.tokens else "stop" if "stop_after" in plan else "length"
            separate = reason if plan.get("usage") == "late" else None
            choice = self._choice(plan.get("text", " é") * new, None if separate else reason)
            if plan.get("token_ids"):
                choice["token_ids"] = [7] * new
            event: dict[str, Any] = {"choices": [choice]}
            if continuous or (plan.get("usage") == "finish" and reason):
                event["usage"] = {"prompt_tokens": self._prompt_tokens(), "completion_tokens": self.made}
            self._event(event)
            if separate:
                self._event({"choices": [self._choice("", separate)]})
        return True

    def _choice(self, text: str, ends: str | None, **delta: str) -> dict[str, Any]:
        if self.plan.get("chat"):
            return {"index": 0, "delta": delta | {"content": text}, "finish_reason": ends}
        return {"index": 0, "text": text, "finish_reason": ends}

    def _wait_read(self) -> None:
        """Wait until the client has read all that was sent, or is gone."""
        client, server = self.handler.client_address[1], self.handler.server.server_address[1]
        deadline = time.monotonic() + READ_S
        while unread_bytes(client, server) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _prompt_tokens(self) -> int:
        return len(self.ids) + int(self.plan.get("prompt_tokens_off", 0))

    def _count(self) -> None:
        self.state.seen = [*self.state.seen[-7:], self.ids]
        connector = self.state.connector
        skips = connector.get("kv_connector") == "DecodeBenchConnector" or "kv_connector_module_path" in connector
        external = skips or self._checkpoint()
        with self.state.lock:
            self.state.count(
                prefill_s=self.prefill_s,
                decode_s=(self.made - 1) * self.itl_s,
                queue_s=1e-5,
                ttft_s=self.prefill_s,
                prompt_tokens=len(self.ids),
                generation_tokens=self.made,
                requests=1,
                iterations=self.made,
                cached=0 if external else self.cached,
                external=self.cached if external else 0,
            )

    def _event(self, content: dict[str, Any]) -> None:
        end = "\r\n" if self.plan.get("crlf") else "\r" if self.plan.get("cr") else "\n"
        self._raw("data: " + json.dumps({"object": "text_completion", **content}, ensure_ascii=False) + end * 2)

    def _raw(self, text: str) -> None:
        data = text.encode()
        for piece in [data[i : i + 1] for i in range(len(data))] if self.plan.get("split") else [data]:
            self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _finish(self) -> None:
        if self.plan.get("done", True):
            self._raw("data: [DONE]\n\n")
        self.handler.wfile.write(b"0\r\n\r\n")


class FakeServer:
    """The server inside the test's own process, on a free port."""

    def __init__(self, plan: dict[str, Any] | None = None, **state: Any) -> None:
        self.state = State(plan or {}, **state)
        handler = type("BoundHandler", (Handler,), {"state": self.state})
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}"
        self.requests, self.truth, self.model = self.state.requests, self.state.truth, self.state.model

    def __enter__(self) -> "FakeServer":
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--served-model-name", nargs="+", default=[])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=1 << 20)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--attention-backend", default="FLASH_ATTN")
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--kv-transfer-config", type=json.loads, default={})
    return parser.parse_known_args()[0]


def main() -> None:
    arguments = parse_arguments()
    names = arguments.served_model_name or [arguments.model]
    state = State(
        os.environ.get("FAKE_PLAN", ""),
        names[0],
        arguments.max_model_len,
        arguments.enable_prefix_caching,
        arguments.enable_prompt_tokens_details,
        arguments.kv_cache_dtype,
        arguments.attention_backend,
        arguments.kv_transfer_config or {},
        aliases=names[1:],
    )
    state.die = lambda: os.kill(os.getpid(), signal.SIGKILL)
    plan = state.plan()
    if plan.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if plan.get("child"):
        ignore = "import signal; signal.signal(15, signal.SIG_IGN);" if plan["child"] == "ignore_term" else ""
        subprocess.Popen([sys.executable, "-c", f"{ignore}import time; time.sleep(600)"])
    announce(state, plan)
    if arguments.max_num_batched_tokens:
        log(f"Chunked prefill is enabled with max_num_batched_tokens={arguments.max_num_batched_tokens}.")
    if plan.get("never_listen"):
        time.sleep(3600)
    while os.path.exists(plan.get("hold_start", "")):
        time.sleep(0.02)
    server = ThreadingHTTPServer(
        (arguments.host, arguments.port), type("Bound", (Handler,), {"state": state, "quiet": False})
    )
    server.daemon_threads = True
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever(poll_interval=0.05)


def announce(state: State, plan: dict[str, Any]) -> None:
    """Print the lines of vLLM's log that carry facts; end the program where the plan or the KV cache says so."""
    kv_dtype, backend = plan.get("kv_dtype", state.kv_dtype), plan.get("backend", state.backend)
    log(f"non-default args: {{'model': {state.model!r}, 'max_model_len': {state.max_model_len}}}")
    log(f"Initializing a V1 LLM engine (v{plan.get('version', '0.32.0')}) with config: model={state.model!r}")
    log(f"Using max model len {state.max_model_len}")
    if "say" in plan:
        log(plan["say"])
    if kv_dtype != "auto":
        log(f"Using {kv_dtype} data type to store kv cache. It reduces the GPU memory footprint")
    log(f"Using {backend} attention backend")
    if "exit_after_s" in plan:
        time.sleep(plan["exit_after_s"])
        print(plan.get("exit_lines", "RuntimeError: told to exit"), flush=True)
        sys.exit(1)
    if state.max_model_len > state.capacity():
        print(KV_TOO_SMALL.format(length=state.max_model_len, capacity=state.capacity()), flush=True)
        sys.exit(1)
    concurrency = state.capacity() / state.max_model_len
    log(
        f"GPU KV cache size: {state.capacity():,} tokens, Maximum concurrency for {state.max_model_len:,} tokens "
        f"per request: {concurrency:.2f}x"
    )


if __name__ == "__main__":
    main()
