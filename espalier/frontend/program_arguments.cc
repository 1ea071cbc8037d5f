#include "espalier/frontend/program_arguments.h"

#include <limits>
#include <optional>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/frontend/libtorch_operators.h"

namespace espalier {
namespace {

std::unordered_map<std::string, const Json*> index_members(const Json& graph, const char* key) {
  std::unordered_map<std::string, const Json*> result;
  const Json* const table = find_member(graph, key);
  if (table == nullptr || !table->is_object()) return result;
  for (auto it = table->begin(); it != table->end(); ++it) result.emplace(it.key(), &it.value());
  return result;
}

template <class T, class F>
std::vector<T> each(const ProgramPlace& place, const Json& values, F&& read) {
  if (!values.is_array()) place.fail("has a list argument that is not a list");
  std::vector<T> result;
  result.reserve(values.size());
  for (const Json& value : values) result.push_back(read(value));
  return result;
}

}  // namespace

ProgramScope::ProgramScope(const Json& of)
    : graph(&of),
      tensor_values(index_members(of, "tensor_values")),
      sym_ints(index_members(of, "sym_int_values")),
      sym_bools(index_members(of, "sym_bool_values")),
      sym_floats(index_members(of, "sym_float_values")) {}

TensorId tensor_of(const ProgramScope& scope, const std::string& name, const ProgramPlace& place) {
  const auto found = scope.tensors.find(name);
  if (found == scope.tensors.end()) {
    place.fail("reads tensor " + quote(name) + ", which nothing before it defines");
  }
  return found->second;
}

TensorId ArgumentReader::tensor(const Json& value) const {
  return tensor_of(scope_, text(value, "name", place_), place_);
}

SizeExpr ArgumentReader::sym_int(const Json& value) const {
  if (const Json* const constant = find_member(value, "as_int"))
    return integer(*constant, "a number", place_);
  const std::string name = text(value, "as_name", place_);
  const auto known = scope_.sym_ints.find(name);
  if (known == scope_.sym_ints.end())
    place_.fail("uses the number " + quote(name) + ", which is not defined");
  return sizes_.read(*known->second, place_);
}

double ArgumentReader::real(const Json& value) const {
  if (value.is_number()) return value.get<double>();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  place_.fail("has an argument that is not a number");
}

bool ArgumentReader::boolean(const Json& value) const {
  if (!value.is_boolean()) place_.fail("has an argument that is neither true nor false");
  return value.get<bool>();
}

// A number or truth value computed by the program must be a constant: only sizes follow the batch.
const Json& ArgumentReader::constant(const Json& value, const char* key,
                                     const std::unordered_map<std::string, const Json*>& table) const {
  if (const Json* const given = find_member(value, key)) return *given;
  const std::string name = text(value, "as_name", place_);
  const auto known = table.find(name);
  const Json* const given = known == table.end() ? nullptr : find_member(*known->second, key);
  if (given == nullptr) {
    place_.fail("uses " + quote(name) +
                ", a number that varies with the batch and is not a size; compute it with tensors");
  }
  return *given;
}

ArgumentValue ArgumentReader::read(const Json& json) const {
  const Tagged argument = tagged(json, "an argument", place_);
  const std::string& tag = argument.tag;
  const Json& value = *argument.value;
  if (tag == "as_none") return NoArgument();
  if (tag == "as_tensor") return tensor(value);
  if (tag == "as_tensors")
    return each<OptionalTensor>(place_, value, [&](const Json& v) { return tensor(v); });
  if (tag == "as_optional_tensor" || tag == "as_optional_tensors") return read_optional(tag, value);
  if (tag == "as_int") return SizeExpr(integer(value, "a number", place_));
  if (tag == "as_sym_int") return sym_int(value);
  if (tag == "as_ints") {
    return each<SizeExpr>(place_, value,
                          [&](const Json& v) { return SizeExpr(integer(v, "a number", place_)); });
  }
  if (tag == "as_sym_ints") return each<SizeExpr>(place_, value, [&](const Json& v) { return sym_int(v); });
  if (tag == "as_float") return real(value);
  if (tag == "as_floats") return each<double>(place_, value, [&](const Json& v) { return real(v); });
  if (tag == "as_sym_float") return real(constant(value, "as_float", scope_.sym_floats));
  if (tag == "as_sym_floats") {
    return each<double>(place_, value,
                        [&](const Json& v) { return real(constant(v, "as_float", scope_.sym_floats)); });
  }
  if (tag == "as_bool") return boolean(value);
  if (tag == "as_bools") {
    const auto bools =
        each<char>(place_, value, [&](const Json& v) { return static_cast<char>(boolean(v)); });
    return std::vector<bool>(bools.begin(), bools.end());
  }
  if (tag == "as_sym_bool") return boolean(constant(value, "as_bool", scope_.sym_bools));
  if (tag == "as_string") {
    if (!value.is_string()) place_.fail("has a string argument that is not a string");
    return value.get<std::string>();
  }
  return read_enumeration(tag, value);
}

ArgumentValue ArgumentReader::read_optional(const std::string& tag, const Json& value) const {
  const auto one = [&](const Json& v) -> OptionalTensor {
    if (find_member(v, "as_none") != nullptr) return std::nullopt;
    return tensor(member(v, "as_tensor", place_));
  };
  if (tag == "as_optional_tensors") return each<OptionalTensor>(place_, value, one);
  const OptionalTensor given = one(value);
  return given ? ArgumentValue(*given) : ArgumentValue(NoArgument());
}

ArgumentValue ArgumentReader::read_enumeration(const std::string& tag, const Json& value) const {
  if (tag == "as_device") return DeviceArgument();
  if (tag == "as_scalar_type") {
    const std::int64_t number = integer(value, "a dtype", place_);
    const std::optional<DType> dtype = dtype_of(number);
    if (!dtype) place_.fail("has dtype " + std::to_string(number) + ", which is not supported");
    return *dtype;
  }
  if (tag == "as_layout") {
    if (integer(value, "a layout", place_) != 7) place_.fail("makes a sparse tensor, which is not supported");
    return LayoutArgument::kStrided;
  }
  if (tag == "as_memory_format") {
    switch (integer(value, "a memory format", place_)) {
      case 1:
        return MemoryFormatArgument::kContiguous;
      case 2:
        return MemoryFormatArgument::kChannelsLast;
      case 3:
        return MemoryFormatArgument::kChannelsLast3d;
      case 4:
        return MemoryFormatArgument::kPreserve;
      default:
        place_.fail("has an unknown memory format");
    }
  }
  if (tag == "as_custom_obj") {
    place_.fail("reads a custom object, which cannot be planned or sent; replace it by tensors");
  }
  place_.fail("has an argument of kind " + quote(tag) + ", which is not supported");
}

}  // namespace espalier
