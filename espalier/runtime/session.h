#pragma once

// What training changes: parameters, buffers, optimizer state, the step and the position in the data, all by
// name. An Executor borrows it for the time of one plan; replacing the executor at a step boundary is resume
// and re-planning. Includes libtorch; runtime/ only.
//
// A (stage, device) that reads a parameter holds its own copy, a Holding. All copies of a parameter are equal
// between steps (buffers that replicas write are not: each sees its own samples); the owner is the first
// device of the lowest stage that reads it, and its copy is the one that is saved and reported. The fragments
// of a placement share one copy on each device: it is the lowest one's, and the others read it and add to its
// gradient.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/plan/staged_model.h"
#include "espalier/runtime/optimizer_step.h"
#include "espalier/runtime/program.h"
#include "espalier/runtime/state_source.h"

namespace espalier {

struct Holding {
  std::vector<Variable> parameters;  // trainable ones, ascending id
  std::vector<Variable> buffers;     // and frozen parameters, ascending id
  // What it reads of a lower fragment of its device, which updates it: the same memory, without the
  // optimizer's state.
  std::vector<Variable> shared = {};
};

class Session {
 public:
  // `archive`: the .pt2 file's bytes, which must outlive the session.
  Session(const ExportedProgram& exported, std::string_view archive, Optimizer optimizer, std::uint64_t seed,
          at::Device device);

  // Where values and optimizer state come from instead of the archive, after `steps_done` steps. Before any
  // holding is made.
  void start_from(std::shared_ptr<const StateSource> source, std::uint64_t steps_done);

  // Between two executors: holdings are given up, and the next ones start with what they held. A parameter
  // that this session does not hold can then only come from a checkpoint.
  void give_up_holdings();

  // The copies that a stage's operators read on a device; made when first asked for: from another holding,
  // what was held under an earlier plan, or the initial values. With one copy on each device, the stages of a
  // device are first asked for in ascending order.
  // Thread-safe; the reference stays valid.
  Holding& holding(StageId stage, DeviceId device, const std::vector<ParameterId>& parameters,
                   StateCopies copies = StateCopies::kOfEachStage);

  // Shared by all holders; not written by anybody.
  const at::Tensor& constant(TensorId id) const { return constants_[id.index()]; }

  // A copy of the value that this session started with, laid out as the archive says.
  at::Tensor initial(ParameterId id) const;

  const Graph& graph() const { return exported_->imported.graph; }
  const Optimizer& optimizer() const { return optimizer_; }
  // With the learning rate of the step that is next.
  Optimizer optimizer_of_step() const;
  std::uint64_t seed() const { return seed_; }
  std::uint64_t step() const { return step_; }  // steps done; also the position in the data
  void advance() { ++step_; }
  void set_step(std::uint64_t step) { step_ = step; }

  // While it lives, somebody may run forward passes for another purpose; then step and buffers are put back.
  class Undisturbed {
   public:
    explicit Undisturbed(Session& session);
    Undisturbed(const Undisturbed&) = delete;
    Undisturbed& operator=(const Undisturbed&) = delete;
    ~Undisturbed();

   private:
    Session& session_;
    std::uint64_t step_;
    std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // that operators write, and their values
  };

 private:
  at::Tensor laid_out(ParameterId id, const at::Tensor& value) const;
  const Variable* find_held(ParameterId id) const;
  const Variable* find_held_below(StageId stage, DeviceId device, ParameterId id) const;
  Variable make_variable(ParameterId id);

  const ExportedProgram* exported_;
  std::string_view archive_;
  Optimizer optimizer_;
  std::uint64_t seed_;
  at::Device device_;
  std::uint64_t step_ = 0;
  std::uint64_t first_step_ = 0;               // when initial values hold
  std::shared_ptr<const StateSource> source_;  // null: the archive alone
  std::vector<at::Tensor> constants_;          // by TensorId
  std::vector<const StoredTensor*> stored_;    // by ParameterId
  std::mutex lock_;                            // of holdings_
  std::map<std::pair<StageId, DeviceId>, Holding> holdings_;
  std::map<ParameterId, Variable> given_up_;  // by earlier executors
};

}  // namespace espalier
