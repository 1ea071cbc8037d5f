#pragma once

// One step of Adam over memory, once. Plain loops without libtorch, so that the compiler may use what the
// processor has; see update() in session.h for tensors.

#include <cstdint>

namespace espalier {

// The numbers of one step, as torch.optim computes them in double before it rounds them to float.
struct AdamStep {
  float shrink = 1;       // AdamW: 1 - learning rate · weight decay, else 1
  float decay = 0;        // Adam: weight decay, added to the gradient, else 0
  float keep_square = 0;  // beta2
  float new_mean = 0;     // 1 - beta1
  float new_square = 0;   // 1 - beta2
  float correction = 1;   // √(1 - beta2^step)
  float epsilon = 0;
  float minus_step_size = 0;  // -learning rate / (1 - beta1^step)
};

// Parameter, mean and square of `elements` elements, from their gradient. Returns the gradient's sum of
// squares, in double precision and in an order that depends on `elements` alone. O(elements), one pass.
double adam_step(const AdamStep& step, std::int64_t elements, const float* gradient, float* parameter,
                 float* mean, float* square);

// The sum alone, with the same bits.
double sum_of_squares(std::int64_t elements, const float* values);

}  // namespace espalier
