"""Prints what PyTorch keeps for backward in one forward pass of each fixture, in bytes, each storage once and
parameters and buffers apart: the figures of kept_bytes_test.cc. Needs torch."""

import pathlib

import torch
from torch.utils import _pytree

for path in sorted((pathlib.Path(__file__).parents[1] / "fixtures").glob("*.pt2")):
    if path.stem == "weightless":
        continue  # torch cannot open it
    program = torch.export.load(str(path))
    module = program.module()
    args, kwargs = program.example_inputs
    held = {t.untyped_storage().data_ptr() for t in [*module.parameters(), *module.buffers()]}
    kept = {}
    alive = []  # a freed tensor's address may come back

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*args, **kwargs)
    batch = _pytree.tree_leaves(program.example_inputs)[0].shape[0]
    print(f'{{"{path.stem}", {batch}, {sum(kept.values())}}},')
