"""Make workflow/schemas/config.schema.yaml from the models of a configuration: python tests/makeschema.py."""

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from longctx.campaign.config import CampaignConfig  # noqa: E402
from pydantic.json_schema import GenerateJsonSchema  # noqa: E402

SCHEMA_PATH = ROOT / "workflow" / "schemas" / "config.schema.yaml"
HEAD = "# Made by tests/makeschema.py from scripts/longctx/campaign/config.py; a test compares the two.\n"


class WithoutTitles(GenerateJsonSchema):
    """A key's title would only repeat the key."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_text() -> str:
    schema = CampaignConfig.model_json_schema(by_alias=True, schema_generator=WithoutTitles)
    for section in (schema, *schema["$defs"].values()):
        for key in ("lengths", "from", "to"):  # absent unless they are given
            section.get("properties", {}).get(key, {}).pop("default", None)
    return HEAD + str(yaml.safe_dump(schema, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text())
