"""Plan before anything runs: which lengths fit, what limits them, how long they take. Needs no GPU and no weights.

For a campaign: --config-file C.json --out plan.parquet --text plan.txt --figure kv_footprint.png
For a model and a GPU: --model config.json --gpu H200 --count 1 --lengths 1Ki..64Mi --kv-dtype fp8
"""

import argparse
import sys
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import run_program
from longctx.plan import model_plan
from longctx.plan.campaign_plan import known_plan, measured_ttft, sampled_ttft
from longctx.plan.text import plan_text, summary_line
from longctx.report.figures.draw import draw_kv_cache
from longctx.storage import atomic, parquet, schemas


def parse_arguments() -> argparse.Namespace:
    parser = model_plan.OneSentenceParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config-file", type=Path, help="a campaign's configuration")
    what.add_argument(
        "--model", help="config.json, its folder, a cached Hugging Face id, or a name of resources/models"
    )
    parser.add_argument("--plan", default="", help="the campaign's plan, made already: its rows are taken as they are")
    parser.add_argument(
        "--measured", type=Path, help="summary.parquet of this recipe, measured or sampled: it improves the forecast"
    )
    parser.add_argument("--out", type=Path, help="write the rows as Parquet")
    parser.add_argument("--text", type=Path, help="write the text instead of printing it")
    parser.add_argument("--figure", type=Path, help="write Figure 1 as PNG and SVG")
    model_plan.add_arguments(parser.add_argument_group("with --model"))
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    campaign = load(args.config_file) if args.config_file else None
    if campaign:
        plan = known_plan(campaign, args.plan, args.measured)
    else:
        plan = model_plan.plan_model(args, measured_ttft(args.measured), sampled_ttft(args.measured))
    text = plan_text(plan.system, plan.rows, args.hold)
    if args.text:
        atomic.write_atomic(args.text, text.encode())
        print(f"plan: {summary_line(plan.rows)} ({args.text})", file=sys.stderr)
    else:
        print(text, end="")
    if args.out:
        labels = {"model": plan.system.geometry.name} | (campaign.labels if campaign else {})
        parquet.write_rows(args.out, schemas.PLAN, plan.rows, labels)
    if args.figure:
        lengths = sorted({row["length"] for row in plan.rows})
        synthetic = campaign is not None and campaign.synthetic_weights
        draw_kv_cache(plan.system, lengths, args.figure.with_suffix(""), synthetic_weights=synthetic)


if __name__ == "__main__":
    run_program(main)
