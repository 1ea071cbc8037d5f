#pragma once

// Whose fault it is when libtorch throws. What PyTorch itself would refuse is wrong input, memory that is not
// there is a ResourceError, and the rest is a mistake of this program. Each message begins with the operator.
// Includes libtorch; runtime/ only.

#include <ATen/record_function.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

namespace espalier {

enum class Blame : std::uint8_t { kInput, kMemory, kProgram };
Blame blame_of(const std::exception& error);

// Throws InputError, ResourceError or InternalError, each beginning with `where`: "operator 'conv' (stem,
// model.py:12)".
[[noreturn]] void throw_blamed(const std::string& where, const std::exception& error);

// Throws a ResourceError if memory is what was missing; else returns.
void throw_if_out_of_memory(const std::string& where, const std::exception& error);

// Knows, while it lives, which autograd node this thread began last: an error in backward does not say. Nodes
// that a device runs in a thread of the engine's own are not seen. One at a time in a thread.
class BackwardWatch {
 public:
  BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;
  ~BackwardWatch();

  // Nodes are numbered in the order in which the forward pass of a thread makes them
  // (at::sequence_number::peek() is the next one's); those that add up a parameter's gradient have the
  // largest number of all. None: no node was run.
  std::optional<std::uint64_t> last_node() const;

 private:
  at::CallbackHandle handle_;
};

}  // namespace espalier
