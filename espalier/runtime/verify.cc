// A plan against one process: the same micro-batches, samples and random streams, so what is computed must be
// the same; only sums over several stages or replicas may add in another order.
//
// What is compared, on rank 0: the loss and every gradient of the first step, buffers after it, parameters
// after the last (comparison.h). Where something differs though no bit-equality is due, control runs tell how
// far a rounding error goes in this model. If something still differs, both sides run the first step once
// more and record each operator's output: forward passes do not depend on the order of sums, so the first
// operator whose bits differ is where the fault shows. If all outputs agree, the fault is in backward, and
// the operator that reads the parameter is named: of several, the last in the graph's order, which backward
// meets first.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/runtime/agreement.h"
#include "espalier/runtime/comparison.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/output_records.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/stage_runner.h"
#include "espalier/runtime/torch_device.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/verify.h"
#include "espalier/runtime/whole_state.h"
#include "espalier/runtime/workers.h"

namespace espalier {
namespace {

// A run in which something differs is compared with one process that starts a rounding error away. What a
// model makes of that error it makes of the order of a sum too.
constexpr std::uint64_t kControlRuns = 2;
constexpr double kOfControl = 4;  // as far as this many times the control runs a plan may be

struct Look {  // how to run one side
  StepHooks* hooks = nullptr;
  bool records_outputs = false;             // one step only
  std::optional<std::uint64_t> nudge = {};  // parameters start moved by one unit in the last place
};

struct Side {  // complete on rank 0
  MeasuredRun run;
  std::vector<OutputRecord> outputs;
};

constexpr const char* kComparedWith = "one process of this program with the same micro-batches";

class Verifier {
 public:
  Verifier(const PlanFile& file, const std::string& path, const VerifyOptions& options)
      : file_(file),
        path_(path),
        options_(options),
        model_(path, file.training.frozen),
        planned_(planned_job(file, model_.graph())),
        micro_batch_(planned_.plan.stages[loss_stage(model_.graph(), planned_.plan).index()].micro_batch),
        device_(device_of_worker(options.device, options.world)),
        data_(
            data_of_run(options.data, model_.exported, planned_.plan.batch, from_the_beginning(file.seed))) {
    model_.program_with_values(nullptr);
    require_comparable();
  }

  VerifyResult run(StepHooks* hooks) {
    Workers workers = join_workers(options_.world, planned_,
                                   {.timeout = options_.timeout,
                                    .facts = verify_facts(file_, path_, options_),
                                    .on_stuck = options_.on_stuck});
    VerifyResult result;
    guarded(workers, [&] { result = run(workers, hooks); });
    return result;
  }

 private:
  VerifyResult run(Workers& workers, StepHooks* hooks) {
    const bool reports = workers.transport->rank() == 0;
    const Side plan = measure(workers, planned_, {.hooks = hooks});
    VerifyResult result;
    if (reports) {
      const Busy busy(workers.watchdog.get(), "the reference");
      result = compare(plan.run, measure_reference({}).run);
    }
    const double differs = reports && !result.equal ? 1 : 0;
    if (exchange(*workers.transport, workers.first_devices, std::span(&differs, 1))[0][0] != 0) {
      const Side again = measure(workers, planned_, {.hooks = hooks, .records_outputs = true});
      if (reports) {
        const Busy busy(workers.watchdog.get(), "the reference");
        result.first = name_first(again, measure_reference({.records_outputs = true}), result);
      }
    }
    if (reports) result.verdict = verdict(result);
    return result;
  }

  const Graph& graph() const { return model_.graph(); }

  Side measure_reference(const Look& look) {
    const PlannedJob single = one_stage_job(graph(), planned_.plan.batch, micro_batch_);
    Workers alone = join_workers({}, single, {.timeout = options_.timeout});
    return measure(alone, single, look);
  }

  Side measure(Workers& workers, const PlannedJob& planned, const Look& look) {
    const auto record =
        look.records_outputs ? ExecutorOptions::Record::kOutputs : ExecutorOptions::Record::kNothing;
    Trainer trainer(
        model_, planned, *data_, *workers.transport,
        {.device = device_,
         .optimizer = with_schedule_end(file_.training.optimizer, options_.steps),
         .seed = file_.seed,
         .executor = {
             .threads = options_.threads, .record = record, .keep_gradients = true, .hooks = look.hooks}});
    if (look.nudge) nudge(trainer.executor(), *look.nudge);
    Side side;
    const std::uint64_t steps = look.records_outputs ? 1 : std::max<std::uint64_t>(options_.steps, 1);
    for (std::uint64_t step = 0; step < steps; ++step) {
      const TimedStep timed = timed_step(workers, trainer);
      if (step > 0) continue;
      side.run.loss = timed.report.loss;
      side.run.norm = timed.report.gradient_norm;
      if (look.records_outputs) {
        side.outputs = gather_records(workers, timed.outcome.outputs);
        return side;
      }
      side.run.gradients = gather_gradients(workers, graph(), trainer.executor(), timed.outcome);
      side.run.after_first = copy(gather_state(workers, graph(), trainer.executor()));
    }
    side.run.after_last = copy(gather_state(workers, graph(), trainer.executor()));
    return side;
  }

