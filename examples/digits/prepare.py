"""Writes what `espalier run` needs for the digits task: digits.pt2, train.safetensors, test.safetensors.

    python examples/digits/prepare.py -o digits-task
"""

import argparse
import sys
from pathlib import Path

import digits  # first: it sets the path to the exporter and the model

import espalier_export
from safetensors.torch import save_file


def prepare(folder: Path, size: str = "small", micro_batch: int = 16, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = digits.split()
    save_file(train, folder / "train.safetensors")
    save_file(held_out, folder / "test.safetensors")
    example = {name: t[:micro_batch] for name, t in train.items()}
    label = example.pop("label")
    exported = espalier_export.export(
        digits.build(size, seed), example, folder / "digits.pt2", loss="cross_entropy", targets={"label": label}
    )
    print(espalier_export.describe(folder / "digits.pt2", exported.metadata))
    print(f"wrote {folder}/train.safetensors ({len(train['label'])} samples), "
          f"{folder}/test.safetensors ({len(held_out['label'])} samples, not for training)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the digits task: model, training data, held-out data.")
    parser.add_argument("-o", "--output", type=Path, default=Path("digits-task"), metavar="FOLDER")
    parser.add_argument("--size", choices=("tiny", "small", "medium"), default="small")
    parser.add_argument("--micro-batch", type=int, default=16, help="size of the example batch (default 16)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights (default 0)")
    args = parser.parse_args()
    try:
        prepare(args.output, args.size, args.micro_batch, args.seed)
    except espalier_export.ExportError as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        sys.exit(2)
