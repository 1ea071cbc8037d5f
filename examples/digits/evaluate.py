"""Reports the accuracy of saved parameters on the digits that were not trained on.

    python examples/digits/evaluate.py trained.safetensors --data digits-task/test.safetensors
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import digits


def load_parameters(model: torch.nn.Module, path: Path) -> None:
    """Every parameter by its name; names of tied parameters and buffers that the file leaves out keep their value."""
    saved = load_file(path)
    wanted = model.state_dict()
    missing = sorted(name for name, _ in model.named_parameters() if name not in saved)
    if missing:
        raise ValueError(f"{path}: has no parameter {missing[0]!r} ({len(missing)} missing); is it of this model?")
    wrong = [name for name in saved if name in wanted and saved[name].shape != wanted[name].shape]
    if wrong:
        shapes = f"{list(saved[wrong[0]].shape)}, the model has {list(wanted[wrong[0]].shape)}"
        raise ValueError(f"{path}: {wrong[0]!r} has shape {shapes}; give the --size it was trained with")
    model.load_state_dict({name: t for name, t in saved.items() if name in wanted}, strict=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Accuracy of saved parameters on held-out digits.")
    parser.add_argument("parameters", type=Path, help="safetensors by parameter name")
    parser.add_argument("--data", type=Path, help="test.safetensors of prepare.py (default: made again)")
    parser.add_argument("--size", choices=("tiny", "small", "medium"), default="small")
    parser.add_argument("--at-least", type=float, metavar="A", help="exit 1 when the accuracy is below A")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = digits.build(args.size)
    try:
        load_parameters(model, args.parameters)
        held_out = load_file(args.data) if args.data else digits.split()[1]
    except (OSError, ValueError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 2
    value = digits.accuracy(model, held_out)
    print(f"held-out accuracy {value:.4f} on {len(held_out['label'])} digits")
    if args.at_least is not None and value < args.at_least:
        print(f"evaluate.py: the accuracy is below {args.at_least}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
