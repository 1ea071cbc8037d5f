"""Trains the digits model in plain PyTorch, on one core, with the recipe of README.md: what a run should reach."""

import argparse
import time

import torch
import torch.nn.functional as F

import digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--steps", type=int, default=330)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--save", help="write the parameters as safetensors")
    args = parser.parse_args()

    torch.set_num_threads(1)
    train, held_out = digits.split()
    model = digits.build(args.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    micro_batches = args.batch // args.micro_batch
    started, samples = time.perf_counter(), len(train["label"])
    for step in range(args.steps):
        model.train()
        total = 0.0
        for j in range(micro_batches):
            at = (step * args.batch + j * args.micro_batch) % samples
            part = {name: t[at : at + args.micro_batch] for name, t in train.items()}
            loss = F.cross_entropy(model(part["patches"], part["rows"], part["summary"]), part["label"])
            (loss / micro_batches).backward()
            total += loss.item() / micro_batches
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % (samples // args.batch) == 0:
            print(f"step {step + 1}: loss {total:.4f}, held-out accuracy {digits.accuracy(model, held_out):.4f}, "
                  f"{time.perf_counter() - started:.1f} s", flush=True)
    if args.save:
        from safetensors.torch import save_file

        save_file({name: t.contiguous() for name, t in model.state_dict().items()}, args.save)


if __name__ == "__main__":
    main()
