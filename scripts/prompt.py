"""Build the prompt of one length from the token stream."""

import argparse

from longctx.errors import run_program
from longctx.lengths import format_length, parse_length
from longctx.progress.lines import ProgressLine
from longctx.prompts.builder import build
from longctx.prompts.pretrained import TokenizerSpec, add_tokenizer_arguments
from longctx.prompts.tokenizers import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stream", required=True, help="stream.parquet of scripts/corpus.py build")
    parser.add_argument("--shape", default="report", help="report, plain, or a folder with system.txt and task.txt")
    add_tokenizer_arguments(parser)
    parser.add_argument("--length", type=parse_length, required=True, help="tokens, like 64Ki")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    tokenizer = load_tokenizer(TokenizerSpec.from_arguments(args))
    with ProgressLine(f"prompt {format_length(args.length)}", args.length) as progress:
        build(args.stream, args.shape, tokenizer, args.length, args.out, progress)
        progress(args.length)


if __name__ == "__main__":
    run_program(main)
