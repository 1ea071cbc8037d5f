// Whether a training graph computes the derivatives of a forward graph.
//
// Each forward operator is read as a linear map: output o is the sum over inputs i of J(op, i, o) · i, with
// random J modulo the prime p = 2^61 - 1. The derivative of the seeds' sum by every tensor follows from the
// forward graph alone, reader by reader. The training graph is evaluated operator by operator with the same
// J. A part that is missing, counted twice or taken from the wrong tensor changes what an update reads, but
// for one case in about p / operators.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "espalier/base/rng.h"
#include "espalier/graph/expand_backward.h"

namespace espalier {
namespace {

__extension__ using Wide = unsigned __int128;
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(Wide{a} * b % kPrime);
}
std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  return (a + b) % kPrime;
}

class ExpansionChecker {
 public:
  ExpansionChecker(const Graph& forward, const Graph& training) : forward_(forward), training_(training) {}

  std::vector<std::string> run() {
    check_forward_half();
    if (!violations_.empty()) return std::move(violations_);
    find_derivatives();
    value_.resize(training_.tensors().size());
    for (std::size_t i = forward_.operators().size(); i < training_.operators().size(); ++i) {
      evaluate(training_.operators()[i]);
    }
    check_everything_stands();
    check_outputs();
    return std::move(violations_);
  }

 private:
  void report(std::string text) { violations_.push_back(std::move(text)); }
  static std::string named(const Operator& op) { return "operator '" + op.name + "'"; }
  const std::string& name(TensorId id) const { return training_.tensor(id).name; }

  // ---- What the forward graph says

  void check_forward_half() {
    const std::size_t operators = forward_.operators().size();
    const std::size_t tensors = forward_.tensors().size();
    if (training_.operators().size() < operators || training_.tensors().size() < tensors) {
      return report("the training graph holds less than the forward graph");
    }
    for (std::size_t i = 0; i < operators; ++i) {
      Operator there = training_.operators()[i];
      there.colocation = forward_.operators()[i].colocation;
      if (there != forward_.operators()[i])
        report(named(there) + " is not the forward graph's operator " + std::to_string(i));
      if (const auto own = forward_.operators()[i].colocation; own && !same_group(i)) {
        report(named(there) + " was parted from its colocation group");
      }
    }
    for (std::size_t t = 0; t < tensors; ++t) {
      Tensor there = training_.tensors()[t];
      if (there.requires_grad) report("tensor '" + there.name + "' still requires a gradient");
      there.requires_grad = forward_.tensors()[t].requires_grad;
      if (there != forward_.tensors()[t])
        report("tensor '" + there.name + "' is not the forward graph's tensor " + std::to_string(t));
    }
    if (training_.parts().parameters != forward_.parts().parameters) report("parameters differ");
    if (training_.loss() != forward_.loss()) report("the loss differs");
    for (std::size_t i = operators; i < training_.operators().size(); ++i) {
      const Operator& op = training_.operators()[i];
      if (op.role == OperatorRole::kForward) report(named(op) + " is a forward operator behind the others");
    }
  }

  bool same_group(std::size_t i) {
    const auto [place, fresh] =
        group_.try_emplace(*forward_.operators()[i].colocation, training_.operators()[i].colocation);
    return fresh ? place->second.has_value() : place->second == training_.operators()[i].colocation;
  }

  bool wanted(TensorId id) const { return forward_.tensor(id).requires_grad; }

  std::set<TensorId> seeds() const {
    std::set<TensorId> result;
    if (forward_.loss()) return {*forward_.loss()};
    for (const TensorId id : forward_.outputs()) {
      if (wanted(id)) result.insert(id);
    }
    return result;
  }

  static std::uint64_t coefficient(OperatorId op, TensorId input, TensorId output) {
    return stream_key(20220117, {op.index(), input.index(), output.index()}) % kPrime;
  }

  void find_derivatives() {
    derivative_.resize(forward_.tensors().size());
    for (const TensorId seed : seeds()) derivative_[seed.index()] = 1;
    // The outputs of an activation's readers have larger numbers. Other tensors may stand anywhere.
    for (std::size_t t = forward_.tensors().size(); t-- > 0;) {
      if (forward_.tensor(TensorId(t)).producer) derive(TensorId(t));
    }
    for (std::size_t t = 0; t < forward_.tensors().size(); ++t) {
      if (!forward_.tensor(TensorId(t)).producer) derive(TensorId(t));
    }
  }

