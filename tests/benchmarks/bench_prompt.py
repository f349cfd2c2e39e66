"""Prompt building: tokens/s and peak memory, against the bare engine as control. Run on demand, never in CI:

    python tests/benchmarks/bench_prompt.py --corpus FOLDER [--tokens 64Mi] [--vocab 163840] [--work DIR]

Each measurement is a process of its own; peak memory is its VmHWM, tokenizer and imports included. The vocabulary is
trained on the same corpus, which flatters every row alike. `cpu` is the CPU time: where other work shares the cores,
compare that. Controls: `bare` is the engine alone over the same texts in
the same batches, its ids thrown away; `loop` is the plain way, one file after the other through the transformers
tokenizer's `encode`, ids kept in one list (capped, since it is slow).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

import kimilike  # noqa: E402
from longctx.lengths import format_length, parse_length  # noqa: E402
from longctx.prompts import builder, sources, synthetic_model, token_stream, tokenizers, validation, variants  # noqa: E402
from longctx.prompts.pretrained import TokenizerSpec  # noqa: E402
from longctx.storage import token_file  # noqa: E402

LOOP_TOKENS = 4 << 20


def peak_mib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def texts(folder: str) -> Iterator[str]:
    """The corpus again and again, as build_stream marks and splits it."""
    found = sources.scan(sources.CorpusSpec(folder))
    for cycle in range(1, 1000):
        for repository in found.repositories:
            yield from sources.repository_texts(found, repository, cycle)


def run_ours(tokenizer: tokenizers.Tokenizer, args: argparse.Namespace) -> tuple[int, float, dict[str, Any]]:
    start = time.perf_counter()
    token_stream.build_stream(sources.CorpusSpec(args.corpus), tokenizer, args.tokens, args.stream)
    return args.tokens, time.perf_counter() - start, {}


def run_bare(tokenizer: tokenizers.Tokenizer, args: argparse.Namespace) -> tuple[int, float, dict[str, Any]]:
    done, start = 0, time.perf_counter()
    for batch in tokenizers.batches(texts(args.corpus), tokenizers.BATCH_CHARS):
        done += sum(len(item) for item in tokenizer._encode_raw(batch))
        if done >= args.tokens:
            break
    return done, time.perf_counter() - start, {}


def run_loop(tokenizer: tokenizers.Tokenizer, args: argparse.Namespace) -> tuple[int, float, dict[str, Any]]:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(args.tokenizer, trust_remote_code=True)
    limit = min(args.tokens, LOOP_TOKENS)
    ids: list[int] = []
    start = time.perf_counter()
    for text in texts(args.corpus):
        ids += loaded.encode(text, add_special_tokens=False)
        if len(ids) >= limit:
            break
    return len(ids), time.perf_counter() - start, {}


def run_prompt(tokenizer: tokenizers.Tokenizer, args: argparse.Namespace) -> tuple[int, float, dict[str, Any]]:
    start = time.perf_counter()
    builder.build(args.stream, "report", tokenizer, args.tokens, args.prompt)
    seconds, peak = time.perf_counter() - start, peak_mib()
    start = time.perf_counter()
    variants.read_ids(args.prompt)
    read = time.perf_counter() - start
    size = round(Path(args.prompt).stat().st_size / 1e6, 1)
    return args.tokens, seconds, {"peak_mib": peak, "read_s": round(read, 2), "file_mb": size}


def run_validate(tokenizer: tokenizers.Tokenizer, args: argparse.Namespace) -> tuple[int, float, dict[str, Any]]:
    start = time.perf_counter()
    row = validation.validate(args.prompt, tokenizer, args.tokens)
    return args.tokens, time.perf_counter() - start, {"ok": row["ok"], "cycles": row["cycles"], "detail": row["detail"]}


RUNS = {"loop": run_loop, "bare": run_bare, "ours": run_ours, "prompt": run_prompt, "validate": run_validate}


def worker(args: argparse.Namespace) -> None:
    start = time.perf_counter()
    tokenizer = tokenizers.load_tokenizer(TokenizerSpec(args.tokenizer, trust_remote_code=True))
    load_s, cpu = time.perf_counter() - start, time.process_time()
    done, seconds, more = RUNS[args.worker](tokenizer, args)
    cpu = time.process_time() - cpu
    print(json.dumps({"tokens": done, "s": seconds, "cpu_s": cpu, "load_s": load_s, "peak_mib": peak_mib(), **more}))


def measure(kind: str, engine: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    work = Path(args.work)
    command = [
        sys.executable,
        __file__,
        "--worker",
        kind,
        "--corpus",
        args.corpus,
        "--tokens",
        str(args.tokens),
        "--tokenizer",
        str(folder),
        "--stream",
        str(work / f"{engine}.stream.parquet"),
        "--prompt",
        str(work / f"{engine}.prompt.parquet"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{engine} {kind}: {done.stderr[-800:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rate = result["tokens"] / result["s"] / 1e6
    extra = {key: value for key, value in result.items() if key not in ("tokens", "s", "cpu_s", "load_s", "peak_mib")}
    clocks = f"{result['s']:7.1f} s (cpu {result['cpu_s']:.1f} s)"
    line = f"{engine:10} {kind:9} {format_length(result['tokens']):>9} {clocks} {rate:6.2f} M tokens/s"
    print(f"{line} {result['peak_mib']:5} MiB  load {result['load_s']:.1f} s  {extra or ''}", flush=True)
    return result | {"rate": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default=sources.STDLIB)
    parser.add_argument("--tokens", type=parse_length, default=parse_length("4Mi"))
    parser.add_argument("--vocab", type=int, default=163_840)
    parser.add_argument("--training-chars", type=int, default=170_000_000)
    parser.add_argument("--work", default="/tmp/longctx-bench-prompt")
    parser.add_argument("--engines", default="tokenizers,tiktoken")
    parser.add_argument("--kinds", default=",".join(RUNS))
    for hidden in ("--worker", "--tokenizer", "--stream", "--prompt"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    fast = Path(args.work) / f"fast-{args.vocab}"
    if not (fast / "config.json").exists():
        start = time.perf_counter()
        spec = sources.CorpusSpec(args.corpus)
        synthetic_model.make_model(fast, {"vocab_size": args.vocab}, spec, training_chars=args.training_chars)
        print(f"trained {args.vocab} ids in {time.perf_counter() - start:.0f} s")
    gpt2_pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    folders = {"tokenizers": fast, "tiktoken": kimilike.make(fast, fast.with_name(f"tik-{args.vocab}"), gpt2_pattern)}
    for engine in args.engines.split(","):
        results = {kind: measure(kind, engine, folders[engine], args) for kind in args.kinds.split(",")}
        for control in ("bare", "loop"):
            if {"ours", control} <= set(results):
                speed = results["ours"]["rate"] / results[control]["rate"]
                cpu = [results[kind]["tokens"] / results[kind]["cpu_s"] for kind in ("ours", control)]
                print(
                    f"{engine:10} ours/{control} = {speed:.2f} in speed, {cpu[0] / cpu[1]:.2f} in tokens per CPU second"
                )
    streams = [Path(args.work) / f"{engine}.stream.parquet" for engine in folders]
    if all(path.exists() for path in streams):
        pairs = zip(*(token_file.iter_ids(path) for path in streams), strict=False)
        same = all((first[: len(second)] == second[: len(first)] + 2).all() for first, second in pairs)
        print(f"both engines give the same ids (special ids shift them by 2): {same}")


if __name__ == "__main__":
    main()
