#include "espalier/frontend/onnx_rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace espalier::onnx {

void like_first(OnnxCall& call) {
  call.give(call.sizes(0));
}

void keep_elements(OnnxCall& call) {
  call.outputs[0].integers = call.in(0).integers;
  call.outputs[0].reals = call.in(0).reals;
}

void reshape(OnnxCall& call) {
  Sizes to;
  if (const auto given = call.node.integers("shape")) {
    to.assign(given->begin(), given->end());
  } else if (call.has(1) && call.in(1).integers) {
    to = *call.in(1).integers;
  } else {
    throw Unknown();
  }
  const bool keeps_zeros = call.node.integer("allowzero", 0) != 0;
  std::optional<std::size_t> open;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (is(to[i], 0) && !keeps_zeros) to[i] = call.size(0, i);
    if (!is(to[i], -1)) continue;
    if (open) throw Unknown();
    open = i;
    to[i] = 1;
  }
  const SizeExpr elements = product(call.sizes(0));
  if (open) to[*open] = quotient(elements, product(to));
  if (!same(elements, product(to))) throw Unknown();
  call.give(std::move(to));
  keep_elements(call);
}

void flatten(OnnxCall& call) {
  const auto rank = static_cast<std::int64_t>(call.rank(0));
  std::int64_t axis = call.node.integer("axis", 1);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis > rank) throw Unknown();
  const std::span<const SizeExpr> sizes(call.sizes(0));
  call.give({product(sizes.first(static_cast<std::size_t>(axis))),
             product(sizes.subspan(static_cast<std::size_t>(axis)))});
}

void squeeze(OnnxCall& call) {
  const auto axes = call.list("axes", 1);
  std::vector<bool> gone(call.rank(0), false);
  if (axes) {
    for (const std::int64_t axis : *axes) gone[OnnxCall::dim_of(axis, call.rank(0))] = true;
  } else {
    for (std::size_t i = 0; i < gone.size(); ++i) gone[i] = is(call.size(0, i), 1);
  }
  Sizes result;
  for (std::size_t i = 0; i < gone.size(); ++i)
    if (!gone[i]) result.push_back(call.size(0, i));
  call.give(std::move(result));
  keep_elements(call);
}

void unsqueeze(OnnxCall& call) {
  const auto axes = call.list("axes", 1);
  if (!axes) throw Unknown();
  const std::size_t rank = call.rank(0) + axes->size();
  std::vector<bool> added(rank, false);
  for (const std::int64_t axis : *axes) added[OnnxCall::dim_of(axis, rank)] = true;
  Sizes result;
  std::size_t next = 0;
  for (std::size_t i = 0; i < rank; ++i) result.push_back(added[i] ? SizeExpr(1) : call.size(0, next++));
  call.give(std::move(result));
  keep_elements(call);
}

void concat(OnnxCall& call) {
  Sizes result = call.sizes(0);
  const std::size_t axis = call.axis(call.opset < 4 ? 1 : 0, result.size());
  std::optional<std::vector<SizeExpr>> elements = std::vector<SizeExpr>();
  for (std::size_t i = 0; i < call.input_count(); ++i) {
    if (call.rank(i) != result.size()) throw Unknown();
    if (i > 0) result[axis] = result[axis] + call.size(i, axis);
    if (result.size() != 1 || !call.in(i).integers) elements.reset();
    if (elements) elements->insert(elements->end(), call.in(i).integers->begin(), call.in(i).integers->end());
  }
  result[axis] = simplest(result[axis]);
  call.give(std::move(result));
  if (elements && elements->size() <= kMostOnnxConstants) call.outputs[0].integers = std::move(elements);
}

