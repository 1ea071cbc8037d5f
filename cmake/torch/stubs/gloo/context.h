#pragma once

// Stand-in for a Gloo header. libtorch contains Gloo, and torch/csrc/distributed/c10d/ProcessGroupGloo.hpp
// includes five of its headers, but the wheel does not ship them. These stubs declare the few names that
// header mentions. Espalier calls only ProcessGroupGloo's constructor, its Options and createDefaultDevice,
// all compiled inside libtorch. tests/torch_build_test.cc proves it with two processes.

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
