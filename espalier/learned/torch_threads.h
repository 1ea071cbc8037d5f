#pragma once

// Tensors of some hundred nodes are small: threads of libtorch that wait for each other there take longer
// than they help, above all where others keep the processors busy.
//
// Includes libtorch; learned/ only.

#include <ATen/Parallel.h>

#include <cstddef>

namespace espalier::placement {

// While it lives, this thread computes alone with fewer nodes than kManyNodes; else nothing changes.
class FewTorchThreads {
 public:
  static constexpr std::size_t kManyNodes = 2'000;

  explicit FewTorchThreads(std::size_t nodes) : before_(at::get_num_threads()) {
    if (nodes < kManyNodes) at::set_num_threads(1);
  }
  FewTorchThreads(const FewTorchThreads&) = delete;
  FewTorchThreads& operator=(const FewTorchThreads&) = delete;
  ~FewTorchThreads() { at::set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace espalier::placement
