"""The typed row and the tables' columns that follow from it."""

from dataclasses import asdict
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from longctx.storage import schemas
from longctx.storage.rows import MeasurementRow, ModeName, Role, Status

FACTS = """
vllm_version:S torch_version:S aiter_version:S model:S attention_backend:S prefill_backend:S kv_cache_dtype:S
cudagraph_mode:S kv_capacity_tokens:I weights_bytes:I kv_cache_bytes:I gpu_memory_bytes:I
max_model_len:I block_size:I tensor_parallel_size:I pipeline_parallel_size:I
decode_context_parallel_size:I max_num_seqs:I max_num_batched_tokens:I prefix_caching:B launcher:S image:S
image_digest:S startup_s:F
host:S gpu:S gpu_count:I gpu_driver:S cuda_or_rocm:S cpu:S cpu_count:I memory_bytes:I kernel:S os:S
"""
MEASUREMENTS = f"""
campaign:S recipe_hash:S mode:S role:S length:I pass_index:I request_index:I status:S reason:S reasons:L detail:S
prompt_sha256:S prompt_salt:S prompt_tokens:I completion_tokens:I max_new_tokens:I cached_tokens:I claimed_tokens:I
temperature:F ignore_eos:B ttft_s:F prefill_s:F sample_prefill_s:F queue_s:F overhead_s:F e2e_s:F decode_tok_s:F
decode_client_tok_s:F decode_source:S itl_p50_s:F itl_p90_s:F itl_p99_s:F itl_max_s:F chunks:I coalesced:B
starved_s:F jit_events:I resumed_from:I external_hit_tokens:I resumed_ttft_s:F resumed_prefill_s:F
prefill_chunks:S stitched_prefill_s:F stitched_error_s:F energy_j:F energy_decode_j:F power_mean_w:F power_gap_s:F
sm_clock_mhz:F
sm_clock_min_mhz:F throttle_reasons:S synthetic_weights:B filled_kv:B started_at:T server_counters:S
log_lines:L {FACTS}
"""
SERVERS = f"""
campaign:S recipe_hash:S mode:S length:I pass_index:I started_at:T command:L contract:S env:S log_path:S status:S
reason:S detail:S {FACTS}
"""
TYPES = {
    "S": pa.string(), "I": pa.int64(), "F": pa.float64(), "B": pa.bool_(), "L": pa.list_(pa.string()),
    "T": pa.timestamp("us", tz="UTC"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "literal"), [(schemas.MEASUREMENTS, MEASUREMENTS), (schemas.SERVERS, SERVERS)], ids=["rows", "servers"]
)
def test_the_columns_are_those_of_every_file_so_far(schema: pa.Schema, literal: str) -> None:
    columns = [column.split(":") for column in literal.split()]
    assert schema == pa.schema([(name, TYPES[kind]) for name, kind in columns])


def test_server_and_host_facts_are_the_last_columns() -> None:
    names = [column.partition(":")[0] for column in FACTS.split()]
    assert [*schemas.SERVER_FACTS, *schemas.HOST_FACTS] == names
    assert (next(iter(schemas.HOST_FACTS)), len(schemas.HOST_FACTS)) == ("host", 10)


def test_a_row_becomes_a_line_of_its_table() -> None:
    at = datetime(2026, 11, 29, tzinfo=UTC)
    row = MeasurementRow(
        campaign="c", recipe_hash="h", mode=ModeName.PREFILL, role=Role.COLD, length=1024, pass_index=1,
        request_index=0, status=Status.DOUBTFUL, reasons=("jit", "clock_jump"), started_at=at,
    )  # fmt: skip
    (line,) = pa.Table.from_pylist([asdict(row)], schema=schemas.MEASUREMENTS).to_pylist()
    facts = dict.fromkeys([*schemas.SERVER_FACTS, *schemas.HOST_FACTS])
    assert line == asdict(row) | facts | {"reasons": ["jit", "clock_jump"]}
    assert (line["mode"], line["role"], line["status"], line["log_lines"]) == ("prefill", "cold", "doubtful", None)
