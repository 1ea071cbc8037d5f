// The invariants of graph.h, checked one by one. Shares no code with the readers that build graphs.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "espalier/base/check.h"
#include "espalier/base/words.h"
#include "espalier/graph/alias.h"
#include "espalier/graph/graph.h"

namespace espalier {
namespace {

class Checker {
 public:
  explicit Checker(const GraphParts& parts) : parts_(parts) {}

  std::vector<std::string> run() {
    check_batch();
    check_names();
    check_ranges();
    if (!in_range_) return std::move(violations_);
    check_production();
    check_numbering();
    check_parameters();
    check_sizes();
    check_gradients();
    check_outputs();
    check_mutations();
    if (!violations_.empty()) return std::move(violations_);
    check_colocation();
    check_duplicables();
    return std::move(violations_);
  }

 private:
  void report(std::string text) { violations_.push_back(std::move(text)); }
  const Tensor& tensor(TensorId id) const { return parts_.tensors[id.index()]; }
  static std::string named(const Operator& op) { return "operator '" + op.name + "'"; }
  static std::string named(const Tensor& t) { return "tensor '" + t.name + "'"; }

  void check_batch() {
    const BatchRange range = parts_.batch;
    if (range.min < BatchSize(1) || range.max < range.min) {
      report("batch " + std::to_string(range.min.count()) + ".." + std::to_string(range.max.count()) +
             ": expected 1 <= min <= max");
    }
  }

  void check_names() {
    const auto unique = [&](const char* what, const auto& add_all) {
      std::unordered_set<std::string_view> seen;
      add_all([&](const std::string& name) {
        if (name.empty())
          report("the name of " + std::string(what == std::string_view("operator") ? "an " : "a ") + what +
                 " is empty");
        check_text(name);
        if (!seen.insert(name).second) report(std::string(what) + " '" + name + "' stands twice");
      });
    };
    unique("operator", [&](auto add) {
      for (const Operator& op : parts_.operators) add(op.name);
    });
    unique("tensor", [&](auto add) {
      for (const Tensor& t : parts_.tensors) add(t.name);
    });
    unique("parameter", [&](auto add) {
      for (const Parameter& p : parts_.parameters) {
        if (p.names.empty()) report("a parameter has no name");
        for (const std::string& name : p.names) add(name);
      }
    });
    for (const Operator& op : parts_.operators) {
      if (op.target.empty()) report(named(op) + " has no target");
      if (op.op_class.empty()) report(named(op) + " has no class");
      for (const std::string* text : {&op.target, &op.op_class, &op.module_path, &op.source})
        check_text(*text);
    }
    check_text(parts_.name);
  }
  void check_text(const std::string& text) {
    if (!is_utf8(text)) report("a name or text is not UTF-8");
  }

  void check_ranges() {
    // `where` is a function, so that no text is made for the many that are right.
    const auto in_range = [&](TensorId id, const auto& where) {
      if (id.index() < parts_.tensors.size()) return;
      report(where() + ": there is no tensor " + std::to_string(id.index()));
      in_range_ = false;
    };
    for (const Operator& op : parts_.operators) {
      for (const auto* ids : {&op.inputs, &op.outputs, &op.mutates}) {
        for (const TensorId id : *ids) in_range(id, [&] { return named(op); });
      }
    }
    for (const TensorId id : parts_.outputs) in_range(id, [] { return std::string("outputs"); });
    if (parts_.loss) in_range(*parts_.loss, [] { return std::string("loss"); });
    std::size_t storages = 0;
    for (const Tensor& t : parts_.tensors) {
      if (t.producer && t.producer->index() >= parts_.operators.size()) {
        report(named(t) + ": there is no operator " + std::to_string(t.producer->index()));
        in_range_ = false;
      }
      if (t.gradient_of) in_range(*t.gradient_of, [&] { return named(t) + ", a gradient"; });
      if (t.parameter && t.parameter->index() >= parts_.parameters.size()) {
        report(named(t) + ": there is no parameter " + std::to_string(t.parameter->index()));
        in_range_ = false;
      }
      if (t.storage.index() > storages) {
        report(named(t) + " has storage " + std::to_string(t.storage.index()) + ": expected at most " +
               std::to_string(storages) + ", storages are numbered by first appearance");
        in_range_ = false;
      }
      storages = std::max(storages, t.storage.index() + 1);
    }
  }