  void derive(TensorId id) {
    if (!wanted(id)) return;
    auto& own = derivative_[id.index()];
    for (const OperatorId reader : forward_.readers(id)) {
      for (const TensorId output : forward_.op(reader).outputs) {
        if (!wanted(output) || !derivative_[output.index()]) continue;
        own = sum(own.value_or(0), product(coefficient(reader, id, output), *derivative_[output.index()]));
      }
    }
  }

  // ---- What the training graph computes

  std::optional<OperatorId> forward_of(const Operator& op) const {
    constexpr std::string_view kSuffix = ".backward";
    std::string name = op.name;
    while (!name.empty() && name.back() == '_') name.pop_back();  // set behind names that were taken
    if (!name.ends_with(kSuffix)) return std::nullopt;
    return forward_.find_operator(name.substr(0, name.size() - kSuffix.size()));
  }

  void evaluate(const Operator& op) {
    if (op.role == OperatorRole::kUpdate) return check_update(op);
    if (op.target == "gradient_sum") return add_up(op);
    const auto forward = forward_of(op);
    if (!forward) return report(named(op) + " is the backward of no forward operator");
    if (op.op_class != forward_.op(*forward).op_class) report(named(op) + " has another class");
    if (!backward_.emplace(*forward, &op).second) report(named(op) + " is there twice");
    std::map<TensorId, std::uint64_t> gradient;  // of the forward operator's outputs
    std::set<TensorId> read;
    for (const TensorId input : op.inputs) {
      if (!read.insert(input).second) report(named(op) + " reads '" + name(input) + "' twice");
      const auto of = training_.tensor(input).gradient_of;
      if (of) {
        gradient[*of] = value_of(input);
      } else if (!touches(forward_.op(*forward), input)) {
        report(named(op) + " reads '" + name(input) + "', which its forward operator does not");
      }
    }
    for (const auto& [of, value] : gradient) {
      if (forward_.op(*forward).outputs.end() ==
          std::find(forward_.op(*forward).outputs.begin(), forward_.op(*forward).outputs.end(), of)) {
        report(named(op) + " reads a gradient of '" + name(of) + "', which is no output of its operator");
      }
    }
    std::set<TensorId> given;
    for (const TensorId output : op.outputs) {
      const auto of = training_.tensor(output).gradient_of;
      if (!of || !given.insert(*of).second) {
        report(named(op) + " gives '" + name(output) + "', which is no gradient or one too many");
        continue;
      }
      std::uint64_t value = 0;
      for (const TensorId input : same_target(forward_.op(*forward), *of)) {
        for (const auto& [to, incoming] : gradient) {
          value = sum(value, product(coefficient(*forward, input, to), incoming));
        }
      }
      value_[output.index()] = value;
    }
  }

  static bool touches(const Operator& op, TensorId id) {
    return std::count(op.inputs.begin(), op.inputs.end(), id) +
               std::count(op.outputs.begin(), op.outputs.end(), id) >
           0;
  }

  // The operator's inputs that are this tensor, or tensors of the same parameter.
  std::set<TensorId> same_target(const Operator& op, TensorId of) const {
    std::set<TensorId> result;
    for (const TensorId input : op.inputs) {
      const auto parameter = forward_.tensor(input).parameter;
      const bool same = input == of || (parameter && parameter == forward_.tensor(of).parameter);
      if (same && wanted(input)) result.insert(input);
    }
    return result;
  }

  std::uint64_t value_of(TensorId id) const {
    if (training_.tensor(id).role == TensorRole::kConstant) return 1;
    return value_[id.index()];
  }

  void add_up(const Operator& op) {
    if (op.inputs.size() != 2 || op.outputs.size() != 1) return report(named(op) + " does not add two");
    for (const TensorId input : op.inputs) {
      if (training_.tensor(input).gradient_of != training_.tensor(op.outputs[0]).gradient_of)
        report(named(op) + " adds gradients of two tensors");
    }
    value_[op.outputs[0].index()] = sum(value_of(op.inputs[0]), value_of(op.inputs[1]));
  }

  // Derivative by a parameter: by all of its tensors together.
  std::optional<std::uint64_t> derivative_of(ParameterId id) {
    std::optional<std::uint64_t> total;
    for (const TensorId t : tensors_of(id)) {
      if (derivative_[t.index()]) total = sum(total.value_or(0), *derivative_[t.index()]);
    }
    return total;
  }
  const std::vector<TensorId>& tensors_of(ParameterId id) {
    if (tensors_of_.empty()) {
      tensors_of_.resize(forward_.parameters().size());
      for (std::size_t t = 0; t < forward_.tensors().size(); ++t) {
        if (const auto p = forward_.tensor(TensorId(t)).parameter) tensors_of_[p->index()].emplace_back(t);
      }
    }
    return tensors_of_[id.index()];
  }