  void nudge(const Executor& executor, std::uint64_t seed) const {
    for (std::size_t p = 0; p < graph().parameters().size(); ++p) {
      if (!graph().parameters()[p].trainable || !executor.owner(ParameterId(p))) continue;
      move_by_last_place(executor.owned(ParameterId(p)), stream_key(seed, {p}));
    }
  }

  static TensorsByName copy(TensorsByName state) {
    for (auto& [name, value] : state) {
      if (value.defined()) value = value.cpu().clone();
    }
    return state;
  }

  static std::vector<OutputRecord> gather_records(Workers& workers, const std::vector<OutputRecord>& mine) {
    const std::vector<std::string> texts = gather(workers, print_records(mine));
    std::vector<OutputRecord> all;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      const auto records = parse_records(texts[rank], workers.all[rank].worker);
      all.insert(all.end(), records.begin(), records.end());
    }
    return all;
  }

  VerifyResult compare(const MeasuredRun& plan, const MeasuredRun& reference) {
    VerifyResult result;
    result.compared_with = kComparedWith;
    result.tolerance = options_.tolerance.value_or(default_tolerance(graph()));
    result.bit_equality_due = is_bit_equality_due(graph(), planned_);
    result.loss = plan.loss;
    result.reference_loss = reference.loss;
    result.gradient_norm = plan.norm;
    result.reference_gradient_norm = reference.norm;
    const TensorsByName initial = initial_parameters();
    const ComparedModel compared{graph(), planned_,         file_.training.optimizer,
                                 initial, result.tolerance, options_.steps};
    const std::vector<Distance> found = distances(compared, plan, reference);
    judge(found, result);
    if (result.equal || result.bit_equality_due) return result;
    std::vector<Distance> control = distances(compared, reference, reference);  // all zero
    for (std::uint64_t i = 0; i < kControlRuns; ++i) {
      const Side disturbed = measure_reference({.nudge = stream_key(file_.seed, {i})});
      const std::vector<Distance> strayed = distances(compared, disturbed.run, reference);
      ESP_CHECK(strayed.size() == control.size());
      for (std::size_t k = 0; k < control.size(); ++k) {
        if (!(strayed[k].measure <= control[k].measure)) control[k].measure = strayed[k].measure;
      }
    }
    judge_by_control(found, control, result);
    return result;
  }

  TensorsByName initial_parameters() const {
    const Session session(model_.exported, model_.file.bytes(), file_.training.optimizer, file_.seed,
                          at::kCPU);
    TensorsByName initial;
    for (std::size_t p = 0; p < graph().parameters().size(); ++p) {
      const Parameter& parameter = graph().parameters()[p];
      if (parameter.trainable) initial[parameter.names[0]] = session.initial(ParameterId(p));
    }
    return initial;
  }

  static void judge(const std::vector<Distance>& found, VerifyResult& result) {
    result.bit_equal = true;
    for (const Distance& distance : found) {
      result.bit_equal = result.bit_equal && distance.same_bits;
      result.gradients += distance.what == Difference::What::kGradient ? 1 : 0;
      result.buffers += distance.what == Difference::What::kBuffer ? 1 : 0;
      result.parameters += distance.what == Difference::What::kParameter ? 1 : 0;
      if (std::isnan(distance.measure) || distance.measure > result.worst) {
        result.worst = distance.measure;
        result.worst_name = distance.name;
      }
      if (distance.measure <= distance.limit && (distance.same_bits || !result.bit_equality_due)) continue;
      result.differences.push_back({distance.what, distance.name, distance.measure, distance.op});
    }
    result.equal = result.differences.empty();
  }

  // The differences that the control runs explain are none.
  static void judge_by_control(const std::vector<Distance>& found, const std::vector<Distance>& control,
                               VerifyResult& result) {
    VerifyResult::Control worst;
    double worst_ratio = -1;
    result.differences.clear();
    for (std::size_t k = 0; k < found.size(); ++k) {
      const Distance& distance = found[k];
      if (distance.measure <= distance.limit) continue;
      const double allowed = kOfControl * control[k].measure;
      if (!(distance.measure <= allowed)) {
        result.differences.push_back({distance.what, distance.name, distance.measure, distance.op});
      }
      const double ratio = distance.measure / std::max(control[k].measure, 1e-300);
      if (ratio > worst_ratio || std::isnan(ratio)) {
        worst_ratio = ratio;
        worst = {distance.name, distance.measure, control[k].measure};
      }
    }
    result.control = worst;
    result.equal = result.differences.empty();
  }

