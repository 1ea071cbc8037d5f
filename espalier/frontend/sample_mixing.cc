#include "espalier/frontend/sample_mixing.h"

#include <algorithm>
#include <string_view>

#include "espalier/cost/operator_table.h"
#include "espalier/frontend/call_tensors.h"
#include "espalier/frontend/row_dispatch.h"

// A number that was made of all samples has a degree, by which it grows when every sample is there twice:
//
//   mean, cross_entropy_loss, …      0
//   sum                              1
//   x + y, x - y                     that of both, if they agree; a constant beside a mean is no sample's
//   c · x, x / c, -x                 that of x, where c is a constant or made of parameters alone
//   x / b                            one less, where b is a multiple of the batch
//
// What micro-batches average is right for degree 0. Whatever else reads such a number is not linear in it, or
// brings it back beside the samples: it mixes them.

namespace espalier {
namespace {

bool truth(const Call& call, std::string_view name, bool otherwise) {
  const Argument* const argument = argument_of(call, name);
  const bool* const value = argument == nullptr ? nullptr : std::get_if<bool>(&argument->value);
  return value == nullptr ? otherwise : *value;
}

class Mixing {
 public:
  explicit Mixing(const FlatProgram& program)
      : program_(program),
        from_samples_(program.tensors.size()),
        degree_(program.tensors.size()),
        made_(program.tensors.size()),
        mixes_(program.nodes.size()) {
    for (std::size_t i = 0; i < program.tensors.size(); ++i) {
      from_samples_[i] = program.tensors[i].role == TensorRole::kInput && batch_dimensions(TensorId(i)) > 0;
    }
  }

  std::vector<bool> run() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) visit(i);
    const std::vector<bool> dealt_out = nodes_that_deal_rows_out(program_, mixes_);
    for (std::size_t i = 0; i < mixes_.size(); ++i) mixes_[i] = mixes_[i] && !dealt_out[i];
    for (const TensorId loss : losses()) {
      const std::optional<int> degree = degree_[loss.index()];
      if (degree && *degree != 0 && made_[loss.index()]) mixes_[*made_[loss.index()]] = true;
    }
    return std::move(mixes_);
  }

 private:
  const FlatTensor& tensor(TensorId id) const { return program_.tensors[id.index()]; }

  std::size_t batch_dimensions(TensorId id) const {
    const auto& sizes = tensor(id).sizes;
    return static_cast<std::size_t>(
        std::count_if(sizes.begin(), sizes.end(), [](const SizeExpr& size) { return !size.constant(); }));
  }

  bool varies(TensorId id, std::int64_t dim) const {
    const auto& sizes = tensor(id).sizes;
    if (dim < 0) dim += static_cast<std::int64_t>(sizes.size());
    return dim >= 0 && dim < static_cast<std::int64_t>(sizes.size()) &&
           !sizes[static_cast<std::size_t>(dim)].constant();
  }

  // Floating-point scalars among the outputs: one of them is the loss, whichever the user names.
  std::vector<TensorId> losses() const {
    if (program_.declared_loss) return {*program_.declared_loss};
    std::vector<TensorId> result;
    for (const TensorId id : program_.outputs) {
      if (tensor(id).sizes.empty() && is_floating_point(tensor(id).dtype)) result.push_back(id);
    }
    return result;
  }

  void visit(std::size_t index) {
    const Call& call = program_.nodes[index].call;
    const std::size_t colons = call.target.find("::");
    const bool aten = call.target.starts_with("aten::");
    std::string_view name =
        std::string_view(call.target).substr(colons == std::string::npos ? 0 : colons + 2);
    const AtenOperator* const facts = aten ? find_aten(name) : nullptr;
    if (writes_first_argument(name)) name.remove_suffix(1);
    const std::vector<TensorId> in = tensors_read(call), out = tensors_written(call);
    bool from_samples = false;
    for (const TensorId id : in) from_samples = from_samples || from_samples_[id.index()];
    for (const TensorId id : out) {
      from_samples_[id.index()] = from_samples;
      made_[id.index()] = index;
    }
    if (in.empty() || out.empty()) return;
    mixes_[index] = facts != nullptr && by_sizes(call, name, *facts, in, out);
    const bool reduced =
        std::any_of(in.begin(), in.end(), [&](TensorId id) { return degree_[id.index()].has_value(); });
    if (!reduced && (mixes_[index] || !reduces_all(in, out))) return;
    const std::optional<int> degree =
        reduced ? passed_on(call, name, in, out) : degree_of_reduction(call, name, out);
    if (!degree && (facts == nullptr || facts->differentiable)) mixes_[index] = true;
    for (const TensorId id : out) degree_[id.index()] = degree;
  }

  bool reduces_all(const std::vector<TensorId>& in, const std::vector<TensorId>& out) const {
    std::size_t read = 0, written = 0;
    for (const TensorId id : in) read = std::max(read, batch_dimensions(id));
    for (const TensorId id : out) written = std::max(written, batch_dimensions(id));
    return read > 0 && written == 0;
  }

