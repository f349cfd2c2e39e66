"""Write the versions of envs/pipeline.txt and the hash of what is installed into resources/corpus/packages.yaml."""

import re
from pathlib import Path

from longctx.prompts import pinned_packages, sources

PINS = Path(__file__).parents[1] / "envs" / "pipeline.txt"


def main() -> None:
    versions = dict(re.findall(r"^([\w-]+)==(\S+)$", PINS.read_text(encoding="utf-8"), re.MULTILINE))
    text = pinned_packages.MANIFEST.read_text(encoding="utf-8")
    for package in pinned_packages.read():
        text = text.replace(
            f"{package.name}, version: {package.version}", f"{package.name}, version: {versions[package.name]}"
        )
    pinned_packages.MANIFEST.write_text(text, encoding="utf-8")
    found: list[str] = []
    pinned_packages.check = found.append  # type: ignore[assignment]
    sources.scan(sources.CorpusSpec())
    text = re.sub(r"^sha256: .*$", f'sha256: "{found[0]}"', text, flags=re.MULTILINE)
    pinned_packages.MANIFEST.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
