"""A tokenizer of Kimi's kind, made here: its own Python class (auto_map) around a `tiktoken.Encoding`."""

import base64
import json
from pathlib import Path

from tokenizers import Tokenizer

PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
SPECIAL = ("[BOS]", "[EOS]", "<|im_end|>")

CODE = """
import json
import tiktoken
from pathlib import Path
from tiktoken.load import load_tiktoken_bpe
from transformers import PreTrainedTokenizer


class KimiLikeTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, **kwargs):
        ranks = load_tiktoken_bpe(str(vocab_file))
        fields = json.loads(Path(vocab_file).with_name("pattern.json").read_text())
        special = {text: len(ranks) + i for i, text in enumerate(fields["special"])}
        self.encoding = tiktoken.Encoding(
            name="kimi-like", pat_str=fields["pattern"], mergeable_ranks=ranks, special_tokens=special
        )
        self.names = {i: text.decode("latin-1") for text, i in ranks.items()} | {i: t for t, i in special.items()}
        self.ids = {text: i for i, text in self.names.items()}
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return self.encoding.n_vocab

    def get_vocab(self):
        return dict(self.ids)

    def _tokenize(self, text, **kwargs):
        return [self.names[i] for i in self.encoding.encode_ordinary(text)]

    def _convert_token_to_id(self, token):
        return self.ids[token]

    def _convert_id_to_token(self, index):
        return self.names[index]

    def convert_tokens_to_string(self, tokens):
        return b"".join(token.encode("latin-1") for token in tokens).decode(errors="replace")
"""


def byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-in for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}


def make(fast_folder: Path, out: Path, pattern: str = PATTERN, hide_encoding: bool = False) -> Path:
    """Write the vocabulary of a byte-level BPE folder (special ids 0 and 1) as a tiktoken-based tokenizer."""
    alphabet = byte_level_alphabet()
    vocabulary = Tokenizer.from_file(str(fast_folder / "tokenizer.json")).get_vocab(with_added_tokens=False)
    texts = sorted((i, token) for token, i in vocabulary.items() if i > 1)
    ranks = [bytes(alphabet[char] for char in token) for _, token in texts]
    out.mkdir(parents=True, exist_ok=True)
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks))
    (out / "tiktoken.model").write_text("".join(lines))
    (out / "pattern.json").write_text(json.dumps({"pattern": pattern, "special": SPECIAL}))
    code = CODE.replace("self.encoding", "type(self).encoding") if hide_encoding else CODE
    (out / "tokenization_kimilike.py").write_text(code)
    config = {
        "tokenizer_class": "KimiLikeTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimilike.KimiLikeTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "model_max_length": 1024,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    (out / "config.json").write_text('{"model_type": "llama"}')
    return out
