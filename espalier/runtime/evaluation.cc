#include "espalier/runtime/evaluation.h"

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/frontend/evaluation.h"
#include "espalier/runtime/executor.h"

namespace espalier {

PlannedJob evaluation_job(const PlannedJob& planned, BatchSize micro_batch, std::uint32_t micro_batches) {
  PlannedJob job = planned;
  job.plan.batch = micro_batches * micro_batch;
  job.staged.ties.clear();
  for (Crossing& crossing : job.staged.crossings) {
    crossing.returns = crossing.saved_by_producer = false;
    for (Crossing::Reader& reader : crossing.readers) reader.saved = false, reader.gradient = Bytes();
  }
  std::vector<std::vector<Action>> lists(planned.schedule.devices.size());
  for (std::size_t s = 0; s < job.plan.stages.size(); ++s) {
    Stage& stage = job.plan.stages[s];
    StagedStage& staged = job.staged.stages[s];
    stage.micro_batch = micro_batch;
    stage.recompute.clear();
    stage.in_flight = staged.in_flight = staged.micro_batches = micro_batches;
    staged.memory = {};
    staged.reduced = Bytes();
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      std::vector<std::uint32_t> share;
      for (std::size_t j = r; j < micro_batches; j += stage.replicas.size())
        share.push_back(static_cast<std::uint32_t>(j));
      stage.replicas[r].micro_batches = staged.replicas[r].micro_batches = std::move(share);
    }
  }
  // In one order everywhere, so nobody waits in a circle: micro-batches, then stages.
  for (std::uint32_t j = 0; j < micro_batches; ++j) {
    for (std::size_t s = 0; s < job.staged.stages.size(); ++s) {
      const std::vector<StagedReplica>& replicas = job.staged.stages[s].replicas;
      const StagedReplica& replica = replicas[j % replicas.size()];
      lists[replica.devices.at(0).index()].push_back({ActionKind::kForward, StageId(s), j});
    }
  }
  job.schedule = with_channels(job.staged, std::move(lists));
  return job;
}

EvaluationSizes evaluation_sizes(std::int64_t samples, BatchSize batch, BatchSize micro_batch,
                                 const BatchRange& allowed) {
  const std::int64_t m = micro_batch.count();
  EvaluationSizes sizes{.batches = samples / batch.count(),
                        .micro_batches = samples % batch.count() / m,
                        .rest = samples % m,
                        .left_out = 0};
  if (sizes.rest == 0 || (sizes.rest >= allowed.min.count() && !allowed.fixed())) return sizes;
  const std::int64_t joined = m + sizes.rest;
  if (sizes.micro_batches > 0 && joined <= allowed.max.count()) {
    --sizes.micro_batches;
    sizes.rest = joined;
  } else {
    sizes.left_out = std::exchange(sizes.rest, 0);
  }
  return sizes;
}

struct ModelEvaluation::Passes {
  Passes(const ExportedProgram& exported, const PlannedJob& plan, std::shared_ptr<const SampleFile> file,
         std::int64_t first_sample, std::int64_t step_count, BatchSize micro_batch,
         std::uint32_t micro_batches, Session& session, Transport& transport, at::Device device,
         std::uint32_t threads)
      : planned(evaluation_job(plan, micro_batch, micro_batches)),
        program(exported, micro_batch, device),
        job(make_job({&program}, planned)),
        data(in_order(std::move(file), first_sample, planned.plan.batch)),
        steps(static_cast<std::uint64_t>(step_count)),
        executor(job, session, *data, transport,
                 {.threads = threads, .purpose = ExecutorOptions::Purpose::kEvaluate}) {}

  PlannedJob planned;
  Program program;
  Job job;
  std::unique_ptr<DataSource> data;
  std::uint64_t steps;
  Executor executor;
};

ModelEvaluation::ModelEvaluation(const LoadedModel& model, const PlannedJob& planned, const std::string& data,
                                 Workers& workers, Session& session, at::Device device, std::uint32_t threads)
    : workers_(workers), session_(session), program_(evaluation_program(model.exported)) {
  const auto file = std::make_shared<const SampleFile>(data, model.exported);
  const BatchSize batch = planned.plan.batch, micro_batch = planned.plan.stages.at(0).micro_batch;
  samples_ = file->samples();
  sizes_ = evaluation_sizes(samples_, batch, micro_batch, model.graph().batch());
  if (sizes_.left_out == samples_) {
    throw InputError(data + ": has " + std::to_string(samples_) +
                     " samples, fewer than the model was exported for: there is nothing to evaluate");
  }
  std::int64_t first = 0;
  const auto add = [&](std::int64_t steps, BatchSize size, std::uint32_t micro_batches) {
    if (steps == 0) return;
    passes_.push_back(std::make_unique<Passes>(program_, planned, file, first, steps, size, micro_batches,
                                               session, *workers.transport, device, threads));
    first += steps * size.count() * micro_batches;
  };
  add(sizes_.batches, micro_batch, planned.plan.micro_batches(StageId(0)));
  add(sizes_.micro_batches, micro_batch, 1);
  add(sizes_.rest > 0 ? 1 : 0, BatchSize(std::max<std::int64_t>(sizes_.rest, 1)), 1);
}

ModelEvaluation::~ModelEvaluation() = default;

namespace {

// Sums over everything that was passed through, of one output.
struct Sum {
  double total = 0, count = 0;
};

// As the export calls it, else as the program does.
std::string output_name(const ExportedProgram& program, TensorId id) {
  for (const UserOutput& output : program.outputs) {
    if (output.tensor == id) return output.name;
  }
  return program.imported.graph.tensor(id).name;
}

}  // namespace

EvaluationReport ModelEvaluation::run() {
  const Graph& graph = session_.graph();
  const auto start = Clock::now();
  const Session::Undisturbed undisturbed(session_);
  // The first is the loss; by number of the graph's outputs. Each is made by one worker.
  std::vector<Sum> mine(graph.outputs().size());
  for (const auto& passes : passes_) {
    session_.set_step(0);
    const auto size = static_cast<double>(passes->program.micro_batch().count());
    for (std::uint64_t step = 0; step < passes->steps; ++step) {
      for (const OutputSum& sum : passes->executor.step().output_sums) {
        // A scalar stands for all samples of its micro-batch.
        const double weight = sum.is_scalar ? size : 1;
        mine[sum.output].total += sum.total * weight;
        mine[sum.output].count += sum.elements * weight;
      }
    }
  }
  std::vector<double> told;
  for (const Sum& sum : mine) told.insert(told.end(), {sum.total, sum.count});
  const auto all = wait_for_all(workers_, "the end of the evaluation", told);
  EvaluationReport report;
  report.samples = BatchSize(samples_ - sizes_.left_out);
  report.left_out = static_cast<std::uint64_t>(sizes_.left_out);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    Sum sum;
    for (const auto& worker : all) sum.total += worker[2 * i], sum.count += worker[2 * i + 1];
    const TensorId id = graph.outputs()[i];
    if (sum.count == 0) continue;
    if (id == graph.loss()) {
      report.loss = sum.total / sum.count;
    } else {
      report.outputs.emplace_back(output_name(program_, id), sum.total / sum.count);
    }
  }
  report.time = Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  return report;
}

}  // namespace espalier
