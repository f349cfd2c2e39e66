"""Synthetic models: a config.json and a tokenizer trained on the corpus; the weights come from `dummy` loading."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longctx.errors import GeometryError, PromptError
from longctx.model.reader import read_config
from longctx.prompts.sources import Corpus, CorpusSpec, repository_texts, scan
from longctx.storage.atomic import write_atomic

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
TRAINING_CHARS = 8_000_000
MAX_TRAINED_VOCAB = 32_768
# The default campaign's model: small enough for a CPU, and its attention still quadratic.
TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 1 << 20,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "initializer_range": 0.02,
}  # fmt: skip


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> str:
    """Return a byte-level BPE's tokenizer.json: begin (0), end (1), at most `vocab_size` ids; always the same."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    smallest = 2 + 256
    if vocab_size < smallest:
        raise PromptError(f"vocab_size {vocab_size}: a byte-level tokenizer needs at least {smallest}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def _training_texts(corpus: Corpus, chars: int) -> Iterator[str]:
    """Yield the first part of each repository, all together about `chars` characters."""
    share = chars // len(corpus.repositories)
    for repository in corpus.repositories:
        size = 0
        for text in repository_texts(corpus, repository, 1):
            yield text
            size += len(text)
            if size >= share:
                break


def make_model(
    out_dir: Path | str,
    geometry: dict[str, Any] | None = None,
    corpus: CorpusSpec | None = None,
    training_chars: int = TRAINING_CHARS,
) -> None:
    """Write config.json (TINY_LLAMA with `geometry`) and a tokenizer; the same arguments give the same files."""
    config = TINY_LLAMA | (geometry or {})
    _write_model(Path(out_dir), config, corpus or CorpusSpec(), int(config["vocab_size"]), training_chars)


def make_dummy_from_config(config_json: Path | str, out_dir: Path | str, corpus: CorpusSpec | None = None) -> None:
    """Write a real model's config.json with a tokenizer made here (at most MAX_TRAINED_VOCAB ids are trained).

    Geometry and quantization (also of hf_quant_config.json) are kept; only the ids of special tokens become the
    tokenizer's. For `--load-format dummy`.
    The tokenizer knows every id of the model, since random weights emit them all: vLLM decodes the whole prompt again
    for each token that has no text (0.3 µs a prompt token, 20 s for 128 tokens behind 512Ki).
    """
    try:
        config = read_config(Path(config_json))
        model_vocab = int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, GeometryError) as error:
        raise PromptError(f"{config_json}: not a model's config.json with a vocab_size ({error})") from error
    _write_model(Path(out_dir), config, corpus or CorpusSpec(), model_vocab, TRAINING_CHARS)


def _write_model(out_dir: Path, config: dict[str, Any], spec: CorpusSpec, vocab_size: int, training_chars: int) -> None:
    texts = _training_texts(scan(spec), training_chars)
    tokenizer = json.loads(train_tokenizer(texts, min(vocab_size, MAX_TRAINED_VOCAB)))
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    # A text for every id of the model; nothing is encoded to the new ones.
    vocab |= {f"<extra_{number}>": number for number in range(len(vocab), vocab_size)}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    longest = int(config.get("max_position_embeddings") or 1 << 20)
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "pad_token": EOS}
    tokenizer_config = tokens | {"model_max_length": longest, "clean_up_tokenization_spaces": False}
    files = {"config": config | special, "generation_config": special, "tokenizer_config": tokenizer_config}
    write_atomic(out_dir / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False).encode())
    for name, content in files.items():
        write_atomic(out_dir / f"{name}.json", (json.dumps(content, indent=2) + "\n").encode())
