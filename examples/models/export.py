"""Exports an example model by name: python examples/models/export.py three_branch -o three_branch.pt2 --batch 8"""

import argparse
import importlib
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "python")]

import espalier_export  # noqa: E402

MODELS = ("two_tower", "three_branch", "gpt", "resnet", "dlrm", "unet", "gpt2", "llama")


def export_model(name: str, path, *, batch: int = 8, size: str = "tiny", mode: str = "train", seed: int = 0,
                 batch_kind: str = "auto", **changes) -> espalier_export.Exported:
    """Builds example model `name` with weights drawn from `seed`, and writes it to `path`."""
    module = importlib.import_module(name)
    torch.manual_seed(seed)
    model = module.build(size, **changes)
    inputs, targets = module.example_inputs(model, batch)
    return espalier_export.export(
        model, inputs, path, loss=module.loss, targets=targets, mode=mode, batch=batch_kind
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Export an example model with its loss as a .pt2 file.")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("-o", "--output", required=True, metavar="FILE.pt2")
    parser.add_argument("--batch", type=int, default=8, help="size of the example batch (default 8)")
    parser.add_argument("--size", choices=("tiny", "small", "medium"), default="tiny")
    parser.add_argument("--eval", action="store_true", help="without dropout and batch statistics")
    parser.add_argument("--fixed", action="store_true", help="keep the batch as a constant")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights (default 0)")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--seq", type=int, help="tokens per sample (gpt)")
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--untied", action="store_true", help="an output embedding of its own (gpt)")
    args = parser.parse_args()

    changes = {"layers": args.layers, "width": args.width, "heads": args.heads, "sequence": args.seq,
               "dropout": args.dropout, "tied": False if args.untied else None}
    changes = {name: value for name, value in changes.items() if value is not None}
    try:
        exported = export_model(args.model, args.output, batch=args.batch, size=args.size, seed=args.seed,
                                mode="eval" if args.eval else "train", batch_kind="fixed" if args.fixed else "auto",
                                **changes)
    except TypeError as error:  # a setting that this model's Config does not have
        print(f"export.py: {args.model}: {error}", file=sys.stderr)
        return 2
    except espalier_export.ExportError as error:
        print(f"export.py: {error}", file=sys.stderr)
        return 2
    print(espalier_export.describe(args.output, exported.metadata), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
