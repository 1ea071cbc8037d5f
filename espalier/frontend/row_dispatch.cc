#include "espalier/frontend/row_dispatch.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "espalier/cost/operator_table.h"
#include "espalier/frontend/call_tensors.h"

namespace espalier {
namespace {

// Operators that make each row of their output of the same row of their inputs, where sizes stay and none
// works along the first dimension.
bool treats_rows_alone(std::string_view name) {
  return among(name, {"to",         "_to_copy",    "clone",       "contiguous", "detach",
                      "alias",      "lift_fresh",  "add",         "sub",        "rsub",
                      "mul",        "div",         "neg",         "pow",        "exp",
                      "sigmoid",    "tanh",        "silu",        "gelu",       "relu",
                      "softplus",   "clamp",       "clamp_min",   "clamp_max",  "minimum",
                      "maximum",    "where",       "masked_fill", "eq",         "ne",
                      "ge",         "gt",          "le",          "lt",         "logical_and",
                      "logical_or", "logical_not", "unsqueeze",   "view",       "reshape",
                      "chunk",      "split",       "slice",       "narrow",     "select",
                      "mean",       "sum",         "linear",      "matmul",     "mm",
                      "dropout",    "type_as",     "zeros_like",  "ones_like",  "split_with_sizes"});
}

class Dispatch {
 public:
  Dispatch(const FlatProgram& program, const std::vector<bool>& mixes)
      : program_(program),
        mixes_(mixes),
        order_(program.tensors.size()),
        made_(program.tensors.size()),
        sort_of_(program.nodes.size()),
        spoilt_(program.nodes.size()) {}

  std::vector<bool> run() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) visit(i);
    for (const TensorId id : program_.outputs) spoil(id);
    std::vector<bool> result(program_.nodes.size());
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = sort_of_[i] && !spoilt_[*sort_of_[i]];
    return result;
  }

 private:
  enum class Kind : std::uint8_t {
    kRows,         // in sorted order
    kPermutation,  // in sorted order: where each row stood
    kPlaces,       // the same, divided by `times`
    kInverse,      // where each row stands in sorted order
    kCounts,       // of the rows of each group, or their running sum
    kUnusable,     // whoever reads it mixes samples
    kOwnOrder,     // back where the rows stood: of no sort any more
  };
  struct Order {
    std::size_t sort = 0;  // the node
    Kind kind = Kind::kRows;
    std::int64_t times = 1;
  };

  const std::vector<SizeExpr>& sizes(TensorId id) const { return program_.tensors[id.index()].sizes; }
  const std::optional<Order>& order(TensorId id) const { return order_[id.index()]; }
  bool is(TensorId id, std::size_t sort, Kind kind) const {
    return order(id) && order(id)->sort == sort && order(id)->kind == kind;
  }
  bool varies(TensorId id) const {
    return std::any_of(sizes(id).begin(), sizes(id).end(),
                       [](const SizeExpr& size) { return !size.constant(); });
  }
  void spoil(TensorId id) {
    if (order(id)) spoilt_[order(id)->sort] = true;
  }
  void give(const std::vector<TensorId>& tensors, const Order& order) {
    for (const TensorId id : tensors) order_[id.index()] = order;
  }

  void visit(std::size_t index) {
    const Call& call = program_.nodes[index].call;
    const std::vector<TensorId> in = tensors_read(call), out = tensors_written(call);
    for (const TensorId id : out) made_[id.index()] = index;
    if (!call.target.starts_with("aten::")) {
      for (const TensorId id : in) spoil(id);
      return;
    }
    std::string_view name = std::string_view(call.target).substr(6);
    if (writes_first_argument(name)) name.remove_suffix(1);
    if (among(name, {"sort", "argsort"})) return visit_sort(index, name, in, out);
    std::optional<std::size_t> sort;
    for (const TensorId id : in) {
      if (order(id)) sort = order(id)->sort;
    }
    if (!sort || among(name, {"empty_like", "_assert_tensor_metadata", "sym_size"})) return;
    const std::optional<Order> passed_on = read(index, *sort, name, call, in, out);
    if (!passed_on) {
      for (const TensorId id : in) spoil(id);
    } else if (passed_on->kind != Kind::kOwnOrder) {
      give(out, *passed_on);
    }
  }

  void visit_sort(std::size_t index, std::string_view name, const std::vector<TensorId>& in,
                  const std::vector<TensorId>& out) {
    const TensorId x = in.front();
    const bool alone = in.size() == 1 && sizes(x).size() == 1 && varies(x) && !out.empty();
    const bool of_permutation = order(x) && order(x)->kind == Kind::kPermutation;
    if (!alone || (order(x) && !of_permutation)) return spoil(x);
    sort_of_[index] = of_permutation ? order(x)->sort : index;
    const Kind places = of_permutation ? Kind::kInverse : Kind::kPermutation;
    give(out, {*sort_of_[index], places});
    if (name == "sort")
      give({out.front()}, {*sort_of_[index], of_permutation ? Kind::kUnusable : Kind::kRows});
  }

