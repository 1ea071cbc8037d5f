#include "espalier/base/words.h"
#include "espalier/graph/text.h"
#include "espalier/graph/text_defaults.h"

namespace espalier {
namespace {

class GraphPrinter {
 public:
  explicit GraphPrinter(const Graph& graph)
      : graph_(graph), training_(is_training_graph(graph.operators())) {}

  std::string print() {
    const GraphParts& parts = graph_.parts();
    if (!parts.name.empty()) out_ += "graph " + word(parts.name) + "\n";
    out_ += "batch " + std::to_string(parts.batch.min.count());
    if (!parts.batch.fixed()) out_ += ".." + std::to_string(parts.batch.max.count());
    out_ += '\n';
    if (!parts.training_mode) out_ += "mode eval\n";
    declare_parameters();
    for (std::size_t i = 0; i < parts.tensors.size(); ++i) print_tensor(TensorId(i));
    for (; next_operator_ < parts.operators.size(); ++next_operator_)
      print_operator(parts.operators[next_operator_]);

    if (parts.loss != derived_loss(parts.tensors, parts.outputs)) {
      out_ += parts.loss ? "loss " + word(graph_.tensor(*parts.loss).name) + "\n" : "no loss\n";
    }
    out_ += "return" + (parts.outputs.empty() ? "" : " " + names(parts.outputs)) + "\n";
    return std::move(out_);
  }

 private:
  static std::string word(std::string_view text) { return quote_word(text, kTextPunctuation); }
  static std::string target(std::string_view text) {
    return quote_word(text, kTextPunctuation,
                      {kTextSources[0], kTextSources[1], kTextSources[2], kTextSources[3]});
  }
  std::string names(std::span<const TensorId> ids) const {
    std::string text;
    for (const TensorId id : ids) text += (text.empty() ? "" : ", ") + word(graph_.tensor(id).name);
    return text;
  }
  std::string list(std::span<const TensorId> ids) const {
    std::string text;
    for (const TensorId id : ids) text += (text.empty() ? "" : ",") + word(graph_.tensor(id).name);
    return text;
  }

  // Lines without a tensor, all of them, where the tensors' order would number the parameters differently.
  void declare_parameters() {
    declared_.assign(graph_.parameters().size(), 0);
    std::size_t seen = 0;
    for (const Tensor& t : graph_.tensors()) {
      if (t.parameter && t.parameter->index() == seen)
        ++seen;
      else if (t.parameter && t.parameter->index() > seen)
        break;
    }
    if (seen == declared_.size()) return;
    for (std::size_t i = 0; i < declared_.size(); ++i) {
      const Parameter& p = graph_.parameter(ParameterId(i));
      Tensor like;
      like.dtype = p.dtype;
      like.sizes.assign(p.sizes.begin(), p.sizes.end());
      out_ += call("parameter", p) + " : " + type_text(like) + "\n";
      declared_[i] = 1;
    }
  }
  static std::string call(const std::string& kind, const Parameter& p) {
    std::string text = kind + "(" + word(p.names[0]);
    for (std::size_t i = 1; i < p.names.size(); ++i) text += ", tied=" + word(p.names[i]);
    if (kind == "parameter" && !p.trainable) text += ", frozen";
    if (!p.persistent) text += ", nonpersistent";
    return text + ")";
  }

  void print_tensor(TensorId id) {
    const Tensor& t = graph_.tensor(id);
    if (t.producer) {
      // Operators without outputs stand before the next one that has some.
      while (next_operator_ <= t.producer->index()) print_operator(graph_.operators()[next_operator_++]);
    } else {
      print_source(t);
    }
    const bool is_new = t.storage.index() == first_of_storage_.size();
    if (is_new) first_of_storage_.push_back(id);
  }

  void print_source(const Tensor& t) {
    out_ += word(t.name) + " = ";
    bool storage_known = t.storage.index() < first_of_storage_.size();
    if (t.parameter) {
      const std::string kind = t.role == TensorRole::kBuffer ? "buffer" : "parameter";
      char& declared = declared_[t.parameter->index()];
      const Parameter& p = graph_.parameter(*t.parameter);
      out_ += declared != 0 ? kind + "(" + word(p.names[0]) + ")" : call(kind, p);
      declared = 1;
      // The same parameter again: the storage is understood.
      if (storage_known && graph_.tensor(first_of_storage_[t.storage.index()]).parameter == t.parameter) {
        storage_known = false;
      }
    } else {
      out_ += t.role == TensorRole::kInput ? "input()" : "constant()";
    }
    out_ += " : " + type_text(t);
    if (storage_known) {
      out_ +=
          " @shares=" + word(t.name) + ":" + word(graph_.tensor(first_of_storage_[t.storage.index()]).name);
    }
    if (derived_gradient(t, graph_.parameters(), training_) != t.requires_grad)
      out_ += t.requires_grad ? " @grad" : " @nograd";
    if (t.gradient_of)
      out_ += " @gradient_of=" + word(t.name) + ":" + word(graph_.tensor(*t.gradient_of).name);
    out_ += '\n';
  }

