#include "espalier/runtime/comparison.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/stage_runner.h"

namespace espalier {
namespace {

// A parameter may end up this part of its way from where the reference ends up.
constexpr double kOfTheWay = 0.02;
constexpr double kOfTheShortWay = 0.5;  // the most, in types with fewer digits than f32

// The distance between 1 and the next number.
double unit_of(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kC128:
      return std::ldexp(1, -52);
    case DType::kF16:
    case DType::kC32:
      return std::ldexp(1, -10);
    case DType::kBF16:
      return std::ldexp(1, -7);
    default:
      return std::ldexp(1, -23);
  }
}

// Real numbers in double precision; a complex one is two.
at::Tensor in_double(const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return real.to(at::kDouble);
}

bool is_measured(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

double norm_of(const at::Tensor& in_double) {
  return in_double.norm().item<double>();
}

double norm_of(const TensorsByName& tensors) {
  double squares = 0;
  for (const auto& [name, value] : tensors) {
    if (is_measured(value)) squares += std::pow(norm_of(in_double(value)), 2);
  }
  return std::sqrt(squares);
}

// ‖a - b‖ / max(‖b‖, 1e-3 · all): without the floor, gradients that are zero in theory differ wildly.
double measure_of(const at::Tensor& a, const at::Tensor& b, double all) {
  const double scale = std::max(norm_of(b), 1e-3 * all);
  const double difference = norm_of(a - b);
  return scale > 0 ? difference / scale : difference;
}

double relative(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(b), 1e-12);
}

// Operators that read a parameter or buffer, ascending.
std::vector<OperatorId> readers(const Graph& graph, ParameterId id) {
  std::set<OperatorId> readers;
  for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
    if (graph.tensors()[t].parameter != id) continue;
    for (const OperatorId op : graph.readers(TensorId(t))) readers.insert(op);
  }
  return {readers.begin(), readers.end()};
}

std::string reader_name(const Graph& graph, ParameterId id) {
  const auto found = readers(graph, id);
  return found.empty() ? "" : graph.op(found.front()).name;
}

// Replica 0's buffers are the saved ones; they see only their own share.
bool is_in_replicas(const ComparedModel& model, ParameterId id) {
  const std::vector<OperatorId> reading = readers(model.graph, id);
  return std::any_of(
      model.planned.plan.stages.begin(), model.planned.plan.stages.end(), [&](const Stage& stage) {
        return stage.replicas.size() > 1 && std::any_of(reading.begin(), reading.end(), [&](OperatorId op) {
                 return std::binary_search(stage.operators.begin(), stage.operators.end(), op);
               });
      });
}

// As backward meets them: the last reader in the graph's order first.
void add_gradients(const ComparedModel& model, const MeasuredRun& run, const MeasuredRun& reference,
                   std::vector<Distance>& distances) {
  const Graph& graph = model.graph;
  std::vector<std::pair<OperatorId, ParameterId>> order;
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    const auto reading = readers(graph, ParameterId(p));
    if (graph.parameters()[p].trainable && !reading.empty())
      order.emplace_back(reading.back(), ParameterId(p));
  }
  std::sort(order.rbegin(), order.rend());
  const double all = norm_of(reference.gradients);
  for (const auto& [op, id] : order) {
    const std::string& name = graph.parameter(id).names[0];
    const at::Tensor& a = run.gradients.at(name);
    const at::Tensor& b = reference.gradients.at(name);
    distances.push_back({Difference::What::kGradient, name, graph.op(op).name, at::equal(a, b),
                         measure_of(in_double(a), in_double(b), all), model.tolerance});
  }
}

