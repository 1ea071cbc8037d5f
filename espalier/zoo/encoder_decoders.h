#pragma once

// Models with an encoder whose result every layer of a decoder reads. Batch: any; no dropout. h = hidden, f =
// feed_forward, V = vocabulary, L = layers of the encoder and of the decoder; S, T = positions of source and
// target; flops are those of matrix work, forward, for one sample.

#include "espalier/graph/graph.h"

namespace espalier {

// T5 (Raffel et al., arXiv 1910.10683): RMS norms, no biases, relu, a table of relative positions for each
// stack that all its layers add to their scores, the output tied to both embeddings. i = heads · head_width.
//
//   parameters = V·h + 2·buckets·heads + L·(12·h·i + 4·h·f + 5h) + 2h
//   flops = L·(8·S·h·i + 4·S²·i + 4·S·h·f) + L·(12·T·h·i + 4·S·h·i + 4·T²·i + 4·S·T·i + 4·T·h·f) + 2·T·h·V
//
// The usual one is T5-small: 60,506,624 parameters (t5-small of the transformers package).
struct T5 {
  std::int64_t layers = 6;
  std::int64_t hidden = 512;
  std::int64_t heads = 8;
  std::int64_t head_width = 64;
  std::int64_t feed_forward = 2048;
  std::int64_t source = 512;  // positions
  std::int64_t target = 512;
  std::int64_t vocabulary = 32'128;
  std::int64_t buckets = 32;  // of relative distances
};

// Whisper (Radford et al., arXiv 2212.04356): two convolutions over 2S frames of a log-mel spectrogram, M
// numbers each, and layers with a norm before each part; keys have no bias; the encoder's positions are
// fixed, the decoder's learned; the output is tied to the embedding.
//
//   parameters = 3·M·h + h + 3h² + h + L·(4h² + 2h·f + 8h + f) + 2h   encoder
//              + V·h + T·h + L·(8h² + 2h·f + 13h + f) + 2h   decoder
//   flops = 12·S·M·h + 6·S·h² + L·(8·S·h² + 4·S²·h + 4·S·h·f)
//         + L·(12·T·h² + 4·S·h² + 4·T²·h + 4·S·T·h + 4·T·h·f) + 2·T·h·V
//
// The usual one is Whisper tiny: 37,184,640 parameters.
struct Whisper {
  std::int64_t layers = 4;
  std::int64_t hidden = 384;
  std::int64_t heads = 6;
  std::int64_t feed_forward = 1536;
  std::int64_t mels = 80;
  std::int64_t source = 1500;  // positions after the convolutions: half of the frames
  std::int64_t target = 448;
  std::int64_t vocabulary = 51'865;
};

// Throw InputError where a size is below 1, or Whisper's heads do not divide the hidden size.
Graph build(const T5& model);
Graph build(const Whisper& model);

}  // namespace espalier
