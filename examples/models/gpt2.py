"""GPT-2 of the transformers package, with random weights. The model computes its own loss."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {
    "tiny": dict(n_layer=2, n_embd=8, n_head=2, n_positions=8, vocab_size=24),
    "small": dict(n_layer=6, n_embd=128, n_head=4, n_positions=64, vocab_size=1000),
    "medium": dict(n_layer=12, n_embd=512, n_head=8, n_positions=128, vocab_size=8000),
}
RENAMED = {"layers": "n_layer", "width": "n_embd", "heads": "n_head", "sequence": "n_positions",
           "tied": "tie_word_embeddings"}


def build(size: str = "tiny", **changes) -> nn.Module:
    unknown = sorted(changes.keys() - RENAMED.keys())
    if unknown:
        raise TypeError(f"no setting {unknown[0]!r}: choose from {', '.join(RENAMED)}")
    settings = SIZES[size] | {RENAMED[name]: value for name, value in changes.items()}
    config = GPT2Config(**settings, bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="sdpa")
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    tokens = torch.randint(model.config.vocab_size, (batch, model.config.n_positions))
    return {"input_ids": tokens, "labels": tokens.clone()}, {}


loss = None
