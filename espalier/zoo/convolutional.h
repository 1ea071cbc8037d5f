#pragma once

// Models of images made of convolutions. Batch: any, and batch normalization makes its samples depend on each
// other. A convolution with its norm is a k² · inputs · outputs weight and 2 · outputs numbers of the norm;
// running statistics are buffers and no parameters.

#include "espalier/graph/graph.h"

namespace espalier {

// ResNet (He et al., arXiv 1512.03385) as torchvision has it: the stride is in the 3 × 3 convolution. Stages
// of c = 64, 128, 256, 512 channels; blocks of two 3 × 3 convolutions (depth 18, 34), or of 1 × 1, 3 × 3 and
// 1 × 1 to 4c channels (50, 101, 152); a convolution on the shortcut where sizes change.
//
//   parameters = 147·64 + 128   stem
//              + Σ blocks 9·i·c + 9c² + 4c, or i·c + 9c² + 4c² + 12c   from i channels
//              + Σ shortcuts i·o + 2o   + o·classes + classes
//
// At 1000 classes 11,689,512; 21,797,672; 25,557,032; 44,549,160; 60,192,808 by depth.
struct ResNet {
  std::int64_t depth = 50;
  std::int64_t image = 224;  // pixels of a side
  std::int64_t classes = 1000;
};

// Inception-v3 (Szegedy et al., arXiv 1512.00567) as torchvision has it: blocks of three or four branches,
// whose results stand side by side. 27,161,264 parameters with the second classifier halfway, whose loss
// counts 0.4, 23,834,568 without, at 1000 classes.
struct InceptionV3 {
  std::int64_t image = 299;  // pixels of a side, at least 75
  std::int64_t classes = 1000;
  enum class Auxiliary : std::uint8_t { kWithout, kWith } auxiliary = Auxiliary::kWith;
};

// U-Net (Ronneberger et al., arXiv 1505.04597), without norms, each convolution padded, so nothing is
// cropped: two 3 × 3 convolutions and relu at each of `levels` sizes on the way down and up, and at the
// bottom. c = width.
//
//   parameters = Σ l = 0…levels  (9·i·cₗ + 9cₗ² + 2cₗ)   down, cₗ = 2ˡ·c, i = cₗ₋₁ and at the top `channels`
//              + Σ l = 0…levels-1  (4·cₗ₊₁·cₗ + cₗ + 9·2cₗ·cₗ + 9cₗ² + 2cₗ)   up
//              + c·classes + classes
//
// The paper's is 31,030,658 parameters.
struct UNet {
  std::int64_t width = 64;
  std::int64_t levels = 4;
  std::int64_t image = 512;  // pixels of a side, a multiple of 2^levels
  std::int64_t channels = 1;
  std::int64_t classes = 2;
};

// WaveNet (van den Oord et al., arXiv 1609.03499): `stacks` of causal convolutions of two taps, whose
// dilation doubles from layer to layer and begins again with each stack; tanh times sigmoid; each layer sends
// c channels on, added to its input, and s to the sum that is read at the end. c = channels, s = skip, V =
// classes of a sample of sound, n = layers of all stacks. GDP (arXiv 1910.01578) names the usual "2-stack
// 18-layer", and a larger one "4-stack 36-layer"; widths are ours.
//
//   parameters = V·c + n·(4c² + 2c + c·s + s) + (n - 1)·(c² + c) + s² + s + s·V + V
//   flops a sample = 2·length·(n·(4c² + c·s) + (n - 1)·c² + s² + s·V)
struct WaveNet {
  std::int64_t stacks = 2;
  std::int64_t layers = 18;  // of all stacks
  std::int64_t channels = 64;
  std::int64_t skip = 256;
  std::int64_t classes = 256;
  std::int64_t length = 8000;
};

// Throw InputError where a size is below 1, the depth is another, the image is too small or no multiple of
// what it is halved to, or the stacks do not divide the layers.
Graph build(const ResNet& model);
Graph build(const InceptionV3& model);
Graph build(const UNet& model);
Graph build(const WaveNet& model);

}  // namespace espalier
