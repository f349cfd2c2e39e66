"""Request body: as the product makes it against the two obvious ways, in time and peak memory (own processes).

python tests/benchmarks/bench_body.py [--ids 64Mi]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

PRELUDE = """
import sys, time
from pathlib import Path
import json, numpy as np, orjson, pyarrow.parquet as pq
from longctx.measure.client.request_body import RequestBody
from longctx.prompts import variants
path = Path(sys.argv[1])
ids = lambda: pq.read_table(path).column("token_ids").to_numpy()
peak_kib = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
base = peak_kib()
start = time.perf_counter()
"""
WAYS = {
    "longctx (RequestBody)": "size = sum(map(len, RequestBody.encode({'model': 'm'}, variants.read_ids(path))))",
    "orjson, whole array": (
        "size = len(orjson.dumps({'model': 'm', 'prompt': ids().astype(np.uint32)}, option=orjson.OPT_SERIALIZE_NUMPY))"
    ),
    "json.dumps of a list": "size = len(json.dumps({'model': 'm', 'prompt': ids().tolist()}, separators=(',', ':')))",
}
CLOSING = """
print(time.perf_counter() - start, (peak_kib() - base) / 1024, size)
"""


def main() -> None:
    import numpy as np
    from longctx.lengths import parse_length
    from longctx.storage.token_file import TokenFileWriter

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", default="64Mi")
    left = parse_length(parser.parse_args().ids)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompt.parquet"
        with TokenFileWriter(path) as writer:
            while left > 0:
                ids = rng.integers(0, 163_840, min(left, 1 << 20), dtype=np.uint32)
                writer.metadata.setdefault("first_ids", f"[{ids[0]}]")
                writer.write(ids)
                left -= 1 << 20
        results = {name: run(way, path) for name, way in WAYS.items()}
    (best_s, best_mib, _), *_ = results.values()
    assert len({size for _, _, size in results.values()}) == 1, "the ways do not write the same number of bytes"
    print(f"{'':24} {'seconds':>8} {'MiB more':>9} {'x time':>7} {'x memory':>9}")
    for name, (seconds, mib, _) in results.items():
        print(f"{name:24} {seconds:8.2f} {mib:9.0f} {seconds / best_s:7.2f} {mib / best_mib:9.2f}")


def run(way: str, path: Path) -> tuple[float, float, int]:
    command = [sys.executable, "-c", PRELUDE + way + CLOSING, str(path)]
    done = subprocess.run(command, env={"PYTHONPATH": str(SCRIPTS)}, capture_output=True, text=True, check=True)
    seconds, mib, size = done.stdout.split()
    return float(seconds), float(mib), int(size)


if __name__ == "__main__":
    main()