void add_buffers(const ComparedModel& model, const MeasuredRun& run, const MeasuredRun& reference,
                 std::vector<Distance>& distances) {
  for (std::size_t p = 0; p < model.graph.parameters().size(); ++p) {
    const Parameter& buffer = model.graph.parameters()[p];
    if (buffer.trainable || !buffer.persistent || is_in_replicas(model, ParameterId(p))) continue;
    const at::Tensor& a = run.after_first.at(buffer.names[0]);
    const at::Tensor& b = reference.after_first.at(buffer.names[0]);
    distances.push_back({Difference::What::kBuffer, buffer.names[0], reader_name(model.graph, ParameterId(p)),
                         at::equal(a, b), measure_of(in_double(a), in_double(b), 0), model.tolerance});
  }
}

// Do parameter gradients of each stage come in the order of its micro-batches?
bool adds_up_in_order(const Schedule& schedule) {
  for (const std::vector<Action>& list : schedule.devices) {
    std::map<StageId, std::uint32_t> next;
    for (const Action& action : list) {
      if (action.kind != ActionKind::kBackward && action.kind != ActionKind::kWeightGradient) continue;
      std::uint32_t& least = next[action.stage()];
      if (action.micro_batch < least) return false;
      least = action.micro_batch + 1;
    }
  }
  return true;
}

// Adam divides a gradient by its own size. Where sums add in another order, an element whose gradient is
// zero in theory (an attention's key bias) therefore moves by the learning rate in a random direction.
// Without bit-equality such elements are left out, and the others judged by how far the reference moved.
void add_parameters(const ComparedModel& model, Difference::What when, const MeasuredRun& run,
                    const MeasuredRun& reference, std::vector<Distance>& distances) {
  const auto after = [&](const MeasuredRun& side) -> const TensorsByName& {
    return when == Difference::What::kParameterAfterFirst ? side.after_first : side.after_last;
  };
  double elements = 0;
  for (const auto& [name, gradient] : reference.gradients) elements += static_cast<double>(gradient.numel());
  const double floor = 1e-3 * norm_of(reference.gradients) / std::sqrt(std::max(elements, 1.0));
  const bool noisy =
      model.optimizer.kind != OptimizerKind::kSgd && !is_bit_equality_due(model.graph, model.planned);
  const double all = norm_of(after(reference));
  for (std::size_t p = 0; p < model.graph.parameters().size(); ++p) {
    const Parameter& parameter = model.graph.parameters()[p];
    const std::string& name = parameter.names[0];
    if (!parameter.trainable || !reference.gradients.contains(name)) continue;
    const bool same_bits = at::equal(after(run).at(name), after(reference).at(name));
    at::Tensor a = in_double(after(run).at(name));
    const at::Tensor b = in_double(after(reference).at(name));
    at::Tensor way = b - in_double(model.initial.at(name));
    const double scale = std::max(norm_of(b), 1e-3 * all);
    double limit = model.tolerance;
    if (noisy) {
      const at::Tensor settled = in_double(reference.gradients.at(name)).abs() >= floor;
      if (!settled.any().item<bool>()) continue;
      a = at::where(settled, a, b);
      way = way.mul(settled);
      limit = std::max(limit, kOfTheWay * norm_of(way) / scale);
    }
    // Where numbers have three digits, a step may be smaller than the tolerance.
    if (unit_of(parameter.dtype) > unit_of(DType::kF32)) {
      limit = std::min(limit, kOfTheShortWay * norm_of(way) / scale);
    }
    distances.push_back(
        {when, name, reader_name(model.graph, ParameterId(p)), same_bits, measure_of(a, b, all), limit});
  }
}

}  // namespace

