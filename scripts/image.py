"""Build (once) or pull the image of launcher `container` and record its id and digest."""

import argparse
from pathlib import Path

import orjson
from longctx.errors import run_program
from longctx.serve.launchers import images
from longctx.storage.atomic import write_atomic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True, help="name that the image has or gets")
    parser.add_argument("--containerfile", type=Path, help="build from this file; without it the image is pulled")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    parser.add_argument("--engine", choices=("podman", "docker", "apptainer"), help="default: the first that is found")
    parser.add_argument("--out", required=True, help="JSON file with name, id and digest")
    args = parser.parse_args()
    build_args = dict(text.partition("=")[::2] for text in args.build_arg)
    record = images.ensure(args.engine, args.image, args.containerfile, build_args)
    write_atomic(args.out, orjson.dumps(record, option=orjson.OPT_INDENT_2))
    print(f"{record['name']} {record['digest']}" + ("" if record["built"] else " (there already)"))


if __name__ == "__main__":
    run_program(main)
