"""A vLLM plugin whose prefill stands still in its middle until the test has done to it what it wants to.

vLLM's bound threads may keep a test off its processor for seconds: one that waits for the middle of a prefill may wake
up after its end.
"""

import contextlib
import time
from pathlib import Path

HOLD = Path(__file__).with_name("hold")


def hold(plugins: Path, tokens: int) -> Path:
    """From now on no server with the plugin in this folder computes beyond `tokens`; removing the result ends that."""
    file = plugins / HOLD.name
    file.write_text(str(tokens))
    return file


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    compute = CPUWorker.execute_model

    def execute_model(self, scheduled):
        new = [request.num_computed_tokens for request in scheduled.scheduled_new_reqs]
        computed = max(new + scheduled.scheduled_cached_reqs.num_computed_tokens, default=0)
        with contextlib.suppress(FileNotFoundError):  # however the test's removal falls between two looks
            while computed >= int(HOLD.read_text()):
                time.sleep(0.1)
        return compute(self, scheduled)

    CPUWorker.execute_model = execute_model