  // What the outputs are: nothing if the operator mixes rows of the sort; kUnusable for rows in their own
  // order.
  std::optional<Order> read(std::size_t index, std::size_t sort, std::string_view name, const Call& call,
                            const std::vector<TensorId>& in, const std::vector<TensorId>& out) const {
    const Order rows{sort, Kind::kRows};
    if (name == "index") return indexed(sort, call, in);
    if (name == "index_put")
      return is_inverse(sort, call, in) ? std::optional(Order{sort, Kind::kInverse}) : std::nullopt;
    if (name == "floor_divide" && in.size() == 1 && is(in[0], sort, Kind::kPermutation)) {
      const std::optional<std::int64_t> times = number(call, "other");
      return times && *times > 0 ? std::optional(Order{sort, Kind::kPlaces, *times}) : std::nullopt;
    }
    const bool fixed = std::none_of(out.begin(), out.end(), [&](TensorId id) { return varies(id); });
    if (among(name, {"histc", "bincount"}) && in.size() == 1 && fixed && is(in[0], sort, Kind::kRows)) {
      return Order{sort, Kind::kCounts};
    }
    if (among(name, {"cumsum", "to", "_to_copy"}) && in.size() == 1 && is(in[0], sort, Kind::kCounts)) {
      return Order{sort, Kind::kCounts};
    }
    if (name == "_grouped_mm") {
      const bool grouped = in.size() == 3 && is(in[0], sort, Kind::kRows) && !order(in[1]) &&
                           !varies(in[1]) && is(in[2], sort, Kind::kCounts);
      return grouped ? std::optional(rows) : std::nullopt;
    }
    if (!treats_rows_alone(name) || mixes_[index]) return std::nullopt;
    std::optional<SizeExpr> length;
    for (const TensorId id : in) {
      if (!order(id) && !varies(id)) continue;
      if (!is(id, sort, Kind::kRows) || sizes(id).empty()) return std::nullopt;
      length = sizes(id).front();
    }
    const bool stay = std::all_of(out.begin(), out.end(), [&](TensorId id) {
      return !sizes(id).empty() && length && sizes(id).front() == *length;
    });
    return stay ? std::optional(rows) : std::nullopt;
  }

  // x[places]: rows of x into sorted order, rows of a table for sorted rows, or sorted rows back.
  std::optional<Order> indexed(std::size_t sort, const Call& call, const std::vector<TensorId>& in) const {
    if (in.size() != 2 || !is_only_index(call) || sizes(in[0]).empty()) return std::nullopt;
    const Order rows{sort, Kind::kRows};
    const SizeExpr &length = sizes(in[0]).front(), &places = sizes(in[1]).front();
    if (is(in[0], sort, Kind::kRows) && is(in[1], sort, Kind::kInverse) && length == places) {
      return Order{sort, Kind::kOwnOrder};
    }
    if (order(in[0]) || !order(in[1])) return std::nullopt;
    const Order& by = *order(in[1]);
    const bool gathers = (by.kind == Kind::kPermutation && length == places) ||
                         (by.kind == Kind::kPlaces && length * SizeExpr(by.times) == places);
    if (gathers || (by.kind == Kind::kRows && !varies(in[0]))) return rows;
    return std::nullopt;
  }

  // empty[permutation] = 0, 1, 2, …
  bool is_inverse(std::size_t sort, const Call& call, const std::vector<TensorId>& in) const {
    if (in.size() != 3 || !is_only_index(call) || !is(in[1], sort, Kind::kPermutation)) return false;
    if (order(in[0]) || order(in[2]) || sizes(in[2]) != sizes(in[1]) || sizes(in[0]) != sizes(in[1]))
      return false;
    const std::optional<std::size_t> numbers = made_[in[2].index()];
    if (!numbers) return false;
    const Call& made = program_.nodes[*numbers].call;
    return made.target == "aten::arange" && argument_of(made, "start") == nullptr &&
           argument_of(made, "step") == nullptr;
  }

  // One tensor of indices, for the first dimension.
  bool is_only_index(const Call& call) const {
    const Argument* const indices = argument_of(call, "indices");
    const auto* const list =
        indices == nullptr ? nullptr : std::get_if<std::vector<OptionalTensor>>(&indices->value);
    return list != nullptr && list->size() == 1 && list->front() && sizes(*list->front()).size() == 1 &&
           program_.tensors[list->front()->index()].dtype != DType::kBool;
  }

  static std::optional<std::int64_t> number(const Call& call, std::string_view name) {
    const Argument* const argument = argument_of(call, name);
    const SizeExpr* const value = argument == nullptr ? nullptr : std::get_if<SizeExpr>(&argument->value);
    return value == nullptr ? std::nullopt : value->constant();
  }

  const FlatProgram& program_;
  const std::vector<bool>& mixes_;
  std::vector<std::optional<Order>> order_;       // by tensor
  std::vector<std::optional<std::size_t>> made_;  // by tensor: the node
  std::vector<std::optional<std::size_t>>
      sort_of_;               // by node: of a sort that may be such a one, the first of its pair
  std::vector<bool> spoilt_;  // by node
};

}  // namespace

std::vector<bool> nodes_that_deal_rows_out(const FlatProgram& program, const std::vector<bool>& mixes) {
  return Dispatch(program, mixes).run();
}

}  // namespace espalier
