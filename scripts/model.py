"""Make a model for `--load-format dummy`: config.json and a tokenizer trained on the corpus."""

import argparse
import json

from longctx.errors import run_program
from longctx.prompts.sources import PACKAGES, CorpusSpec
from longctx.prompts.synthetic_model import make_dummy_from_config, make_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="folder of the model")
    parser.add_argument("--corpus", default=PACKAGES, help="'packages', 'stdlib' or a folder (default: %(default)s)")
    parser.add_argument("--manifest", help="a manifest whose repositories, in its order, are taken from the folder")
    parser.add_argument("--geometry", type=json.loads, default={}, help="JSON of config.json fields for the tiny Llama")
    parser.add_argument("--from-config", help="a real model's config.json, instead of the tiny Llama")
    args = parser.parse_args()
    corpus = CorpusSpec.load(args.corpus, args.manifest)
    if args.from_config:
        make_dummy_from_config(args.from_config, args.out, corpus)
    else:
        make_model(args.out, args.geometry, corpus)


if __name__ == "__main__":
    run_program(main)