  void check_update(const Operator& op) {
    const bool shape = op.inputs.size() == 2 && op.outputs.empty() &&
                       op.mutates == std::vector<TensorId>{op.inputs[0]} &&
                       training_.tensor(op.inputs[0]).parameter;
    if (!shape)
      return report(named(op) + " does not read one parameter and its gradient and write the former");
    const ParameterId parameter = *training_.tensor(op.inputs[0]).parameter;
    if (!updated_.insert(parameter).second) report(named(op) + " updates its parameter a second time");
    if (!forward_.parameter(parameter).trainable) report(named(op) + " updates what is not trained");
    const auto expected = derivative_of(parameter);
    if (!expected || *expected != value_of(op.inputs[1]))
      report(named(op) + " reads '" + name(op.inputs[1]) + "', which is not the parameter's whole gradient");
  }

  // ---- What must be there

  void check_everything_stands() {
    for (std::size_t i = 0; i < forward_.operators().size(); ++i) {
      const Operator& op = forward_.operators()[i];
      std::set<TensorId> incoming;
      for (const TensorId output : op.outputs) {
        if (wanted(output) && derivative_[output.index()]) incoming.insert(output);
      }
      const auto found = backward_.find(OperatorId(i));
      if ((found != backward_.end()) != !incoming.empty()) {
        report(named(op) + (incoming.empty() ? " has a backward, but leads to no loss" : " has no backward"));
      }
      if (found == backward_.end()) continue;
      std::set<TensorId> given, read;
      for (const TensorId t : found->second->outputs) given.insert(*training_.tensor(t).gradient_of);
      for (const TensorId t : found->second->inputs) {
        if (const auto of = training_.tensor(t).gradient_of) {
          read.insert(*of);
          if (forward_.tensor(*of).producer == OperatorId(i) && value_of(t) != *derivative_[of->index()])
            report(named(*found->second) + " reads '" + name(t) + "', which is not the whole gradient");
        }
      }
      if (read != incoming) report(named(*found->second) + " reads not all gradients of its outputs");
      for (const TensorId input : op.inputs) {
        if (!wanted(input)) continue;
        const auto parameter = forward_.tensor(input).parameter;
        const TensorId target = parameter ? tensors_of(*parameter).front() : input;
        if (given.count(target) == 0)
          report(named(*found->second) + " gives no gradient of '" + name(input) + "'");
      }
    }
    for (std::size_t p = 0; p < forward_.parameters().size(); ++p) {
      if (!forward_.parameter(ParameterId(p)).trainable || !derivative_of(ParameterId(p))) continue;
      if (updated_.count(ParameterId(p)) == 0)
        report("parameter '" + forward_.parameter(ParameterId(p)).names[0] + "' has no update");
    }
  }

  void check_outputs() {
    std::vector<TensorId> rest(training_.outputs().begin(), training_.outputs().end());
    const auto forward = forward_.outputs();
    if (rest.size() < forward.size() || !std::equal(forward.begin(), forward.end(), rest.begin()))
      return report("the outputs do not begin with the forward graph's");
    rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(forward.size()));
    std::set<TensorId> inputs;
    for (const TensorId id : rest) {
      const auto of = training_.tensor(id).gradient_of;
      if (!of || forward_.tensor(*of).role != TensorRole::kInput || !inputs.insert(*of).second) {
        report("the output '" + name(id) + "' is no gradient of an input, or a second one");
        continue;
      }
      if (derivative_[of->index()] != value_of(id))
        report("the output '" + name(id) + "' is not the input's whole gradient");
    }
  }

  const Graph& forward_;
  const Graph& training_;
  std::vector<std::string> violations_;
  std::vector<std::optional<std::uint64_t>> derivative_;  // by the forward graph's tensors
  std::vector<std::uint64_t> value_;                      // by the training graph's tensors
  std::map<OperatorId, const Operator*> backward_;
  std::set<ParameterId> updated_;
  std::map<std::uint32_t, std::optional<std::uint32_t>> group_;
  std::vector<std::vector<TensorId>> tensors_of_;
};

}  // namespace

std::vector<std::string> check_expansion(const Graph& forward, const Graph& training) {
  return ExpansionChecker(forward, training).run();
}

}  // namespace espalier