  void print_operator(const Operator& op) {
    if (!op.outputs.empty()) out_ += names(op.outputs) + " = ";
    out_ += target(op.target) + "(" + names(op.inputs) + ")";
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      out_ += (i == 0 ? " : " : ", ") + type_text(graph_.tensor(op.outputs[i]));
    }
    print_aliases(op);
    if (op.outputs.empty() || op.name != graph_.tensor(op.outputs[0]).name) out_ += " @name=" + word(op.name);
    if (!op.module_path.empty()) out_ += " @module=" + word(op.module_path);
    if (!op.source.empty()) out_ += " @source=" + word(op.source);
    if (op.role == OperatorRole::kBackward) out_ += " @backward";
    if (op.role == OperatorRole::kUpdate) out_ += " @update";
    if (op.colocation) out_ += " @colocate=" + std::to_string(*op.colocation);
    if (op.duplicable) out_ += " @duplicable";
    if (op.random) out_ += " @random";
    if (op.mixes_samples) out_ += " @mixes";
    if (!op.known) out_ += " @unknown";
    print_gradients(op);
    if (op.op_class != default_op_class(op, graph_.tensors())) out_ += " @class=" + word(op.op_class);
    out_ += '\n';
  }

  void print_aliases(const Operator& op) {
    const auto first_input_storage = [&] { return graph_.tensor(op.inputs[0]).storage; };
    const bool view = !op.inputs.empty() && !op.outputs.empty() &&
                      std::all_of(op.outputs.begin(), op.outputs.end(), [&](TensorId id) {
                        return graph_.tensor(id).storage == first_input_storage();
                      });
    const bool inplace = view && op.mutates == std::vector<TensorId>{op.inputs[0]};
    if (view) {
      out_ += inplace ? " @inplace" : " @view";
    } else {
      std::vector<TensorId> fresh;  // first tensors of the storages that begin on this line
      std::string shares;
      for (const TensorId id : op.outputs) {
        const std::size_t storage = graph_.tensor(id).storage.index();
        const std::size_t known = first_of_storage_.size();
        if (storage == known + fresh.size()) {
          fresh.push_back(id);
          continue;
        }
        const TensorId other = storage < known ? first_of_storage_[storage] : fresh[storage - known];
        shares += (shares.empty() ? " @shares=" : ",") + word(graph_.tensor(id).name) + ":" +
                  word(graph_.tensor(other).name);
      }
      out_ += shares;
    }
    if (!inplace && !op.mutates.empty()) out_ += " @mutates=" + list(op.mutates);
  }

  void print_gradients(const Operator& op) {
    std::vector<TensorId> off;
    std::vector<TensorId> on;
    bool any = false;
    for (const TensorId id : op.outputs) {
      const Tensor& t = graph_.tensor(id);
      const bool derived = derived_gradient(op, t, graph_.tensors());
      any = any || t.requires_grad;
      if (derived && !t.requires_grad) off.push_back(id);
      if (!derived && t.requires_grad) on.push_back(id);
    }
    if (!off.empty()) out_ += any ? " @nograd=" + list(off) : " @nograd";
    if (!on.empty()) out_ += " @grad=" + list(on);
    std::string pairs;
    for (const TensorId id : op.outputs) {
      const Tensor& t = graph_.tensor(id);
      if (!t.gradient_of) continue;
      pairs += (pairs.empty() ? " @gradient_of=" : ",") + word(t.name) + ":" +
               word(graph_.tensor(*t.gradient_of).name);
    }
    out_ += pairs;
  }

  const Graph& graph_;
  const bool training_;
  std::string out_;
  std::size_t next_operator_ = 0;
  std::vector<TensorId> first_of_storage_;
  std::vector<char> declared_;
};

}  // namespace

std::string print_graph(const Graph& graph) {
  return GraphPrinter(graph).print();
}

}  // namespace espalier
