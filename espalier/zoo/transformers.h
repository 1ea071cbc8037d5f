#pragma once

// Language models that are one chain of Transformer layers. Batch: any. Dropout is left out, as trainings on
// large corpora have it. P = positions, h = hidden, f = feed_forward, V = vocabulary, L = layers; flops are
// those of matrix work, forward, for one sample.

#include "espalier/graph/graph.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {

// GPT-2 (Radford et al., 2019): a norm before each half of a layer, gelu, the output tied to the embedding.
//
//   parameters = V·h + P·h + L·(12h² + 13h) + 2h
//   flops = L·(24·P·h² + 4·P²·h) + 2·P·h·V
//
// The usual one is GPT-2 small: 124,439,808 parameters (gpt2 of the transformers package). GPT-3 175B: 96
// layers, hidden 12,288, 96 heads, 2048 positions.
struct Gpt {
  std::int64_t layers = 12;
  std::int64_t hidden = 768;
  std::int64_t heads = 12;
  std::int64_t positions = 1024;
  std::int64_t vocabulary = 50'257;
};

// BERT (Devlin et al., arXiv 1810.04805) as it is pre-trained: masked words, whose output is tied to the
// embedding, and whether the second sentence follows the first. Norms behind each half of a layer.
//
//   parameters = (V + P + 2)·h + 2h + L·(4h² + 2h·f + 9h + f) + (h² + h)   embeddings, layers, pooler
//              + h² + 3h + V + 2h + 2   heads
//   flops = L·(8·P·h² + 4·P·h·f + 4·P²·h) + 2·P·h² + 2·P·h·V + 2·h² + 4h
//
// The usual one is BERT-base: 109,482,240 parameters and 624,188 of the heads.
struct Bert {
  std::int64_t layers = 12;
  std::int64_t hidden = 768;
  std::int64_t heads = 12;
  std::int64_t feed_forward = 3072;
  std::int64_t positions = 512;
  std::int64_t vocabulary = 30'522;
};

// Llama (Touvron et al., arXiv 2302.13971; grouped queries as in arXiv 2307.09288): RMS norms before each
// half of a layer, rotary positions, gated feed-forward part silu(gate)·up, no biases. With `experts` it is
// Mixtral (arXiv 2401.04088): a router and that many feed-forward parts in each layer. Shapes are static:
// each expert takes the C = ⌈P · experts_per_token / experts⌉ tokens of a sample that the router gives it
// most of (Zhou et al., arXiv 2202.09368), where Mixtral lets each token choose. w = h / heads ·
// key_value_heads.
//
//   parameters = 2·V·h + h + L·(2h² + 2h·w + 2h + 3·h·f)    with E experts 3·E·h·f + E·h
//   flops = L·(4·P·h² + 4·P·h·w + 4·P²·h + 6·P·h·f) + 2·P·h·V + P·h/heads
//           with E experts 6·E·C·h·f + 2·P·h·E for each layer; the last term is the table of rotations
//
// The usual one is Llama-7B: 6,738,415,616 parameters. Llama 3 8B (key_value_heads 8, feed_forward 14,336,
// vocabulary 128,256): 8,030,261,248. Mixtral 8×7B: 46,702,792,704.
struct Llama {
  std::int64_t layers = 32;
  std::int64_t hidden = 4096;
  std::int64_t heads = 32;
  std::int64_t key_value_heads = 32;
  std::int64_t feed_forward = 11'008;
  std::int64_t positions = 2048;
  std::int64_t vocabulary = 32'000;
  std::int64_t experts = 0;  // 0: one feed-forward part, without a router
  std::int64_t experts_per_token = 2;
};

// Transformer-XL (Dai et al., arXiv 1901.02860): each layer attends to its segment and to the one before it,
// whose states are inputs (they send no gradient back), by relative positions:
// softmax((q + u)·kᵀ + shift((q + v)·rᵀ)), one u and one v for all layers. Norms behind each half of a layer,
// the output tied to the embedding. P = positions of the segment, and of its memory.
//
// With more than one segment a step goes on through S of them: the states of one, detached, are the memory of
// the next, weights are shared, the loss is the sum of theirs. So layer l of segment s waits for layer l - 1
// of segments s and s - 1: a wave through layers and segments.
//
//   parameters = V·h + V + 2h + L·(5h² + 2h·f + 5h + f)
//   flops = S·(L·(12·P·h² + 4·P·h² + 2·P·h² + 12·P²·h + 4·P·h·f) + 2·P·h·V)
//
// 12·P·h² are q, k and v of memory and segment; 4·P·h², once for all samples, the 2P distances; 12·P²·h the
// three products of P by 2P. The usual one is the 12-layer model of enwik8: 41,055,436 parameters ("41M").
struct TransformerXl {
  std::int64_t layers = 12;
  std::int64_t hidden = 512;
  std::int64_t heads = 8;
  std::int64_t feed_forward = 2048;
  std::int64_t positions = 512;
  std::int64_t vocabulary = 204;
  std::int64_t segments = 1;
};

// Throw InputError where a size is below 1, heads do not divide the hidden size, or the heads of keys and
// values do not divide the heads.
Graph build(const Gpt& model);
Graph build(const Bert& model);
Graph build(const Llama& model);
Graph build(const TransformerXl& model);

// Llama's layers and last norm, over words that are embedded already.
TensorId llama_decoder(ModelBuilder& out, TensorId x, const Llama& model);

}  // namespace espalier