  std::string name_first(const Side& plan, const Side& reference, const VerifyResult& result) const {
    std::map<std::pair<OperatorId, std::uint32_t>, std::uint64_t> right;
    for (const OutputRecord& record : reference.outputs) right[{record.op, record.micro_batch}] = record.bits;
    std::optional<std::pair<OperatorId, std::uint32_t>> first;
    for (const OutputRecord& record : plan.outputs) {
      if (!is_compared(record.op)) continue;
      const std::pair place{record.op, record.micro_batch};
      if (right.at(place) != record.bits && (!first || place < *first)) first = place;
    }
    const Program program(model_.exported, micro_batch_, device_);
    if (first) {
      return program.describe(first->first) + ", micro-batch " + std::to_string(first->second) +
             ": its output differs";
    }
    for (const Difference& difference : result.differences) {
      const auto op = graph().find_operator(difference.op);
      if (!op) continue;
      const char* what = difference.what == Difference::What::kGradient ? "the gradient of"
                         : difference.what == Difference::What::kBuffer ? "the buffer"
                                                                        : "the parameter";
      return program.describe(*op) + ": " + what + " '" + difference.name + "' differs";
    }
    return "";
  }

  // Its outputs are those of micro-batches that the reference has, and are computed: not memory as it was
  // found (empty, empty_like, new_empty, …), into which the next operator writes.
  bool is_compared(OperatorId op) const {
    const std::string& target = graph().op(op).target;
    if (target.starts_with("aten.empty") || target.starts_with("aten.new_empty")) return false;
    return std::any_of(planned_.plan.stages.begin(), planned_.plan.stages.end(), [&](const Stage& stage) {
      return stage.micro_batch == micro_batch_ &&
             std::binary_search(stage.operators.begin(), stage.operators.end(), op);
    });
  }

  // An operator draws its random numbers for a micro-batch.
  void require_comparable() const {
    for (const Stage& stage : planned_.plan.stages) {
      if (stage.micro_batch == micro_batch_) continue;
      for (const OperatorId op : stage.operators) {
        if (!graph().op(op).random) continue;
        throw InputError("stage '" + stage.name + "' draws random numbers (operator '" + graph().op(op).name +
                         "') for micro-batches of " + std::to_string(stage.micro_batch.count()) +
                         ", one process for those of the loss, " + std::to_string(micro_batch_.count()) +
                         ": there is nothing to compare");
      }
    }
  }

  std::string verdict(const VerifyResult& result) const {
    const auto count = [](std::uint64_t n, const char* what) {
      return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
    };
    const std::string what = "loss, " + count(result.gradients, "gradient") + ", " +
                             count(result.buffers, "buffer") + " and " +
                             count(result.parameters, "parameter");
    if (result.bit_equal) return what + " are bit-equal to " + kComparedWith;
    std::string control;
    if (result.control) {
      std::ostringstream text;
      text.precision(2);
      text << "'" << result.control->name << "' differs by " << result.control->plan << ", and by "
           << result.control->control << " where parameters start one unit in the last place off";
      control = text.str();
    }
    if (result.equal && result.control) {
      return what + " are as equal to " + kComparedWith + " as rounding in this model allows: " + control;
    }
    if (result.equal) return what + " equal those of " + kComparedWith;
    return std::to_string(result.differences.size()) + " of " + what + " differ from " + kComparedWith +
           "; first: " + (result.first.empty() ? result.differences.front().name : result.first) +
           (control.empty() ? "" : "; " + control);
  }

  const PlanFile& file_;
  std::string path_;
  const VerifyOptions& options_;
  LoadedModel model_;
  PlannedJob planned_;
  BatchSize micro_batch_;  // of the loss, and of the reference
  at::Device device_;
  std::unique_ptr<DataSource> data_;
};

}  // namespace

VerifyResult verify_plan_with(const PlanFile& plan, const std::string& model, const VerifyOptions& options,
                              StepHooks* hooks) {
  return Verifier(plan, model, options).run(hooks);
}

VerifyResult verify_plan(const PlanFile& plan, const std::string& model, const VerifyOptions& options) {
  return verify_plan_with(plan, model, options, nullptr);
}

}  // namespace espalier
