// A plan against one process: the same micro-batches, samples and random streams, so what is computed must be
// the same; only sums over several stages or replicas may add in another order.
//
// What is compared, on rank 0: the loss and every gradient of the first step, buffers after it, parameters
// after the last. If something differs, both sides run the first step once more and record each operator's
// output: forward passes do not depend on the order of sums, so the first operator whose bits differ is where
// the fault shows. If all outputs agree, the fault is in backward, and the operator that reads the parameter
// is named: of several, the last in the graph's order, which backward meets first.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/agreement.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/output_records.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/stage_runner.h"
#include "espalier/runtime/torch_device.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/verify.h"
#include "espalier/runtime/whole_state.h"
#include "espalier/runtime/workers.h"

namespace espalier {
namespace {

using State = std::map<std::string, at::Tensor>;

struct Measured {  // one side, complete on rank 0
  double loss = 0, norm = 0;
  State gradients;    // first step; zeros where none flowed
  State after_first;  // parameters and buffers
  State after_last;
  std::vector<OutputRecord> outputs;
};

bool all_or_nothing_recomputed(const Stage& stage) {
  return stage.recompute.empty() || stage.recompute.size() == stage.operators.size();
}

// No replicas, nothing read in two stages, nothing recomputed in part: then no sum depends on the plan.
bool is_bit_equality_due(const Graph& graph, const PlannedJob& job) {
  std::map<TensorId, std::set<std::size_t>> readers;
  std::map<ParameterId, std::set<std::size_t>> parameter_readers;
  for (std::size_t s = 0; s < job.plan.stages.size(); ++s) {
    const Stage& stage = job.plan.stages[s];
    if (stage.replicas.size() > 1 || !all_or_nothing_recomputed(stage)) return false;
    for (const OperatorId op : stage.operators) {
      for (const TensorId id : graph.op(op).inputs) {
        if (!graph.tensor(id).requires_grad) continue;
        readers[id].insert(s);
        if (graph.tensor(id).parameter) parameter_readers[*graph.tensor(id).parameter].insert(s);
      }
    }
  }
  const auto shared = [](const auto& entry) { return entry.second.size() > 1; };
  return std::none_of(readers.begin(), readers.end(), shared) &&
         std::none_of(parameter_readers.begin(), parameter_readers.end(), shared);
}

// A parameter may end up this part of its way from where the reference ends up.
constexpr double kOfTheWay = 0.02;

class Verifier {
 public:
  Verifier(const PlanFile& file, const std::string& path, const VerifyOptions& options)
      : file_(file),
        path_(path),
        options_(options),
        model_(path),
        planned_(planned_job(file, model_.graph())),
        device_(device_of_worker(options.device, options.world)),
        data_(data_of_run(options.data, model_.exported, planned_.plan.batch, file.seed)) {}

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
    const Measured plan = measure(workers, planned_, hooks, ExecutorOptions::Record::kNothing);
    Measured reference;
    VerifyResult result;
    if (reports) {
      const Busy busy(workers.watchdog.get(), "the reference");
      reference = measure_reference(ExecutorOptions::Record::kNothing);
      compare(plan, reference, result);
    }
    const double differs = reports && !result.equal ? 1 : 0;
    if (exchange(*workers.transport, workers.first_devices, std::span(&differs, 1))[0][0] != 0) {
      const Measured again = measure(workers, planned_, hooks, ExecutorOptions::Record::kOutputs);
      if (reports) {
        const Busy busy(workers.watchdog.get(), "the reference");
        name_first(again, measure_reference(ExecutorOptions::Record::kOutputs), result);
      }
    }
    if (reports) result.verdict = verdict(result);
    return result;
  }

  const Graph& graph() const { return model_.graph(); }

  Measured measure_reference(ExecutorOptions::Record record) {
    const PlannedJob single =
        one_stage_job(graph(), planned_.plan.batch, planned_.plan.stages.at(0).micro_batch);
    Workers alone = join_workers({}, single, {.timeout = options_.timeout});
    return measure(alone, single, nullptr, record);
  }

  Measured measure(Workers& workers, const PlannedJob& planned, StepHooks* hooks,
                   ExecutorOptions::Record record) {
    Trainer trainer(
        model_, planned, *data_, *workers.transport,
        {.device = device_,
         .optimizer = file_.training.optimizer,
         .seed = file_.seed,
         .executor = {
             .threads = options_.threads, .record = record, .keep_gradients = true, .hooks = hooks}});
    Measured side;
    const bool second_look = record != ExecutorOptions::Record::kNothing;
    for (std::uint64_t step = 0; step < (second_look ? 1 : std::max<std::uint64_t>(options_.steps, 1));
         ++step) {
      const TimedStep timed = timed_step(workers, trainer);
      if (step > 0) continue;
      side.loss = timed.report.loss;
      side.norm = timed.report.gradient_norm;
      if (second_look) {
        side.outputs = gather_records(workers, timed.outcome.outputs);
        return side;
      }
      side.gradients = gather_gradients(workers, graph(), trainer.executor(), timed.outcome);
      side.after_first = copy(gather_state(workers, graph(), trainer.executor()));
    }
    side.after_last = copy(gather_state(workers, graph(), trainer.executor()));
    return side;
  }

