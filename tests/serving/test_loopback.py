"""Real vLLM of two ranks where the host's name resolves to an address of the network: nothing may listen there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from longctx.prompts import synthetic_model

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
# A host of two interfaces: lo, and eth9 with the address that the host's name has.
NETWORK = """set -e
ip link set lo up
ip link add eth9 type veth peer name eth8
ip link set eth8 up
ip addr add 10.9.8.7/24 dev eth9
ip link set eth9 up
ip route add default via 10.9.8.1
printf '127.0.0.1 localhost\\n10.9.8.7 %s\\n' "$(uname -n)" > "$1/hosts"
mount --bind "$1/hosts" /etc/hosts
shift
exec "$@"
"""
SERVE = """
import subprocess, sys
from pathlib import Path
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.serve.lifecycle import serve
python, folder = sys.argv[1], Path(sys.argv[2])
# Two ranks on one NUMA node, each bound to one processor.
env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
recipe = Recipe(model=str(folder / "model"), served_name="m", max_model_len=2048, load_format="dummy",
                enforce_eager=True, custom_all_reduce=False, tensor_parallel_size=2, env=env)
with serve(recipe, ServeConfig(python=python), run_dir=folder / "run", log_path=folder / "log", campaign="c",
           start_timeout_s=900):
    subprocess.run(["ss", "--listening", "--numeric", "--no-header", "--tcp", "--udp"], check=True)
"""


def can_make_a_network() -> bool:
    tools = all(map(shutil.which, ("unshare", "ip", "ss", "mount")))
    probe = ["unshare", "--net", "--mount", "ip", "link", "add", "eth9", "type", "veth", "peer", "name", "eth8"]
    return tools and subprocess.run(probe, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm"),
    pytest.mark.skipif(not can_make_a_network(), reason="network namespaces need root, ip and ss"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two processors"),
]


def test_every_socket_is_on_loopback(tmp_path: Path) -> None:
    geometry = {"vocab_size": 2048, "max_position_embeddings": 16384, "num_attention_heads": 4}
    synthetic_model.make_model(tmp_path / "model", geometry | {"num_key_value_heads": 2}, training_chars=200_000)
    (tmp_path / "network.sh").write_text(NETWORK)
    network = ["unshare", "--net", "--mount", "bash", str(tmp_path / "network.sh"), str(tmp_path)]
    program = [sys.executable, "-c", SERVE, str(PYTHON), str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run([*network, *program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    addresses = [line.split()[4] for line in done.stdout.splitlines()]
    assert len(addresses) > 10, "the workers' own sockets are there"
    assert [address for address in addresses if not address.startswith(("127.", "[::1]"))] == []
