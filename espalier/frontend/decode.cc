#include "espalier/frontend/decode.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/frontend/srepr.h"

namespace espalier {

std::string one_line(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return result;
}

std::string quote(std::string_view text) {
  constexpr std::size_t kMost = 80;
  return "'" + one_line(text.substr(0, kMost)) + (text.size() > kMost ? "…'" : "'");
}

std::vector<TraceFrame> trace_frames(std::string_view trace) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ";
  std::vector<TraceFrame> frames;
  for (std::size_t at = 0; (at = trace.find(kFile, at)) != std::string_view::npos;) {
    at += kFile.size();
    const auto line = trace.find(kLine, at);
    if (line == std::string_view::npos) break;
    const std::string_view path = trace.substr(at, line - at);
    at = line + kLine.size();
    const auto end = std::min(trace.find_first_not_of("0123456789", at), trace.size());
    frames.push_back({path, trace.substr(at, end - at)});
  }
  return frames;
}

void ProgramPlace::fail(const std::string& problem) const {
  std::string where = file + ": ";
  if (!node.empty()) {
    where += "node " + quote(node);
    if (!source.empty()) where += " (" + source + ")";
    where += " ";
  } else if (!input.empty()) {
    where += "input " + quote(input) + " ";
  }
  throw InputError(where + problem);
}

const Json* find_member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

const Json& member(const Json& object, const char* key, const ProgramPlace& place) {
  const Json* const found = find_member(object, key);
  if (found == nullptr) place.fail(std::string("has no '") + key + "'");
  return *found;
}

const Json::array_t& list(const Json& object, const char* key, const ProgramPlace& place) {
  const Json& found = member(object, key, place);
  if (!found.is_array()) place.fail(std::string("has a '") + key + "' that is not a list");
  return found.get_ref<const Json::array_t&>();
}

std::string text(const Json& object, const char* key, const ProgramPlace& place) {
  const Json& found = member(object, key, place);
  if (!found.is_string()) place.fail(std::string("has a '") + key + "' that is not a string");
  return found.get<std::string>();
}

std::int64_t integer(const Json& value, const char* what, const ProgramPlace& place) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  if (!fits) place.fail(std::string("has ") + what + " that is not a 64-bit whole number");
  return value.get<std::int64_t>();
}

Tagged tagged(const Json& object, const char* what, const ProgramPlace& place) {
  if (!object.is_object() || object.size() != 1) {
    place.fail(std::string("has ") + what + " that is not an object with one key");
  }
  return {object.begin().key(), &*object.begin()};
}

std::optional<DType> dtype_of(std::int64_t serialized) {
  switch (serialized) {
    case 1:
      return DType::kU8;
    case 2:
      return DType::kI8;
    case 3:
      return DType::kI16;
    case 4:
      return DType::kI32;
    case 5:
      return DType::kI64;
    case 6:
      return DType::kF16;
    case 7:
      return DType::kF32;
    case 8:
      return DType::kF64;
    case 9:
      return DType::kC32;
    case 10:
      return DType::kC64;
    case 11:
      return DType::kC128;
    case 12:
      return DType::kBool;
    case 13:
      return DType::kBF16;
    case 28:
      return DType::kU16;
    case 29:
    case 30:
    case 31:
    case 32:
    case 33:
      return DType::kF8;
    case 34:
      return DType::kU32;
    case 35:
      return DType::kU64;
    default:
      return std::nullopt;
  }
}

SizeExpr SizeReader::read(const Json& value, const ProgramPlace& place) {
  const Tagged size = tagged(value, "a size", place);
  if (size.tag == "as_int") return integer(*size.value, "a size", place);
  if (size.tag != "as_expr")
    place.fail("has a size of kind " + quote(size.tag) + "; expected as_int or as_expr");
  const std::string expression = text(*size.value, "expr_str", place);
  if (const auto known = seen_.find(expression); known != seen_.end()) return known->second;
  for (const std::string& symbol : srepr_symbols(expression)) {
    if (symbol == batch_symbol) continue;
    if (symbol.starts_with('u')) {
      place.fail("depends on data (" + quote(symbol) +
                 " is known only when it runs), so its time and memory cannot be planned; " +
                 "give it a fixed size, with a mask or padding");
    }
    place.fail(
        "has a dynamic size " + quote(symbol) +
        " that is not the batch: export the model with the first dimension of its inputs dynamic, no other");
  }
  SizeExpr result;
  try {
    result = parse_srepr(expression, batch_symbol);
  } catch (const InputError& error) {  // only to say where it stands
    place.fail(std::string("has a ") + error.what());
  }
  seen_.emplace(expression, result);
  return result;
}

TensorMeta read_tensor_meta(const Json& json, SizeReader& sizes, const ProgramPlace& place) {
  TensorMeta meta;
  const std::int64_t serialized = integer(member(json, "dtype", place), "a dtype", place);
  const std::optional<DType> dtype = dtype_of(serialized);
  if (!dtype) place.fail("has a tensor of dtype " + std::to_string(serialized) + ", which is not supported");
  meta.dtype = *dtype;
  if (list(json, "sizes", place).size() > 64) place.fail("has a tensor with more than 64 dimensions");
  for (const Json& size : list(json, "sizes", place)) meta.sizes.push_back(sizes.read(size, place));
  for (const Json& stride : list(json, "strides", place)) meta.strides.push_back(sizes.read(stride, place));
  if (meta.strides.size() != meta.sizes.size())
    place.fail("has a tensor with fewer strides than sizes, or more");
  for (const SizeExpr& size : meta.sizes) {
    if (size.constant() && (*size.constant() < 0 || *size.constant() > std::int64_t{1} << 50)) {
      place.fail("has a tensor with a size of " + std::to_string(*size.constant()));
    }
  }
  meta.storage_offset = sizes.read(member(json, "storage_offset", place), place);
  const Json& grad = member(json, "requires_grad", place);
  if (!grad.is_boolean()) place.fail("has a 'requires_grad' that is neither true nor false");
  meta.requires_grad = grad.get<bool>();
  const std::int64_t layout = integer(member(json, "layout", place), "a layout", place);
  if (layout != 7)
    place.fail("has a sparse tensor (layout " + std::to_string(layout) + "), which is not supported");
  return meta;
}

}  // namespace espalier