  static State copy(State state) {
    for (auto& [name, value] : state) {
      if (value.defined()) value = value.clone();
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

  static double norm_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }
  static double norm_of(const State& state) {
    double squares = 0;
    for (const auto& [name, value] : state) {
      if (!value.is_floating_point()) continue;
      const double norm = norm_of(value);
      squares += norm * norm;
    }
    return std::sqrt(squares);
  }
  // ‖a - b‖ / max(‖b‖, 1e-3 · all): without the floor, gradients that are zero in theory differ wildly.
  static double measure_of(const at::Tensor& a, const at::Tensor& b, double all) {
    const double scale = std::max(norm_of(b), 1e-3 * all);
    const double difference = norm_of(a.to(at::kDouble) - b.to(at::kDouble));
    return scale > 0 ? difference / scale : difference;
  }

  // Operators that read a parameter or buffer, ascending.
  std::vector<OperatorId> readers(ParameterId id) const {
    std::set<OperatorId> readers;
    for (std::size_t t = 0; t < graph().tensors().size(); ++t) {
      if (graph().tensors()[t].parameter != id) continue;
      for (const OperatorId op : graph().readers(TensorId(t))) readers.insert(op);
    }
    return {readers.begin(), readers.end()};
  }
  std::string reader_name(ParameterId id) const {
    const auto found = readers(id);
    return found.empty() ? "" : graph().op(found.front()).name;
  }
  // Replica 0's buffers are the saved ones; they see only their own share.
  bool is_in_replicas(ParameterId id) const {
    const std::vector<OperatorId> reading = readers(id);
    return std::any_of(planned_.plan.stages.begin(), planned_.plan.stages.end(), [&](const Stage& stage) {
      return stage.replicas.size() > 1 && std::any_of(reading.begin(), reading.end(), [&](OperatorId op) {
               return std::binary_search(stage.operators.begin(), stage.operators.end(), op);
             });
    });
  }

  void judge(VerifyResult& result, Difference::What what, const std::string& name, const std::string& op,
             bool same_bits, double measure, double limit) const {
    result.bit_equal = result.bit_equal && same_bits;
    if (std::isnan(measure) || measure > result.worst) {
      result.worst = measure;
      result.worst_name = name;
    }
    if (measure <= limit && (same_bits || !result.bit_equality_due)) return;
    result.differences.push_back({what, name, measure, op});
    result.equal = false;
  }

  void compare(const Measured& plan, const Measured& reference, VerifyResult& result) {
    result.equal = result.bit_equal = true;
    result.bit_equality_due = is_bit_equality_due(graph(), planned_);
    result.loss = plan.loss;
    result.reference_loss = reference.loss;
    result.gradient_norm = plan.norm;
    result.reference_gradient_norm = reference.norm;
    judge(result, Difference::What::kLoss, "loss", "", plan.loss == reference.loss,
          std::abs(plan.loss - reference.loss) / std::max(std::abs(reference.loss), 1e-12),
          options_.tolerance);
    judge(result, Difference::What::kGradientNorm, "gradient norm", "", plan.norm == reference.norm,
          std::abs(plan.norm - reference.norm) / std::max(reference.norm, 1e-12), options_.tolerance);
    compare_gradients(plan, reference, result);
    compare_buffers(plan, reference, result);
    compare_parameters(plan, reference, result);
  }

  // As backward meets them: the last reader in the graph's order first.
  void compare_gradients(const Measured& plan, const Measured& reference, VerifyResult& result) {
    std::vector<std::pair<OperatorId, ParameterId>> order;
    for (std::size_t p = 0; p < graph().parameters().size(); ++p) {
      const auto reading = readers(ParameterId(p));
      if (graph().parameters()[p].trainable && !reading.empty())
        order.emplace_back(reading.back(), ParameterId(p));
    }
    std::sort(order.rbegin(), order.rend());
    const double all = norm_of(reference.gradients);
    for (const auto& [op, id] : order) {
      const std::string& name = graph().parameter(id).names[0];
      const at::Tensor& a = plan.gradients.at(name);
      const at::Tensor& b = reference.gradients.at(name);
      ++result.gradients;
      judge(result, Difference::What::kGradient, name, graph().op(op).name, at::equal(a, b),
            measure_of(a, b, all), options_.tolerance);
    }
  }

  void compare_buffers(const Measured& plan, const Measured& reference, VerifyResult& result) {
    for (std::size_t p = 0; p < graph().parameters().size(); ++p) {
      const Parameter& buffer = graph().parameters()[p];
      if (buffer.trainable || !buffer.persistent || is_in_replicas(ParameterId(p))) continue;
      const at::Tensor& a = plan.after_first.at(buffer.names[0]);
      const at::Tensor& b = reference.after_first.at(buffer.names[0]);
      ++result.buffers;
      judge(result, Difference::What::kBuffer, buffer.names[0], reader_name(ParameterId(p)), at::equal(a, b),
            measure_of(a, b, 0), options_.tolerance);
    }
  }

  // Adam divides a gradient by its own size. Where sums add in another order, an element whose gradient is
  // zero in theory (an attention's key bias) therefore moves by the learning rate in a random direction.
  // Without bit-equality such elements are left out, and the others judged by how far the reference moved.
  void compare_parameters(const Measured& plan, const Measured& reference, VerifyResult& result) {
    const Session initial(model_.exported, model_.file.bytes(), file_.training.optimizer, file_.seed,
                          at::kCPU);
    double elements = 0;
    for (const auto& [name, gradient] : reference.gradients)
      elements += static_cast<double>(gradient.numel());
    const double floor = 1e-3 * norm_of(reference.gradients) / std::sqrt(std::max(elements, 1.0));
    const bool noisy = !result.bit_equality_due && file_.training.optimizer.kind != OptimizerKind::kSgd;
    const double all = norm_of(reference.after_last);
    for (std::size_t p = 0; p < graph().parameters().size(); ++p) {
      const Parameter& parameter = graph().parameters()[p];
      const std::string& name = parameter.names[0];
      if (!parameter.trainable || !reference.gradients.contains(name)) continue;
      at::Tensor a = plan.after_last.at(name).cpu();
      const at::Tensor b = reference.after_last.at(name).cpu();
      const bool same_bits = at::equal(a, b);
      double limit = options_.tolerance;
      if (noisy) {
        const at::Tensor settled = reference.gradients.at(name).abs() >= floor;
        if (!settled.any().item<bool>()) continue;
        a = at::where(settled, a, b);
        const double moved = norm_of((b - initial.initial(ParameterId(p))).mul(settled));
        limit = std::max(limit, kOfTheWay * moved / std::max(norm_of(b), 1e-3 * all));
      }
      ++result.parameters;
      judge(result, Difference::What::kParameter, name, reader_name(ParameterId(p)), same_bits,
            measure_of(a, b, all), limit);
    }
  }

  void name_first(const Measured& plan, const Measured& reference, VerifyResult& result) const {
    std::map<std::pair<OperatorId, std::uint32_t>, std::uint64_t> right;
    for (const OutputRecord& record : reference.outputs) right[{record.op, record.micro_batch}] = record.bits;
    std::optional<std::pair<OperatorId, std::uint32_t>> first;
    for (const OutputRecord& record : plan.outputs) {
      const std::pair place{record.op, record.micro_batch};
      if (right.at(place) != record.bits && (!first || place < *first)) first = place;
    }
    const Program program(model_.exported, planned_.plan.stages.at(0).micro_batch, device_);
    if (first) {
      result.first = program.describe(first->first) + ", micro-batch " + std::to_string(first->second) +
                     ": its output differs";
      return;
    }
    for (const Difference& difference : result.differences) {
      const auto op = graph().find_operator(difference.op);
      if (!op) continue;
      const char* what = difference.what == Difference::What::kGradient ? "the gradient of"
                         : difference.what == Difference::What::kBuffer ? "the buffer"
                                                                        : "the parameter";
      result.first = program.describe(*op) + ": " + what + " '" + difference.name + "' differs";
      return;
    }
  }

  std::string verdict(const VerifyResult& result) const {
    const auto count = [](std::uint64_t n, const char* what) {
      return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
    };
    const std::string what = "loss, " + count(result.gradients, "gradient") + ", " +
                             count(result.buffers, "buffer") + " and " +
                             count(result.parameters, "parameter");
    if (result.equal) {
      return what + (result.bit_equal ? " are bit-equal to one process" : " equal one process");
    }
    return std::to_string(result.differences.size()) + " of " + what + " differ from one process; first: " +
           (result.first.empty() ? result.differences.front().name : result.first);
  }

  const PlanFile& file_;
  std::string path_;
  const VerifyOptions& options_;
  LoadedModel model_;
  PlannedJob planned_;
  at::Device device_;
  std::unique_ptr<DataSource> data_;
};

}  // namespace

VerifyResult verify_plan_with(const PlanFile& plan, const std::string& model, const VerifyOptions& options,
                              StepHooks* hooks) {
  keep_freed_memory();
  return Verifier(plan, model, options).run(hooks);
}

VerifyResult verify_plan(const PlanFile& plan, const std::string& model, const VerifyOptions& options) {
  return verify_plan_with(plan, model, options, nullptr);
}

}  // namespace espalier
