"""Check one prompt and write its validation row; a bad prompt is a warning here, and measure.py fails its points."""

import argparse
import sys

from longctx.errors import run_program
from longctx.lengths import format_length, parse_length
from longctx.progress.lines import ProgressLine
from longctx.prompts.pretrained import TokenizerSpec, add_tokenizer_arguments
from longctx.prompts.tokenizers import load_tokenizer
from longctx.prompts.validation import model_vocab_size, validate
from longctx.storage.parquet import write_rows
from longctx.storage.schemas import VALIDATION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", required=True)
    add_tokenizer_arguments(parser)
    parser.add_argument("--length", type=parse_length, required=True, help="tokens that the prompt must have")
    parser.add_argument("--model-vocab-size", type=int, help="default: that of the config.json beside the tokenizer")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    tokenizer = load_tokenizer(TokenizerSpec.from_arguments(args))
    with ProgressLine(f"validate {format_length(args.length)}", args.length) as progress:
        vocab_size = args.model_vocab_size or model_vocab_size(args.tokenizer, args.revision)
        row = validate(args.prompt, tokenizer, args.length, vocab_size, progress)
        progress(args.length)
    write_rows(args.out, VALIDATION, [row])
    if not row["ok"]:
        print(f"warning: {args.prompt}: {row['detail']}", file=sys.stderr)


if __name__ == "__main__":
    run_program(main)