  void check_production() {
    std::vector<std::uint32_t> times_output(parts_.tensors.size(), 0);
    for (std::size_t i = 0; i < parts_.operators.size(); ++i) {
      const Operator& op = parts_.operators[i];
      for (const TensorId id : op.inputs) {
        const Tensor& t = tensor(id);
        if (t.producer && t.producer->index() >= i) {
          report(named(op) + " reads " + named(t) + ", which is not produced before it");
        }
      }
      for (const TensorId id : op.outputs) {
        ++times_output[id.index()];
        if (tensor(id).producer != OperatorId(i)) {
          report(named(op) + " lists " + named(tensor(id)) + " as its output, which names another producer");
        }
      }
    }
    for (std::size_t i = 0; i < parts_.tensors.size(); ++i) {
      const Tensor& t = parts_.tensors[i];
      if (t.producer && times_output[i] == 0) {
        report(named(t) + " names " + named(parts_.operators[t.producer->index()]) +
               " as its producer, which does not list it");
      }
      if (times_output[i] > 1) report(named(t) + " is listed as an output twice");
      if (t.producer.has_value() != (t.role == TensorRole::kActivation)) {
        report(named(t) + (t.producer ? " has a producer but is no activation"
                                      : " is an activation without a producer"));
      }
      const bool stored = t.role == TensorRole::kParameter || t.role == TensorRole::kBuffer;
      if (t.parameter.has_value() != stored) {
        report(named(t) + (stored ? " is a parameter or buffer of no name"
                                  : " names a parameter but is neither parameter nor buffer"));
      }
    }
  }

  void check_numbering() {
    std::optional<TensorId> last;
    for (const Operator& op : parts_.operators) {
      for (std::size_t k = 0; k < op.outputs.size(); ++k) {
        const TensorId id = op.outputs[k];
        const bool behind = !last || id > *last;
        if (!behind || (k > 0 && id.index() != last->index() + 1)) {
          report(named(op) + ": " + named(tensor(id)) +
                 " is out of order, outputs are numbered as their operators are");
        }
        last = id;
      }
    }
  }

  void check_parameters() {
    std::map<ParameterId, StorageId> storage_of;
    std::map<StorageId, ParameterId> parameter_of;
    for (const Parameter& p : parts_.parameters) {
      for (const std::int64_t size : p.sizes) {
        if (size < 0) {
          report("parameter '" + name_of(p) + "' has size " + std::to_string(size) + ": expected 0 or more");
          return;
        }
      }
      fits([&] { return "parameter '" + name_of(p) + "'"; }, [&] { (void)p.bytes(); });
    }
    for (const Tensor& t : parts_.tensors) {
      if (!t.parameter) continue;
      const Parameter& p = parts_.parameters[t.parameter->index()];
      const bool same_sizes =
          std::equal(t.sizes.begin(), t.sizes.end(), p.sizes.begin(), p.sizes.end(),
                     [](const SizeExpr& a, std::int64_t b) { return a.constant() == std::optional(b); });
      if (t.dtype != p.dtype || !same_sizes) {
        report(named(t) + " is " + type_text(t) + ", its parameter '" + name_of(p) + "' is not");
      }
      if (t.role == TensorRole::kBuffer && p.trainable) {
        report(named(t) + " is a buffer, its parameter '" + name_of(p) + "' is trainable");
      }
      if (storage_of.try_emplace(*t.parameter, t.storage).first->second != t.storage) {
        report(named(t) + " has another storage than its parameter '" + name_of(p) + "' elsewhere");
      }
      if (parameter_of.try_emplace(t.storage, *t.parameter).first->second != *t.parameter) {
        report(named(t) + " shares its storage with another parameter: ties are names of one parameter");
      }
    }
  }
  static std::string name_of(const Parameter& p) { return p.names.empty() ? "" : p.names[0]; }

  template <class What, class F>
  bool fits(const What& what, F compute) {
    try {
      compute();
      return true;
    } catch (const InputError& error) {
      report(what() + ": " + error.what());
      return false;
    }
  }

  void check_sizes() {
    for (const Tensor& t : parts_.tensors) {
      for (const BatchSize batch : {parts_.batch.min, parts_.batch.max}) {
        const bool fitted = fits([&] { return named(t); },
                                 [&] {
                                   for (const SizeExpr& size : t.sizes) {
                                     if (size.at(batch) < 0) {
                                       throw InputError("size " + size.text() + " is negative at batch " +
                                                        std::to_string(batch.count()));
                                     }
                                   }
                                   (void)t.bytes(batch);
                                 });
        if (!fitted) break;  // once a tensor is enough
      }
    }
  }

