#pragma once

// What tests of exported programs made by hand are written with.

#include <string>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/frontend/archive_for_tests.h"
#include "espalier/frontend/exported_program.h"

namespace espalier {

inline Json tensor(const std::string& name) {
  return TestProgram::tensor(name);
}
inline Json tensors(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names) list.push_back({{"name", name}});
  return {{"as_tensors", list}};
}
inline Json number(std::int64_t value) {
  return {{"as_int", value}};
}
inline Json real(double value) {
  return {{"as_float", value}};
}
inline Json truth(bool value) {
  return {{"as_bool", value}};
}

inline ExportedProgram read(const TestProgram& program, const ImportOptions& options = {}) {
  const std::string bytes = program.archive();
  return read_exported_program(bytes, "net.pt2", options);
}

inline ImportOptions without_loss() {
  ImportOptions options;
  options.loss_rule = LossRule::kOptional;
  return options;
}

inline const Operator& op(const Graph& graph, const std::string& name) {
  const auto id = graph.find_operator(name);
  if (!id) throw InputError("test: no operator " + name);
  return graph.op(*id);
}
inline const Tensor& value(const Graph& graph, const std::string& name) {
  for (const Tensor& t : graph.tensors()) {
    if (t.name == name) return t;
  }
  throw InputError("test: no tensor " + name);
}

// x[b,4] and w[4,4] → l = linear(x, w)
inline TestProgram linear() {
  TestProgram p;
  p.input("x", {0, 4});
  p.parameter("w", {4, 4});
  p.op("linear.default", "l", {{"input", tensor("x")}, {"weight", tensor("p_w")}}, {0, 4});
  return p;
}

}  // namespace espalier
