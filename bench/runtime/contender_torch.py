"""torch.distributed.pipelining on the same GPT, cut and weights: one process of two (RANK, WORLD_SIZE, MASTER_*).

Rank 0 reads a line from standard input before each step and prints a JSON line after it: the loss and the time of the
step, barrier to barrier. It is given what makes it fast: fused Adam, static shapes known beforehand, one thread and one
process per stage.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "examples" / "models")]
import gpt  # noqa: E402

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(z):
    z = (z + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def shuffled(samples, epoch, seed=0):
    """The order in which Espalier reads a file's samples: Fisher and Yates with Lemire's bounded numbers."""
    state = mix64(seed ^ ((epoch + GOLDEN + (seed << 6) + (seed >> 2)) & MASK)) & 0x7FFFFFFFFFFFFFFF
    order = list(range(samples))
    for i in range(samples, 1, -1):
        threshold = (-i & MASK) % i
        while True:
            product = mix64(state) * i
            state = (state + 1) & MASK
            if (product & MASK) >= threshold:
                break
        j = product >> 64
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


class Front(torch.nn.Module):
    def __init__(self, model, blocks):
        super().__init__()
        self.embed, self.position, self.dropout = model.embed, model.position, model.dropout
        self.blocks = model.blocks[:blocks]

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embed(tokens) + self.position(places))
        for block in self.blocks:
            x = block(x)
        return x


class Back(torch.nn.Module):
    def __init__(self, model, blocks):
        super().__init__()
        self.blocks, self.norm, self.head = model.blocks[blocks:], model.norm, model.head

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, help="JSON: the model's size, settings and cut")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    config = json.loads(args.config)
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")

    model = gpt.build(config["size"], **config["settings"])
    model.load_state_dict(torch.load(args.weights))
    model.train()
    part = (Front if rank == 0 else Back)(model, config["cut"])
    batch, micro_batch = config["batch"], config["micro_batch"]
    micro_batches = batch // micro_batch
    data = load_file(args.data)
    tokens, width = data["tokens"], model.config.width
    example = tokens[:micro_batch] if rank == 0 else torch.zeros(micro_batch, tokens.shape[1], width)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"), input_args=(example,))
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[config["schedule"]]
    schedule = kind(stage, micro_batches, loss_fn=gpt.loss)
    optimizer = torch.optim.Adam(part.parameters(), lr=1e-3, fused=config["fused"])

    batches = len(tokens) // batch
    orders = {epoch: torch.tensor(shuffled(len(tokens), epoch)) for epoch in range(-(-args.steps // batches))}
    for step in range(args.steps):
        if rank == 0:
            sys.stdin.readline()
        dist.barrier()
        start = time.perf_counter_ns()
        rows = orders[step // batches].narrow(0, step % batches * batch, batch)
        optimizer.zero_grad(set_to_none=True)
        parts = []
        if rank == 0:
            schedule.step(tokens.index_select(0, rows))
        else:
            schedule.step(target=data["labels"].index_select(0, rows), losses=parts)
        optimizer.step()
        mean = torch.stack(parts).mean() if rank == 1 else torch.zeros(())
        dist.broadcast(mean, 1)  # everybody knows the loss, as in Espalier; this is the barrier at the end
        spent = time.perf_counter_ns() - start
        if rank == 0:
            print(json.dumps({"loss": mean.item(), "time_ns": spent}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
