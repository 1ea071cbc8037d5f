#pragma once

// Zip archives and exported programs made by hand, for tests only.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/json.h"

namespace espalier {

// An archive as PyTorch writes it: stored entries under one root folder, sizes in the central directory only.
inline std::string make_zip(const std::vector<std::pair<std::string, std::string>>& entries,
                            const std::string& root = "model/") {
  std::string out, directory;
  const auto put = [](std::string& to, std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) to += static_cast<char>(i < 8 ? value >> 8 * i & 0xff : 0);
  };
  for (const auto& [short_name, data] : entries) {
    const std::string name = root + short_name;
    const std::size_t at = out.size();
    put(out, 0x04034b50, 4);
    put(out, 0, 2), put(out, 8, 2), put(out, 0, 2), put(out, 0, 4), put(out, 0, 12);
    put(out, name.size(), 2), put(out, 0, 2);
    out += name + data;
    put(out, 0x08074b50, 4), put(out, 0, 4), put(out, data.size(), 8);  // data descriptor
    put(directory, 0x02014b50, 4);
    put(directory, 0, 4), put(directory, 8, 2), put(directory, 0, 2), put(directory, 0, 4),
        put(directory, 0, 4);
    put(directory, data.size(), 4), put(directory, data.size(), 4), put(directory, name.size(), 2);
    put(directory, 0, 12), put(directory, at, 4);
    directory += name;
  }
  const std::size_t start = out.size();
  out += directory;
  put(out, 0x06054b50, 4), put(out, 0, 4), put(out, entries.size(), 2), put(out, entries.size(), 2);
  put(out, directory.size(), 4), put(out, start, 4), put(out, 0, 2);
  return out;
}

// A program in the making. Sizes are written as numbers; 0 stands for the batch, symbol s0. Types: 7 is f32,
// 5 is i64.
class TestProgram {
 public:
  using Sizes = std::vector<std::int64_t>;

  static Json meta(const Sizes& sizes, int dtype, bool grad = false) {
    Json json{{"dtype", dtype},
              {"sizes", Json::array()},
              {"requires_grad", grad},
              {"device", {{"type", "cpu"}, {"index", nullptr}}},
              {"strides", Json::array()},
              {"storage_offset", {{"as_int", 0}}},
              {"layout", 7}};
    std::int64_t stride = 1;
    std::vector<std::int64_t> strides(sizes.size());
    for (std::size_t i = sizes.size(); i-- > 0;) strides[i] = stride, stride *= sizes[i] == 0 ? 5 : sizes[i];
    for (const std::int64_t size : sizes)
      json["sizes"].push_back(size == 0 ? symbol("s0") : Json{{"as_int", size}});
    for (const std::int64_t s : strides) json["strides"].push_back({{"as_int", s}});
    return json;
  }
  static Json symbol(const std::string& name) {
    return {
        {"as_expr",
         {{"expr_str", "Symbol('" + name + "', positive=True, integer=True)"}, {"hint", {{"as_int", 5}}}}}};
  }
  static Json tensor(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }

  void value(const std::string& name, const Sizes& sizes, int dtype = 7, bool grad = false) {
    graph["tensor_values"][name] = meta(sizes, dtype, grad);
  }
  void input(const std::string& name, const Sizes& sizes, int dtype = 7) {
    value(name, sizes, dtype);
    input_specs.push_back({{"user_input", {{"arg", tensor(name)}}}});
  }
  void parameter(const std::string& name, const Sizes& sizes, const std::string& path = "") {
    value("p_" + name, sizes, 7, true);
    input_specs.push_back({{"parameter", {{"arg", {{"name", "p_" + name}}}, {"parameter_name", name}}}});
    store(name, sizes, 7, path);
  }
  void buffer(const std::string& name, const Sizes& sizes, int dtype = 7) {
    value("b_" + name, sizes, dtype);
    input_specs.push_back(
        {{"buffer", {{"arg", {{"name", "b_" + name}}}, {"buffer_name", name}, {"persistent", true}}}});
    store(name, sizes, dtype, "");
  }
  // arguments: name → the tagged value.
  Json& node(const std::string& target, const std::string& name,
             const std::vector<std::pair<std::string, Json>>& arguments, const Json& outputs) {
    Json node{
        {"target",
         target.starts_with("torch") || target.starts_with("_op") ? target : "torch.ops.aten." + target},
        {"inputs", Json::array()},
        {"outputs", outputs},
        {"metadata",
         {{"stack_trace", "File \"net.py\", line 7, in forward\n    y = f(x)\n"},
          {"nn_module_stack", "L__self__,,net.Net;L__self__a,a.b@1,torch.nn.Linear"}}},
        {"name", name}};
    for (const auto& [argument, value] : arguments)
      node["inputs"].push_back({{"name", argument}, {"arg", value}, {"kind", 1}});
    graph["nodes"].push_back(std::move(node));
    return graph["nodes"].back();
  }
  // A node with one tensor output of its own name.
  Json& op(const std::string& target, const std::string& name,
           const std::vector<std::pair<std::string, Json>>& arguments, const Sizes& sizes, int dtype = 7) {
    value(name, sizes, dtype);
    return node(target, name, arguments, Json::array({tensor(name)}));
  }
  void output(const std::string& name) { output_specs.push_back({{"user_output", {{"arg", tensor(name)}}}}); }

  std::string json() const {
    return Json{
        {"graph_module",
         {{"graph", graph}, {"signature", {{"input_specs", input_specs}, {"output_specs", output_specs}}}}},
        {"range_constraints", {{"s0", {{"min_val", 2}, {"max_val", 64}}}}},
        {"schema_version", {{"major", 8}, {"minor", 20}}}}
        .dump();
  }
  std::string archive() const {
    std::vector<std::pair<std::string, std::string>> entries{
        {"archive_format", "pt2"},
        {"archive_version", "0"},
        {"byteorder", "little"},
        {"models/model.json", json()},
        {"data/weights/model_weights_config.json", Json{{"config", weights}}.dump()}};
    for (const auto& [path, bytes] : data) entries.emplace_back("data/weights/" + path, bytes);
    entries.insert(entries.end(), more.begin(), more.end());
    return make_zip(entries);
  }

  Json graph{{"inputs", Json::array()},
             {"outputs", Json::array()},
             {"nodes", Json::array()},
             {"tensor_values", Json::object()},
             {"sym_int_values", Json::object()}};
  Json input_specs = Json::array(), output_specs = Json::array();
  Json weights = Json::object();
  std::map<std::string, std::string> data;
  std::vector<std::pair<std::string, std::string>> more;

 private:
  void store(const std::string& name, const Sizes& sizes, int dtype, const std::string& path) {
    const std::string entry = path.empty() ? "weight_" + std::to_string(weights.size()) : path;
    std::size_t bytes = dtype == 5 ? 8 : 4;
    for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
    weights[name] = {
        {"path_name", entry}, {"is_param", true}, {"use_pickle", false}, {"tensor_meta", meta(sizes, dtype)}};
    data.emplace(entry, std::string(bytes, '\0'));
  }
};

}  // namespace espalier
