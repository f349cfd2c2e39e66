"""Serves a small mixture of experts with vLLM's Python interface and prints what its weights make of a prompt, as JSON.

Arguments: the folder of the model, and further arguments of vllm.LLM as JSON. Run by a Python that has vLLM, with this
folder on PYTHONPATH: the workers import the functions below.
"""

import json
import os
import random
import sys
from typing import Any

os.environ |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def count_experts(model: Any) -> int:
    """Count, from now on, how often each expert is among the routers' first four; return how many routers there are."""
    import torch

    def count(module: Any, inputs: Any, output: Any) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        scores = logits.sigmoid() + module.e_score_correction_bias  # as vLLM's own routing of this model
        chosen = scores.topk(4, -1).indices.flatten()
        module.longctx_counts = getattr(module, "longctx_counts", 0) + torch.bincount(
            chosen, minlength=logits.shape[-1]
        )

    routers = [module for name, module in model.named_modules() if name.endswith(".gate")]
    for router in routers:
        router.register_forward_hook(count)
    return len(routers)


def read_counts(model: Any) -> list[list[int]]:
    """Return, for each router, how often each expert was chosen."""
    routers = [module for name, module in model.named_modules() if name.endswith(".gate")]
    return [router.longctx_counts.tolist() for router in routers]


def main() -> None:
    import weights_probe as workers
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=sys.argv[1], max_model_len=1024, max_num_seqs=1, enforce_eager=True, skip_tokenizer_init=True,
        enable_prefix_caching=False, max_logprobs=-1, **json.loads(sys.argv[2]),
    )  # fmt: skip
    llm.apply_model(workers.count_experts)
    numbers = random.Random(1)
    prompt = {"prompt_token_ids": [numbers.randrange(4096) for _ in range(512)]}
    sampling = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False, ignore_eos=True)
    answer = llm.generate([prompt], sampling)[0].outputs[0].logprobs
    logprobs = [entry.logprob for _, entry in sorted(answer[0].items())]
    print("RESULT", json.dumps({"logprobs": logprobs, "experts": llm.apply_model(workers.read_counts)[0]}))


if __name__ == "__main__":
    main()