void split(OnnxCall& call) {
  const std::size_t axis = call.axis(0, call.rank(0));
  const auto parts = call.list("split", 1);
  const auto count = static_cast<std::int64_t>(call.outputs.size());
  const SizeExpr whole = call.size(0, axis);
  const SizeExpr each = parts ? SizeExpr(0) : simplest(floor_div(whole + (count - 1), count));
  std::size_t from = 0;
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    Sizes sizes = call.sizes(0);
    if (parts) {
      if (i >= parts->size() || (*parts)[i] < 0) throw Unknown();
      sizes[axis] = (*parts)[i];
    } else {
      sizes[axis] = i + 1 < call.outputs.size() ? each : simplest(whole - each * (count - 1));
    }
    const auto& known = call.in(0).integers;
    const auto length = sizes[axis].constant();
    if (known && call.rank(0) == 1 && length && from + static_cast<std::size_t>(*length) <= known->size()) {
      const auto begin = known->begin() + static_cast<std::ptrdiff_t>(from);
      call.outputs[i].integers.emplace(begin, begin + static_cast<std::ptrdiff_t>(*length));
      from += static_cast<std::size_t>(*length);
    }
    call.give(i, call.in(0).dtype, std::move(sizes));
  }
}

namespace {

// One dimension of a slice: where it begins, and how many elements it takes.
struct Cut {
  SizeExpr begin;
  SizeExpr length;
  std::int64_t step = 1;
};

// Elements of a tensor taken in another order: along dimension i of the result, `cuts[i]` of dimension
// `from[i]`. None where a size is not a plain number.
std::optional<Sizes> picked(const OnnxValue& value, const std::vector<Cut>& cuts,
                            const std::vector<std::size_t>& from) {
  if (!value.integers || value.integers->empty()) return std::nullopt;  // so no size is above their number
  std::vector<std::int64_t> strides(value.sizes.size(), 1);
  for (std::size_t i = value.sizes.size(); i-- > 1;) {
    if (!value.sizes[i].constant()) return std::nullopt;
    strides[i - 1] = strides[i] * *value.sizes[i].constant();
  }
  std::vector<std::int64_t> places{0};
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    if (!cuts[i].begin.constant() || !cuts[i].length.constant()) return std::nullopt;
    if (std::abs(cuts[i].step) > kMostOnnxConstants && *cuts[i].length.constant() > 1) return std::nullopt;
    if (*cuts[i].length.constant() > kMostOnnxConstants) return std::nullopt;
    std::vector<std::int64_t> next;
    for (const std::int64_t place : places) {
      for (std::int64_t k = 0; k < *cuts[i].length.constant(); ++k)
        next.push_back(place + (*cuts[i].begin.constant() + k * cuts[i].step) * strides[from[i]]);
    }
    places = std::move(next);
  }
  Sizes result;
  for (const std::int64_t place : places) {
    if (place < 0 || place >= static_cast<std::int64_t>(value.integers->size())) return std::nullopt;
    result.push_back((*value.integers)[static_cast<std::size_t>(place)]);
  }
  return result;
}

Cut cut(const SizeExpr& size, const SizeExpr& from, const SizeExpr& to, std::int64_t step) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;  // "to the end", in any exporter's words
  if (step == 0) throw Unknown();
  const auto place = [&](const SizeExpr& index, bool is_end) -> SizeExpr {
    const auto number = index.constant();
    if (!number) return same(index, size) ? size : min(index, size);
    if (*number >= kFar) return size;
    if (*number < -kFar) return is_end && step < 0 ? SizeExpr(-1) : SizeExpr(0);
    if (*number < 0) return max(simplest(size + *number), is_end && step < 0 ? -1 : 0);
    return size.constant() ? SizeExpr(std::min(*number, *size.constant()))
           : is_end        ? min(index, size)
                           : index;
  };
  SizeExpr begin = place(from, false);
  const SizeExpr end = place(to, true);
  if (step < 0) {
    if (same(begin, size)) begin = size - 1;
    const SizeExpr span = begin - end;
    return {simplest(begin), simplest(max(floor_div(span + (-step - 1), -step), 0)), step};
  }
  return {simplest(begin), simplest(max(floor_div(end - begin + (step - 1), step), 0)), step};
}

}  // namespace

