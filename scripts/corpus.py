"""Build the token stream that all prompts share, or fetch the repositories of a manifest."""

import argparse
import sys

from longctx.errors import run_program
from longctx.lengths import parse_length
from longctx.progress.lines import ProgressLine
from longctx.prompts import sources, token_stream
from longctx.prompts.pretrained import TokenizerSpec, add_tokenizer_arguments
from longctx.prompts.tokenizers import load_tokenizer
from longctx.storage.token_file import n_cycles


def build(args: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(TokenizerSpec.from_arguments(args))
    with ProgressLine(f"corpus {args.corpus} ({tokenizer.engine})", args.tokens) as progress:
        spec = sources.CorpusSpec.load(args.corpus, args.manifest)
        metadata = token_stream.build_stream(spec, tokenizer, args.tokens, args.out, progress)
    if (cycles := n_cycles(metadata, args.tokens)) > 1:
        print(f"corpus: shorter than {args.tokens} tokens, so it is read {cycles} times", file=sys.stderr)


def fetch(args: argparse.Namespace) -> None:
    sources.fetch(args.manifest, args.to, lambda line: print(line, file=sys.stderr))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    build_parser = commands.add_parser("build", help="tokenize a corpus into one stream")
    add_option = build_parser.add_argument
    add_option("--corpus", default=sources.PACKAGES, help="'packages', 'stdlib' or a folder of source trees")
    add_option("--manifest", help="a manifest whose repositories, in its order, are taken from the folder")
    add_tokenizer_arguments(build_parser)
    add_option("--tokens", type=parse_length, required=True, help="tokens of the longest prompt, like 64Mi")
    add_option("--out", required=True)
    build_parser.set_defaults(run=build)
    fetch_parser = commands.add_parser("fetch", help="clone a manifest's repositories at their pinned tags")
    fetch_parser.add_argument("--manifest", default="resources/corpus/published.yaml")
    fetch_parser.add_argument("--to", required=True, help="folder for the clones")
    fetch_parser.set_defaults(run=fetch)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    run_program(main)