  // Of an operator that makes a number of all samples; nothing if it neither adds nor averages.
  std::optional<int> degree_of_reduction(const Call& call, std::string_view name,
                                         const std::vector<TensorId>& out) const {
    for (const TensorId id : out) {
      if (!tensor(id).sizes.empty()) return std::nullopt;
    }
    if (among(name, {"sum", "dot", "vdot", "inner", "matmul", "mv", "einsum", "tensordot", "linalg_vecdot",
                     "count_nonzero", "trace", "view", "reshape", "squeeze"}))
      return 1;
    if (name == "mean") return 0;
    const bool loss = name.ends_with("loss") || name.starts_with("nll_loss") || name == "kl_div" ||
                      name.starts_with("binary_cross_entropy");
    if (!loss) return std::nullopt;
    const Argument* const reduction = argument_of(call, "reduction");  // 1 mean (the default), 2 sum
    const SizeExpr* const value = reduction == nullptr ? nullptr : std::get_if<SizeExpr>(&reduction->value);
    return value != nullptr && value->constant() == std::int64_t{2} ? 1 : 0;
  }

  // The degree of what an operator makes of numbers of which at least one has a degree; nothing if it is not
  // linear in them.
  std::optional<int> passed_on(const Call& call, std::string_view name, const std::vector<TensorId>& in,
                               const std::vector<TensorId>& out) const {
    for (const TensorId id : out) {
      if (batch_dimensions(id) > 0) return std::nullopt;
    }
    for (const TensorId id : in) {
      if (batch_dimensions(id) > 0) return std::nullopt;  // beside the samples again
    }
    if (among(name, {"add", "sub", "rsub", "subtract", "stack", "cat"})) {
      std::optional<int> common;
      for (const TensorId id : in) {
        const std::optional<int> degree = degree_[id.index()];
        if (!degree && from_samples_[id.index()]) return std::nullopt;
        const int mine = degree.value_or(0);  // a penalty on parameters is the same for each micro-batch
        if (common && *common != mine) return std::nullopt;
        common = mine;
      }
      return common;
    }
    const std::optional<int> first = degree_[in.front().index()];
    if (among(name, {"mul", "multiply", "div", "divide", "true_divide"})) {
      if (in.size() == 1)
        return divided_by_the_batch(call, name) && first ? std::optional(*first - 1) : first;
      const bool quotient = name.starts_with("div") || name == "true_divide";
      const std::optional<int> second = degree_[in.back().index()];
      if (first && !from_samples_[in.back().index()]) return first;
      if (!quotient && second && !from_samples_[in.front().index()]) return second;
      return std::nullopt;
    }
    if (in.size() == 1 &&
        among(name, {"neg", "negative", "view", "reshape", "squeeze", "unsqueeze", "to", "_to_copy", "clone",
                     "contiguous", "detach", "alias", "mean", "sum", "select", "expand", "unbind"})) {
      return first;
    }
    return std::nullopt;
  }

  static bool divided_by_the_batch(const Call& call, std::string_view name) {
    const Argument* const other = argument_of(call, "other");
    const SizeExpr* const size = other == nullptr ? nullptr : std::get_if<SizeExpr>(&other->value);
    return name != "mul" && name != "multiply" && size != nullptr && !size->constant() &&
           size->at(BatchSize(8)) == 2 * size->at(BatchSize(4));
  }

  // The dimensions an operator works along: its `dim` or `dims`; by default the last.
  static std::vector<std::int64_t> dimensions(const Call& call) {
    for (const std::string_view name : {"dim", "dims"}) {
      const Argument* const argument = argument_of(call, name);
      if (argument == nullptr) continue;
      if (const auto* const one = std::get_if<SizeExpr>(&argument->value))
        return {one->constant().value_or(0)};
      if (const auto* const several = std::get_if<std::vector<SizeExpr>>(&argument->value)) {
        std::vector<std::int64_t> result;
        for (const SizeExpr& dim : *several) result.push_back(dim.constant().value_or(0));
        return result;
      }
    }
    return {-1};
  }

  bool by_sizes(const Call& call, std::string_view name, const AtenOperator& facts,
                const std::vector<TensorId>& in, const std::vector<TensorId>& out) const {
    if (facts.updates_statistics)
      return truth(call, "training", truth(call, "use_input_stats", true)) && name != "instance_norm";
    std::size_t read = 0, written = 0;
    for (const TensorId id : in) read = std::max(read, batch_dimensions(id));
    for (const TensorId id : out) written = std::max(written, batch_dimensions(id));
    const TensorId first = in.front();
    if (facts.along_dim) {
      for (const std::int64_t dim : dimensions(call)) {
        if (varies(first, dim)) return true;
      }
    }
    if (name == "slice" || name == "narrow") {
      const Argument* const argument = argument_of(call, "dim");
      const SizeExpr* const dim = argument == nullptr ? nullptr : std::get_if<SizeExpr>(&argument->value);
      if (varies(first, dim == nullptr ? 0 : dim->constant().value_or(0)) &&
          tensor(first).sizes != tensor(out.front()).sizes)
        return true;
    }
    return written >= 2 && written > read;
  }

  const FlatProgram& program_;
  std::vector<bool> from_samples_;                // by tensor: made of the model's inputs
  std::vector<std::optional<int>> degree_;        // by tensor: of numbers made of all samples
  std::vector<std::optional<std::size_t>> made_;  // by tensor: the node
  std::vector<bool> mixes_;                       // by node
};

}  // namespace

std::vector<bool> nodes_that_mix_samples(const FlatProgram& program) {
  return Mixing(program).run();
}

}  // namespace espalier