  void check_gradients() {
    const bool training = is_training_graph(parts_.operators);
    for (const Tensor& t : parts_.tensors) {
      if (t.requires_grad && training) {
        report(named(t) + " requires a gradient, but the graph holds backward or update operators itself");
      }
      if (t.gradient_of &&
          (tensor(*t.gradient_of).dtype != t.dtype || tensor(*t.gradient_of).sizes != t.sizes)) {
        report(named(t) + " is " + type_text(t) + ", but a gradient of " + named(tensor(*t.gradient_of)) +
               ", which is " + type_text(tensor(*t.gradient_of)));
      }
      if (t.gradient_of && !training)
        report(named(t) + " is a gradient, but the graph has no backward operator");
      if (t.requires_grad && !is_floating_point(t.dtype)) {
        report(named(t) + " requires a gradient but is " + std::string(to_text(t.dtype)));
      }
    }
  }

  void check_outputs() {
    if (!parts_.loss) return;
    const Tensor& loss = tensor(*parts_.loss);
    if (std::find(parts_.outputs.begin(), parts_.outputs.end(), *parts_.loss) == parts_.outputs.end()) {
      report("the loss, " + named(loss) + ", is not among the outputs");
    }
    const bool one = loss.elements().constant() == std::optional<std::int64_t>(1);
    if (!is_floating_point(loss.dtype) || !one) {
      report("the loss, " + named(loss) + ", is " + type_text(loss) + ": expected one floating-point number");
    }
  }

  void check_mutations() {
    for (const Operator& op : parts_.operators) {
      std::set<TensorId> seen;
      for (const TensorId id : op.mutates) {
        if (std::find(op.inputs.begin(), op.inputs.end(), id) == op.inputs.end()) {
          report(named(op) + " mutates " + named(tensor(id)) + ", which it does not read");
        }
        if (!seen.insert(id).second) report(named(op) + " lists " + named(tensor(id)) + " as mutated twice");
      }
    }
  }

  // Every operator that a mutation, but for an update's, ties to others has the number of the first of them.
  void check_colocation() {
    const AliasSets sets(parts_);
    if (!sets.any_mutated()) return;
    std::vector<std::size_t> last_mutation(sets.count(), 0);
    std::vector<char> binding(sets.count(), 0);
    for (std::size_t i = 0; i < parts_.operators.size(); ++i) {
      if (parts_.operators[i].role == OperatorRole::kUpdate) continue;
      for (const TensorId id : parts_.operators[i].mutates) {
        last_mutation[sets.of(id)] = i;
        binding[sets.of(id)] = 1;
      }
    }
    std::vector<const Operator*> first(sets.count(), nullptr);
    for (std::size_t i = 0; i < parts_.operators.size(); ++i) {
      const Operator& op = parts_.operators[i];
      for (const std::uint32_t set : sets.touched_by(op)) {
        const bool bound = binding[set] != 0 && (sets.lives_on(set) || i <= last_mutation[set]);
        if (!bound) continue;
        if (!first[set]) {
          first[set] = &op;
        } else if (!op.colocation || op.colocation != first[set]->colocation) {
          report(named(op) + " and " + named(*first[set]) +
                 " touch memory that is mutated, but are not colocated");
        }
      }
    }
  }

  void check_duplicables() {
    const AliasSets sets(parts_);
    for (const Operator& op : parts_.operators) {
      if (!op.duplicable) continue;
      const auto refuse = [&](const std::string& why) {
        report(named(op) + " is called duplicable but " + why);
      };
      if (op.random) refuse("draws random numbers");
      if (!op.mutates.empty()) refuse("mutates a tensor");
      for (const TensorId id : op.outputs) {
        if (tensor(id).requires_grad) refuse("gives " + named(tensor(id)) + ", which requires a gradient");
        if (sets.mutated(sets.of(id))) refuse("gives " + named(tensor(id)) + ", whose memory is mutated");
      }
      for (const TensorId id : op.inputs) {
        const Tensor& t = tensor(id);
        if (t.role == TensorRole::kParameter) refuse("reads parameter " + named(t));
        if (sets.mutated(sets.of(id))) refuse("reads " + named(t) + ", whose memory is mutated");
        if (t.producer && !parts_.operators[t.producer->index()].duplicable) {
          refuse("reads " + named(t) + ", whose producer is not");
        }
      }
    }
  }

  const GraphParts& parts_;
  std::vector<std::string> violations_;
  bool in_range_ = true;
};

}  // namespace

std::vector<std::string> check_graph(const GraphParts& parts) {
  return Checker(parts).run();
}

}  // namespace espalier