bool is_bit_equality_due(const Graph& graph, const PlannedJob& planned) {
  const PipelinePlan& plan = planned.plan;
  if (!adds_up_in_order(planned.schedule)) return false;
  const auto has_another_size = [&](const Stage& stage) {
    return stage.micro_batch != plan.stages[0].micro_batch;
  };
  if (std::any_of(plan.stages.begin(), plan.stages.end(), has_another_size)) return false;
  // Sums of two terms have no order; backward adds a parameter's up over micro-batches too.
  struct Reads {
    std::set<std::pair<std::size_t, std::size_t>> segments;  // stage, segment
    std::set<DeviceId> devices;
    std::size_t count = 0;
    bool in_two_stages = false;
  };
  std::map<TensorId, Reads> tensors;
  std::map<ParameterId, Reads> parameters;
  const auto read = [&](Reads& reads, std::size_t stage, std::size_t segment) {
    reads.in_two_stages =
        reads.in_two_stages || (!reads.segments.empty() && reads.segments.begin()->first != stage);
    reads.segments.emplace(stage, segment);
    reads.devices.insert(plan.stages[stage].replicas[0].devices[0]);
    ++reads.count;
  };
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.replicas.size() > 1) return false;
    const auto segment_of = StageRunner::segments_of(graph, stage.operators, stage.recompute);
    for (std::size_t i = 0; i < stage.operators.size(); ++i) {
      for (const TensorId id : graph.op(stage.operators[i]).inputs) {
        const Tensor& tensor = graph.tensor(id);
        if (!tensor.requires_grad) continue;
        read(tensor.parameter ? parameters[*tensor.parameter] : tensors[id], s, segment_of[i]);
      }
    }
  }
  const auto order_matters = [](const auto& entry) {
    const Reads& reads = entry.second;
    return reads.in_two_stages || (reads.segments.size() > 1 && reads.count > 2);
  };
  const bool meet_in_one_copy =
      planned.copies == StateCopies::kOfEachDevice && plan.micro_batches(StageId(0)) == 1;
  const auto order_of_copies_matters = [&](const auto& entry) {
    const Reads& reads = entry.second;
    const bool meet = meet_in_one_copy && reads.devices.size() == 1 && reads.count <= 2;
    return reads.segments.size() > 1 && !meet;
  };
  return std::none_of(tensors.begin(), tensors.end(), order_matters) &&
         std::none_of(parameters.begin(), parameters.end(), order_of_copies_matters);
}

double default_tolerance(const Graph& graph) {
  double unit = 0;
  for (const Tensor& tensor : graph.tensors()) {
    if (tensor.requires_grad) unit = std::max(unit, unit_of(tensor.dtype));
  }
  const double single = unit_of(DType::kF32);
  if (unit <= 0) return 1e-5;
  return unit > single ? 4 * unit : 1e-5 * (unit / single);
}

std::vector<Distance> distances(const ComparedModel& model, const MeasuredRun& run,
                                const MeasuredRun& reference) {
  std::vector<Distance> distances;
  distances.push_back({Difference::What::kLoss, "loss", "", run.loss == reference.loss,
                       relative(run.loss, reference.loss), model.tolerance});
  distances.push_back({Difference::What::kGradientNorm, "gradient norm", "", run.norm == reference.norm,
                       relative(run.norm, reference.norm), model.tolerance});
  add_gradients(model, run, reference, distances);
  add_buffers(model, run, reference, distances);
  if (model.steps > 1) {
    add_parameters(model, Difference::What::kParameterAfterFirst, run, reference, distances);
  }
  add_parameters(model, Difference::What::kParameter, run, reference, distances);
  return distances;
}

// The bits of a number, read as a whole number, count the numbers of its sign from 0 on.
void move_by_last_place(const at::Tensor& tensor, std::uint64_t key) {
  const at::NoGradGuard no_grad;
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const at::ScalarType bits = real.element_size() == 2   ? at::kShort
                              : real.element_size() == 4 ? at::kInt
                                                         : at::kLong;
  at::Tensor steps = at::empty(real.sizes(), at::TensorOptions(bits));
  steps.random_(0, 2, at::make_generator<at::CPUGeneratorImpl>(key)).mul_(2).sub_(1);
  const at::Tensor moved = real.view(bits).add(steps.to(real.device())).view(real.scalar_type());
  real.copy_(at::where(at::isfinite(moved).logical_and_(real != 0), moved, real));
}

}  // namespace espalier
