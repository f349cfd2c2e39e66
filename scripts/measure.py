#!/usr/bin/env python3
"""Measure points such as 64Ki/pass1 of a campaign; finished requests are kept, so the same command resumes."""

import argparse
import sys
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.campaign.point import parse_point
from longctx.errors import LongctxError
from longctx.lengths import parse_length
from longctx.measure.protocol import measure
from longctx.plan.plan_table import PlanTable
from longctx.progress.console_log import log_to_file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--plan", default="", help="the campaign's plan; '' or a missing file: none is known")
    parser.add_argument("--log", type=Path, required=True, help="what is said goes here too")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="LENGTH.parquet of each length")
    parser.add_argument("--validations", type=Path, nargs="+", required=True, help="LENGTH.parquet of each length")
    parser.add_argument("--points", nargs="+", required=True, help="LENGTH/passN, or LENGTH/MODE-passN of other modes")
    args = parser.parse_args()
    with log_to_file(args.log) as say:
        try:
            campaign = load(args.config_file)
            points, plan = [parse_point(name) for name in args.points], PlanTable.read(args.plan)
            files = (args.prompts, args.validations)
            prompts, validations = ({parse_length(path.stem): path for path in paths} for paths in files)
            failed = measure(campaign, points, plan=plan, prompts=prompts, validations=validations, say=say)
        except (LongctxError, OSError) as error:
            say(f"error: {error}")
            return 1
        except KeyboardInterrupt:
            say("stopped; finished requests are kept, the same command goes on from here")
            return 130
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
