#include "espalier/runtime/executor.h"

#include <ATen/Parallel.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/device_worker.h"

namespace espalier {

Job make_job(const Program& program, const PlannedJob& planned) {
  const Graph& graph = program.graph();
  const PipelinePlan& plan = planned.plan;
  if (!graph.loss()) throw InputError(graph.name() + ": has no loss, so it cannot be trained");
  for (const Stage& stage : plan.stages) {
    if (stage.micro_batch != program.micro_batch()) {
      throw InputError("stage '" + stage.name + "' has micro-batches of " +
                       std::to_string(stage.micro_batch.count()) + ", others of " +
                       std::to_string(program.micro_batch().count()) +
                       ": the runtime needs equal sizes; plan with one --micro-batch");
    }
    for (const Replica& replica : stage.replicas) {
      if (replica.devices.size() != 1) {
        throw InputError("stage '" + stage.name +
                         "' is split over a tensor-parallel group; the runtime runs a "
                         "stage on one device");
      }
    }
  }
  Job job{program, plan, planned.staged, planned.schedule, planned.device_names, {}};
  job.owners.resize(graph.parameters().size());
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    for (const ParameterId id : StageRunner::parameters_of(graph, plan.stages[s].operators)) {
      job.owners[id.index()] = std::pair(StageId(s), plan.stages[s].replicas[0].devices[0]);
    }
  }
  return job;
}

struct Executor::Impl {
  const Job& job;
  Session& session;
  Transport& transport;
  ExecutorOptions options;
  std::vector<std::unique_ptr<DeviceWorker>> workers;  // ascending device
};

Executor::Executor(const Job& job, Session& session, const DataSource& data, Transport& transport,
                   const ExecutorOptions& options)
    : impl_(new Impl{job, session, transport, options, {}}) {
  for (const DeviceId device : local_devices(transport, job.schedule.devices.size())) {
    if (job.schedule.devices[device.index()].empty()) continue;
    impl_->workers.push_back(
        std::make_unique<DeviceWorker>(job, session, data, transport, impl_->options, device));
  }
}

Executor::~Executor() = default;

namespace {

void append(StepOutcome& all, StepOutcome&& one) {
  const auto move_to = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move_to(all.losses, one.losses);
  move_to(all.spans, one.spans);
  move_to(all.memory, one.memory);
  move_to(all.outputs, one.outputs);
  all.gradients.merge(one.gradients);
  all.gradient_norm_squared += one.gradient_norm_squared;
}

}  // namespace

StepOutcome Executor::step() {
  auto& workers = impl_->workers;
  std::vector<StepOutcome> outcomes(workers.size());
  std::mutex lock;
  std::exception_ptr first_error;
  const auto run = [&](std::size_t i) {
    try {
      outcomes[i] = workers[i]->step();
    } catch (const std::exception& error) {
      {
        const std::lock_guard guard(lock);
        if (!first_error) first_error = std::current_exception();
      }
      impl_->transport.abort(error.what());
    }
  };
  if (workers.size() == 1) {
    run(0);
  } else {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < workers.size(); ++i) threads.emplace_back(run, i);
    for (std::thread& thread : threads) thread.join();
  }
  if (first_error) std::rethrow_exception(first_error);
  impl_->session.advance();
  StepOutcome all;
  for (StepOutcome& outcome : outcomes) append(all, std::move(outcome));
  return all;
}

std::optional<DeviceId> Executor::owner(ParameterId id) const {
  const auto& owner = impl_->job.owners[id.index()];
  return owner ? std::optional(owner->second) : std::nullopt;
}

at::Tensor Executor::owned(ParameterId id) const {
  const auto& owner = impl_->job.owners[id.index()];
  if (!owner) return impl_->session.initial(id);
  if (impl_->transport.rank_of(owner->second) != impl_->transport.rank()) return {};
  const Holding& holding = impl_->session.holding(owner->first, owner->second, {});
  for (const auto* list : {&holding.parameters, &holding.buffers}) {
    for (const Variable& variable : *list) {
      if (variable.id == id) return variable.value.detach();
    }
  }
  throw InternalError("a stage does not hold a parameter that it owns");
}

}  // namespace espalier
