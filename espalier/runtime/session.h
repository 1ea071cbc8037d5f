#pragma once

// What training changes: parameters, buffers, optimizer state, the step and the position in the data, all by
// name. An Executor borrows it for the time of one plan; replacing the executor at a step boundary is resume
// and re-planning. Includes libtorch; runtime/ only.
//
// A (stage, device) that reads a parameter holds its own copy, a Holding. All copies of a parameter are equal
// between steps; the owner is the first device of the lowest stage that reads it, and its copy is the one
// that is saved and reported.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/plan/plan.h"
#include "espalier/runtime/optimizer_step.h"
#include "espalier/runtime/program.h"

namespace espalier {

struct Holding {
  std::vector<Variable> parameters;  // trainable ones, ascending id
  std::vector<Variable> buffers;     // and frozen parameters, ascending id
};

class Session {
 public:
  // `archive`: the .pt2 file's bytes, which must outlive the session.
  Session(const ExportedProgram& exported, std::string_view archive, Optimizer optimizer, std::uint64_t seed,
          at::Device device);

  // Replaces initial values by those of a file that save_tensors wrote. Throws InputError naming the first
  // name that is missing or has another shape or type. Before any holding is made.
  void load(const std::string& path);

  // The copies that a stage's operators read on a device; made from the initial values when first asked for.
  // Thread-safe; the reference stays valid.
  Holding& holding(StageId stage, DeviceId device, const std::vector<ParameterId>& parameters);

  // Shared by all holders; not written by anybody.
  const at::Tensor& constant(TensorId id) const { return constants_[id.index()]; }

  at::Tensor initial(ParameterId id) const;  // a copy of the value that training started from

  const Graph& graph() const { return exported_->imported.graph; }
  const Optimizer& optimizer() const { return optimizer_; }
  std::uint64_t seed() const { return seed_; }
  std::uint64_t step() const { return step_; }  // steps done; also the position in the data
  void advance() { ++step_; }

 private:
  const ExportedProgram* exported_;
  std::string_view archive_;
  Optimizer optimizer_;
  std::uint64_t seed_;
  at::Device device_;
  std::uint64_t step_ = 0;
  std::map<std::string, at::Tensor> loaded_;
  std::vector<at::Tensor> constants_;        // by TensorId
  std::vector<const StoredTensor*> stored_;  // by ParameterId
  std::mutex lock_;                          // of holdings_
  std::map<std::pair<StageId, DeviceId>, Holding> holdings_;
};

}  // namespace espalier
