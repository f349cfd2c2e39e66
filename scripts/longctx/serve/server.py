"""A running server as the measurement sees it."""

from dataclasses import dataclass, field
from typing import Any

from longctx.processes.supervisor import SupervisedProcess
from longctx.serve.http import listens
from longctx.serve.root_cause import clean, root_cause_line
from longctx.serve.server_log import Log


@dataclass(frozen=True, slots=True)
class Server:
    """A ready server. `url` has no path; `model` is the name for requests; facts: schemas.SERVER_FACTS, HOST_FACTS.

    contract: entries {setting, asked, actual, source, ok}. An external server has neither log nor process of ours.
    gpu_numbers: the GPUs of this host that it computes on, () where that is not known.
    """

    url: str
    model: str
    facts: dict[str, Any]
    host_facts: dict[str, Any]
    contract: list[dict[str, Any]]
    env_json: str
    command: list[str] = field(default_factory=list)
    api_key: str | None = field(default=None, repr=False)
    log: Log | None = None
    process: SupervisedProcess | None = None
    gpu_numbers: tuple[int, ...] = ()

    def alive(self) -> bool:
        """Return whether the server still runs; for an external one, whether something listens at its address.

        No path is asked for: some servers answer none, or generate a token for it, while they prefill.
        """
        return self.process.alive() if self.process else listens(self.url, timeout_s=2.0)

    def death_reason(self) -> str:
        """Return how the server ended and the log line that best says why, in one sentence; '' while it lives."""
        if self.alive():
            return ""
        if self.process is None or self.log is None:
            return "the external server no longer answers"
        self.process.settle()
        return f"the server {self.process.describe_exit()}: {root_cause_line(self.log.lines())}"

    def log_offset(self) -> int:
        """Return the log's size in bytes now, to be given to `log_between`."""
        return self.log.offset() if self.log else 0

    def log_between(self, first: int, last: int) -> list[str]:
        """Return the log lines written between two offsets, without vLLM's prefixes."""
        return [clean(line) for line in self.log.between(first, last)] if self.log else []

    def capacity_tokens(self) -> int | None:
        """Return how many tokens the KV cache holds by the server's own account, hybrid layers considered."""
        capacity: int | None = self.facts["kv_capacity_tokens"]
        return capacity
