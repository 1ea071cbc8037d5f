"""Llama of the transformers package, with random weights. The model computes its own loss.

Its rotary embedding runs under no_grad, so the exported program carries a wrap_with_set_grad_enabled sub-graph.
"""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "tiny": dict(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, num_key_value_heads=1,
                 intermediate_size=16, max_position_embeddings=8, vocab_size=24),
    "small": dict(num_hidden_layers=6, hidden_size=128, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=384, max_position_embeddings=64, vocab_size=1000),
    "medium": dict(num_hidden_layers=12, hidden_size=512, num_attention_heads=8, num_key_value_heads=4,
                   intermediate_size=1408, max_position_embeddings=128, vocab_size=8000),
}
RENAMED = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads",
           "sequence": "max_position_embeddings", "tied": "tie_word_embeddings"}


def build(size: str = "tiny", **changes) -> nn.Module:
    unknown = sorted(changes.keys() - RENAMED.keys())
    if unknown:
        raise TypeError(f"no setting {unknown[0]!r}: choose from {', '.join(RENAMED)}")
    settings = SIZES[size] | {RENAMED[name]: value for name, value in changes.items()}
    return LlamaForCausalLM(LlamaConfig(**settings, use_cache=False, attn_implementation="sdpa"))


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    tokens = torch.randint(model.config.vocab_size, (batch, model.config.max_position_embeddings))
    return {"input_ids": tokens, "labels": tokens.clone()}, {}


loss = None
