#pragma once

// Arguments of an exported program's calls: what a node's JSON says, as values. Internal to the frontend.

#include <string>
#include <unordered_map>

#include "espalier/base/json.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/exported_program.h"

namespace espalier {

// The names that one graph (the program's, or a sub-graph's) can see. Refers to the graph.
struct ProgramScope {
  explicit ProgramScope(const Json& of);

  const Json* graph = nullptr;
  std::unordered_map<std::string, TensorId> tensors;
  std::unordered_map<std::string, const Json*> tensor_values, sym_ints, sym_bools, sym_floats;
};

// Throws InputError at the place if nothing before it defines the tensor.
TensorId tensor_of(const ProgramScope& scope, const std::string& name, const ProgramPlace& place);

// Refers to all of them. Throws InputError at the place for what is not supported.
class ArgumentReader {
 public:
  ArgumentReader(const ProgramScope& scope, SizeReader& sizes, const ProgramPlace& place)
      : scope_(scope), sizes_(sizes), place_(place) {}

  // {"as_tensor": {"name": …}}, {"as_ints": […]} and their kin.
  ArgumentValue read(const Json& json) const;
  // {"as_int": 8} or {"as_name": "sym_size"}.
  SizeExpr sym_int(const Json& value) const;

 private:
  TensorId tensor(const Json& value) const;
  double real(const Json& value) const;
  bool boolean(const Json& value) const;
  const Json& constant(const Json& value, const char* key,
                       const std::unordered_map<std::string, const Json*>& table) const;
  ArgumentValue read_optional(const std::string& tag, const Json& value) const;
  ArgumentValue read_enumeration(const std::string& tag, const Json& value) const;

  const ProgramScope& scope_;
  SizeReader& sizes_;
  const ProgramPlace& place_;
};

}  // namespace espalier
