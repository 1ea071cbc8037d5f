#include "espalier/runtime/executor.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/device_worker.h"
#include "espalier/runtime/thread_team.h"

namespace espalier {

Job make_job(const std::vector<const Program*>& programs, const PlannedJob& planned) {
  const Graph& graph = programs.at(0)->graph();
  const PipelinePlan& plan = planned.plan;
  if (!graph.loss()) throw InputError(graph.name() + ": has no loss, so it cannot be trained");
  require_runnable(planned.staged);
  Job job{{}, plan, planned.staged, planned.schedule, planned.device_names, {}, planned.copies};
  for (const Stage& stage : plan.stages) {
    const auto program = std::find_if(programs.begin(), programs.end(), [&](const Program* each) {
      return each->micro_batch() == stage.micro_batch;
    });
    ESP_CHECK(program != programs.end(), stage.name, stage.micro_batch.count());
    job.programs.push_back(*program);
  }
  job.owners.resize(graph.parameters().size());
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    for (const ParameterId id : StageRunner::parameters_of(graph, plan.stages[s].operators)) {
      job.owners[id.index()] = std::pair(StageId(s), plan.stages[s].replicas[0].devices[0]);
    }
  }
  return job;
}

namespace {

// By rank: where a worker's control messages go.
std::vector<DeviceId> first_devices_of(const Transport& transport, const Schedule& schedule) {
  std::vector<std::optional<DeviceId>> first(transport.ranks());
  for (const DeviceId device : devices_with_work(schedule)) {
    auto& place = first[transport.rank_of(device)];
    if (!place) place = device;
  }
  std::vector<DeviceId> devices;
  for (const auto& device : first) devices.push_back(device.value());
  return devices;
}

void append(StepOutcome& all, StepOutcome&& one) {
  const auto move_to = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move_to(all.losses, one.losses);
  move_to(all.squares, one.squares);
  move_to(all.spans, one.spans);
  move_to(all.memory, one.memory);
  move_to(all.outputs, one.outputs);
  move_to(all.output_sums, one.output_sums);
  all.gradients.merge(one.gradients);
}

}  // namespace

struct Executor::Impl {
  const Job& job;
  Session& session;
  Transport& transport;
  ExecutorOptions options;
  std::vector<std::unique_ptr<DeviceWorker>> workers;  // ascending device
  std::unique_ptr<ThreadTeam> threads;                 // one for each of them

  void on_each_device(const std::function<void(std::size_t, DeviceWorker&)>& work) {
    run_devices(*threads, transport, [&](std::size_t i) { work(i, *workers[i]); });
  }

  // The norm of all workers' gradients.
  double norm_of(const SquaresOfParameters& mine) {
    const std::vector<double> told = by_parameter(session.graph().parameters().size(), mine);
    try {
      return norm_of_all(exchange(transport, first_devices_of(transport, job.schedule), told));
    } catch (const WorkerError& error) {
      throw WorkerError(std::string("it waits for the other workers' gradient norms: ") + error.what());
    }
  }

  std::vector<StepOutcome> step() {
    std::vector<StepOutcome> outcomes(workers.size());
    const std::optional<double> clip_norm = session.optimizer().clip_norm;
    if (!clip_norm || options.purpose == ExecutorOptions::Purpose::kEvaluate) {
      on_each_device([&](std::size_t i, DeviceWorker& worker) {
        worker.begin();
        worker.run(DeviceWorker::Part::kAll);
        outcomes[i] = worker.finish();
      });
      return outcomes;
    }
    std::vector<SquaresOfParameters> squares(workers.size());
    on_each_device([&](std::size_t i, DeviceWorker& worker) {
      worker.begin();
      worker.run(DeviceWorker::Part::kAllButUpdates);
      squares[i] = worker.squares();
    });
    SquaresOfParameters mine;
    for (const SquaresOfParameters& device : squares) mine.insert(mine.end(), device.begin(), device.end());
    const double factor = clip_factor(norm_of(mine), *clip_norm);
    on_each_device([&](std::size_t i, DeviceWorker& worker) {
      worker.scale_gradients(factor);
      worker.run(DeviceWorker::Part::kUpdates);
      outcomes[i] = worker.finish();
      outcomes[i].squares = squares[i];  // of the gradients as they were
    });
    return outcomes;
  }
};

Executor::Executor(const Job& job, Session& session, const DataSource& data, Transport& transport,
                   const ExecutorOptions& options)
    : impl_(new Impl{job, session, transport, options, {}, nullptr}) {
  for (const DeviceId device : local_devices(transport, job.schedule.devices.size())) {
    if (job.schedule.devices[device.index()].empty()) continue;
    impl_->workers.push_back(
        std::make_unique<DeviceWorker>(job, session, data, transport, impl_->options, device));
  }
  impl_->threads = std::make_unique<ThreadTeam>(impl_->workers.size());
}

Executor::~Executor() = default;

StepOutcome Executor::step() {
  std::vector<StepOutcome> outcomes = impl_->step();
  impl_->session.advance();
  StepOutcome all;
  for (StepOutcome& outcome : outcomes) append(all, std::move(outcome));
  return all;
}

std::optional<DeviceId> Executor::owner(ParameterId id) const {
  const auto& owner = impl_->job.owners[id.index()];
  return owner ? std::optional(owner->second) : std::nullopt;
}

const Variable* Executor::held(ParameterId id) const {
  const auto& owner = impl_->job.owners[id.index()];
  if (!owner || impl_->transport.rank_of(owner->second) != impl_->transport.rank()) return nullptr;
  const Holding& holding = impl_->session.holding(owner->first, owner->second, {});
  for (const auto* list : {&holding.parameters, &holding.buffers}) {
    for (const Variable& variable : *list) {
      if (variable.id == id) return &variable;
    }
  }
  throw InternalError("a stage does not hold a parameter that it owns");
}

at::Tensor Executor::owned(ParameterId id) const {
  if (!owner(id)) return impl_->session.initial(id);
  const Variable* const variable = held(id);
  return variable == nullptr ? at::Tensor() : variable->value.detach();
}

}  // namespace espalier