void slice(OnnxCall& call) {
  const auto from_node = [&](const char* attribute, std::size_t input) -> std::optional<Sizes> {
    if (const auto given = call.node.integers(attribute)) return Sizes(given->begin(), given->end());
    if (!call.has(input)) return std::nullopt;
    return call.in(input).integers ? call.in(input).integers : throw Unknown();
  };
  const auto starts = from_node("starts", 1), ends = from_node("ends", 2);
  const auto axes = call.list("axes", 3), steps = call.list("steps", 4);
  if (!starts || !ends || starts->size() != ends->size()) throw Unknown();
  Sizes result = call.sizes(0);
  std::vector<Cut> cuts;
  for (const SizeExpr& size : result) cuts.push_back({0, size});
  for (std::size_t i = 0; i < starts->size(); ++i) {
    const std::int64_t named = axes && i < axes->size() ? (*axes)[i] : static_cast<std::int64_t>(i);
    const std::size_t dim = OnnxCall::dim_of(named, result.size());
    cuts[dim] =
        cut(call.size(0, dim), (*starts)[i], (*ends)[i], steps && i < steps->size() ? (*steps)[i] : 1);
    result[dim] = cuts[dim].length;
  }
  std::vector<std::size_t> order(result.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  call.give(std::move(result));
  call.outputs[0].integers = picked(call.in(0), cuts, order);
}

void transpose(OnnxCall& call) {
  const std::size_t rank = call.rank(0);
  std::vector<std::size_t> order(rank);
  for (std::size_t i = 0; i < rank; ++i) order[i] = rank - 1 - i;
  if (const auto given = call.node.integers("perm"); given && given->size() == rank)
    for (std::size_t i = 0; i < rank; ++i) order[i] = OnnxCall::dim_of((*given)[i], rank);
  Sizes result;
  std::vector<Cut> cuts;
  for (const std::size_t from : order) {
    result.push_back(call.size(0, from));
    cuts.push_back({0, result.back()});
  }
  call.give(std::move(result));
  call.outputs[0].integers = picked(call.in(0), cuts, order);
}

void gather(OnnxCall& call) {
  const std::size_t axis = call.axis(0, call.rank(0));
  Sizes result(call.sizes(0).begin(), call.sizes(0).begin() + static_cast<std::ptrdiff_t>(axis));
  result.insert(result.end(), call.sizes(1).begin(), call.sizes(1).end());
  result.insert(result.end(), call.sizes(0).begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                call.sizes(0).end());
  call.give(std::move(result));
  const auto& known = call.in(0).integers;
  const auto places = call.numbers(1);
  if (!known || call.rank(0) != 1 || !places) return;
  std::vector<SizeExpr> elements;
  for (const std::int64_t place : *places)
    elements.push_back((*known)[OnnxCall::dim_of(place, known->size())]);
  call.outputs[0].integers = std::move(elements);
}

void gather_elements(OnnxCall& call) {
  call.give(call.sizes(1));
}

void gather_nd(OnnxCall& call) {
  if (call.rank(1) == 0) throw Unknown();
  const auto depth = call.sizes(1).back().constant();
  const std::int64_t batch = call.node.integer("batch_dims", 0);
  if (!depth || batch < 0 || *depth < 0 || batch + *depth > static_cast<std::int64_t>(call.rank(0)))
    throw Unknown();
  Sizes result(call.sizes(1).begin(), call.sizes(1).end() - 1);
  result.insert(result.end(), call.sizes(0).begin() + (batch + *depth), call.sizes(0).end());
  call.give(std::move(result));
}

const Sizes& shape_input(const OnnxCall& call, std::size_t input) {
  const auto& known = call.in(input).integers;
  return known ? *known : throw Unknown();
}

void expand(OnnxCall& call) {
  call.give(broadcast(call.sizes(0), shape_input(call, 1)));
  const auto& known = call.in(0).integers;
  const auto count = product(call.outputs[0].sizes).constant();
  if (known && known->size() == 1 && count && *count <= kMostOnnxConstants)
    call.outputs[0].integers.emplace(static_cast<std::size_t>(*count), known->front());
}

void tile(OnnxCall& call) {
  Sizes result = call.sizes(0);
  const Sizes& times = shape_input(call, 1);
  if (times.size() != result.size()) throw Unknown();
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = simplest(result[i] * times[i]);
  call.give(std::move(result));
}

void pad(OnnxCall& call) {
  Sizes result = call.sizes(0);
  const auto pads = call.list("pads", 1), axes = call.list("axes", 3);
  if (!pads || pads->size() != 2 * (axes ? axes->size() : result.size())) throw Unknown();
  for (std::size_t i = 0; i < pads->size() / 2; ++i) {
    const std::size_t dim = axes ? OnnxCall::dim_of((*axes)[i], result.size()) : i;
    result[dim] = simplest(result[dim] + ((*pads)[i] + (*pads)[i + pads->size() / 2]));
  }
  call.give(std::move(result));
}

void resize(OnnxCall& call) {
  Sizes result = call.sizes(0);
  const bool upsample = call.node.type == "Upsample" || call.opset < 11;  // no region of interest then
  const auto axes = call.node.integers("axes");
  const auto dim = [&](std::size_t i) {
    return axes && i < axes->size() ? OnnxCall::dim_of((*axes)[i], result.size()) : i;
  };
  if (!upsample && call.has(3) && call.in(3).integers && !call.in(3).integers->empty()) {
    const Sizes& to = *call.in(3).integers;
    if (to.size() > result.size()) throw Unknown();
    for (std::size_t i = 0; i < to.size(); ++i) result[dim(i)] = to[i];
  } else {
    const OnnxAttribute* const older = call.node.find("scales");
    const std::size_t input = upsample ? 1 : 2;
    const std::vector<double> scales = older != nullptr                          ? older->reals
                                       : call.has(input) && call.in(input).reals ? *call.in(input).reals
                                                                                 : throw Unknown();
    if (scales.empty() || scales.size() > result.size()) throw Unknown();
    for (std::size_t i = 0; i < scales.size(); ++i) {
      SizeExpr& size = result[dim(i)];
      if (scales[i] == 1) continue;
      if (!size.constant() || !(scales[i] > 0 && scales[i] < 1e6)) throw Unknown();
      const double scaled = std::floor(static_cast<double>(*size.constant()) * scales[i]);
      if (!(scaled < 9e15)) throw Unknown();
      size = static_cast<std::int64_t>(scaled);
    }
  }
  call.give(std::move(result));
}

void blocks_to_space(OnnxCall& call) {
  const std::int64_t block = call.node.integer("blocksize", 0);
  if (block < 1 || call.rank(0) != 4) throw Unknown();
  const bool into_space = call.node.type == "DepthToSpace";
  const auto times = [&](const SizeExpr& size, std::int64_t factor, bool up) {
    return up ? simplest(size * factor) : quotient(size, factor);
  };
  call.give({call.size(0, 0), times(call.size(0, 1), block * block, !into_space),
             times(call.size(0, 2), block, into_space), times(call.size(0, 3), block, into_space)});
}

void shape(OnnxCall& call) {
  const auto rank = static_cast<std::int64_t>(call.rank(0));
  const auto place = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const std::int64_t begin = place(call.node.integer("start", 0)),
                     end = place(call.node.integer("end", rank));
  std::vector<SizeExpr> elements;
  for (std::int64_t i = begin; i < end; ++i) elements.push_back(call.size(0, static_cast<std::size_t>(i)));
  call.give(0, DType::kI64, {static_cast<std::int64_t>(elements.size())});
  call.outputs[0].integers = std::move(elements);
}

void size_of_all(OnnxCall& call) {
  call.give(0, DType::kI64, {});
  call.outputs[0].integers.emplace(1, product(call.sizes(0)));
}

}  // namespace espalier::onnx
