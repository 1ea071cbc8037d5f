// Graph as JSON. Tensors are named, not numbered, so that a person can edit the file.

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"

namespace espalier {
namespace {

constexpr std::array<std::string_view, 5> kRoles{"input", "parameter", "buffer", "constant", "activation"};
constexpr std::array<std::string_view, 3> kOperatorRoles{"forward", "backward", "update"};

template <std::size_t N>
std::size_t one_of(const JsonCursor& cursor, const std::array<std::string_view, N>& names) {
  const std::string& text = cursor.string();
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  std::string expected;
  for (const std::string_view name : names) expected += (expected.empty() ? "" : ", ") + std::string(name);
  cursor.fail("is '" + text.substr(0, 60) + "'; expected one of " + expected);
}

Json size_to_json(const SizeExpr& size) {
  if (const auto constant = size.constant()) return *constant;
  return size.text();
}

SizeExpr size_from_json(const JsonCursor& cursor) {
  constexpr std::int64_t kMax = std::int64_t{1} << 62;
  if (!cursor.json().is_string()) return cursor.integer(0, kMax);
  return cursor.parsed([](const std::string& text) { return parse_size_expr(text); });
}

Json names_to_json(const Graph& graph, std::span<const TensorId> ids) {
  Json names = Json::array();
  for (const TensorId id : ids) names.push_back(graph.tensor(id).name);
  return names;
}

Json parameter_to_json(const Parameter& p) {
  Json json = {{"names", p.names}, {"dtype", to_text(p.dtype)}, {"sizes", p.sizes}};
  if (!p.trainable) json["trainable"] = false;
  if (!p.persistent) json["persistent"] = false;
  return json;
}

Json tensor_to_json(const Graph& graph, const Tensor& t, std::size_t new_storage) {
  Json sizes = Json::array();
  for (const SizeExpr& size : t.sizes) sizes.push_back(size_to_json(size));
  Json json = {{"name", t.name}};
  if (t.role != TensorRole::kActivation) json["role"] = kRoles[static_cast<std::size_t>(t.role)];
  json["dtype"] = to_text(t.dtype);
  json["sizes"] = std::move(sizes);
  if (t.requires_grad) json["requires_grad"] = true;
  if (t.storage.index() != new_storage) json["storage"] = t.storage.index();
  if (t.parameter) json["parameter"] = graph.parameter(*t.parameter).names[0];
  if (t.gradient_of) json["gradient_of"] = graph.tensor(*t.gradient_of).name;
  return json;
}

Json operator_to_json(const Graph& graph, const Operator& op) {
  Json json = {{"name", op.name}, {"target", op.target}};
  if (op.role != OperatorRole::kForward) json["role"] = kOperatorRoles[static_cast<std::size_t>(op.role)];
  json["inputs"] = names_to_json(graph, op.inputs);
  json["outputs"] = names_to_json(graph, op.outputs);
  if (!op.mutates.empty()) json["mutates"] = names_to_json(graph, op.mutates);
  if (!op.module_path.empty()) json["module"] = op.module_path;
  if (!op.source.empty()) json["source"] = op.source;
  json["class"] = op.op_class;
  if (op.colocation) json["colocation"] = *op.colocation;
  if (op.duplicable) json["duplicable"] = true;
  if (op.random) json["random"] = true;
  if (op.mixes_samples) json["mixes_samples"] = true;
  if (!op.known) json["known"] = false;
  return json;
}

class GraphJsonReader {
 public:
  GraphJsonReader(const Json& json, const std::string& where) : root_(json, where) {}

  Graph read() {
    root_.expect_format("espalier.graph/1");
    root_.only({"format", "name", "batch", "mode", "parameters", "tensors", "operators", "outputs", "loss"});
    if (root_.has("name")) parts_.name = root_.at("name").string();
    constexpr std::array<std::string_view, 2> kModes{"train", "eval"};
    if (root_.has("mode")) parts_.training_mode = one_of(root_.at("mode"), kModes) == 0;
    read_batch(root_.at("batch"));
    each("parameters", [&](const JsonCursor& cursor) { read_parameter(cursor); });
    reserve("tensors", tensors_);
    reserve("tensors", parts_.tensors);
    each("tensors", [&](const JsonCursor& cursor) { read_tensor(cursor); });
    reserve("operators", parts_.operators);
    each("operators", [&](const JsonCursor& cursor) { read_operator(cursor); });
    parts_.outputs = tensor_list(root_.at("outputs"));
    if (root_.has("loss")) parts_.loss = tensor(root_.at("loss"));
    try {
      return Graph(with_colocation(std::move(parts_)));
    } catch (const InputError& error) {
      root_.fail(error.what());
    }
  }

 private:
  template <class F>
  void each(const char* key, F read_one) {
    if (!root_.has(key)) return;
    const JsonCursor list = root_.at(key);
    for (std::size_t i = 0; i < list.size(); ++i) read_one(list.at(i));
  }

  template <class Container>
  void reserve(const char* key, Container& container) const {
    if (root_.has(key)) container.reserve(root_.at(key).size());
  }

  void read_batch(const JsonCursor& cursor) {
    if (cursor.size() != 2) cursor.fail("expected [min, max]");
    parts_.batch.min = BatchSize(cursor.at(std::size_t{0}).integer(1, std::int64_t{1} << 40));
    parts_.batch.max = BatchSize(cursor.at(std::size_t{1}).integer(1, std::int64_t{1} << 40));
  }

  void read_parameter(const JsonCursor& cursor) {
    cursor.only({"names", "dtype", "sizes", "trainable", "persistent"});
    Parameter p;
    const JsonCursor names = cursor.at("names");
    for (std::size_t i = 0; i < names.size(); ++i) p.names.push_back(names.at(i).string());
    p.dtype = dtype(cursor);
    const JsonCursor sizes = cursor.at("sizes");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      p.sizes.push_back(sizes.at(i).integer(0, std::int64_t{1} << 62));
    }
    if (cursor.has("trainable")) p.trainable = cursor.at("trainable").boolean();
    if (cursor.has("persistent")) p.persistent = cursor.at("persistent").boolean();
    for (const std::string& name : p.names) parameters_.emplace(name, ParameterId(parts_.parameters.size()));
    parts_.parameters.push_back(std::move(p));
  }

  void read_tensor(const JsonCursor& cursor) {
    cursor.only({"name", "role", "dtype", "sizes", "requires_grad", "storage", "parameter", "gradient_of"});
    Tensor t;
    t.name = cursor.at("name").string();
    if (cursor.has("role")) t.role = static_cast<TensorRole>(one_of(cursor.at("role"), kRoles));
    t.dtype = dtype(cursor);
    const JsonCursor sizes = cursor.at("sizes");
    for (std::size_t i = 0; i < sizes.size(); ++i) t.sizes.push_back(size_from_json(sizes.at(i)));
    if (cursor.has("requires_grad")) t.requires_grad = cursor.at("requires_grad").boolean();
    t.storage = StorageId(storages_);
    if (cursor.has("storage")) {
      t.storage = StorageId(
          static_cast<std::size_t>(cursor.at("storage").integer(0, static_cast<std::int64_t>(storages_))));
    }
    storages_ = std::max(storages_, t.storage.index() + 1);
    if (cursor.has("parameter")) {
      const JsonCursor name = cursor.at("parameter");
      const auto found = parameters_.find(name.string());
      if (found == parameters_.end()) name.fail("is no parameter of this graph");
      t.parameter = found->second;
    }
    if (cursor.has("gradient_of")) t.gradient_of = tensor(cursor.at("gradient_of"));
    tensors_.emplace(cursor.at("name").string(), TensorId(parts_.tensors.size()));
    parts_.tensors.push_back(std::move(t));
  }

  void read_operator(const JsonCursor& cursor) {
    cursor.only({"name", "target", "role", "inputs", "outputs", "mutates", "module", "source", "class",
                 "colocation", "duplicable", "random", "mixes_samples", "known"});
    Operator op;
    op.name = cursor.at("name").string();
    op.target = cursor.at("target").string();
    if (cursor.has("role")) op.role = static_cast<OperatorRole>(one_of(cursor.at("role"), kOperatorRoles));
    op.inputs = tensor_list(cursor.at("inputs"));
    op.outputs = tensor_list(cursor.at("outputs"));
    for (const TensorId id : op.outputs) {
      auto& producer = parts_.tensors[id.index()].producer;
      if (producer)
        cursor.at("outputs").fail("tensor '" + parts_.tensors[id.index()].name + "' is produced twice");
      producer = OperatorId(parts_.operators.size());
    }
    if (cursor.has("mutates")) op.mutates = tensor_list(cursor.at("mutates"));
    if (cursor.has("module")) op.module_path = cursor.at("module").string();
    if (cursor.has("source")) op.source = cursor.at("source").string();
    op.op_class = cursor.has("class") ? cursor.at("class").string() : default_op_class(op, parts_.tensors);
    if (cursor.has("colocation")) {
      op.colocation = static_cast<std::uint32_t>(cursor.at("colocation").integer(0, UINT32_MAX));
    }
    const auto flag = [&](const char* key, bool& value) {
      if (cursor.has(key)) value = cursor.at(key).boolean();
    };
    flag("duplicable", op.duplicable);
    flag("random", op.random);
    flag("mixes_samples", op.mixes_samples);
    flag("known", op.known);
    parts_.operators.push_back(std::move(op));
  }

  static DType dtype(const JsonCursor& cursor) {
    const JsonCursor at = cursor.at("dtype");
    const auto found = parse_dtype(at.string());
    if (!found) at.fail("is no element type: expected such as f32, bf16, i64, bool");
    return *found;
  }
  TensorId tensor(const JsonCursor& cursor) const {
    const auto found = tensors_.find(cursor.string());
    if (found == tensors_.end())
      cursor.fail("'" + cursor.string().substr(0, 80) + "' is no tensor of this graph");
    return found->second;
  }
  std::vector<TensorId> tensor_list(const JsonCursor& cursor) const {
    std::vector<TensorId> ids;
    for (std::size_t i = 0; i < cursor.size(); ++i) ids.push_back(tensor(cursor.at(i)));
    return ids;
  }

  JsonCursor root_;
  GraphParts parts_;
  std::unordered_map<std::string_view, TensorId> tensors_;  // by the document's own names
  std::unordered_map<std::string, ParameterId> parameters_;
  std::size_t storages_ = 0;
};

}  // namespace

Json graph_to_json(const Graph& graph) {
  Json json;
  json["format"] = "espalier.graph/1";
  json["name"] = graph.name();
  json["batch"] = {graph.batch().min.count(), graph.batch().max.count()};
  json["mode"] = graph.training_mode() ? "train" : "eval";
  Json parameters = Json::array();
  for (const Parameter& p : graph.parameters()) parameters.push_back(parameter_to_json(p));
  Json tensors = Json::array();
  std::size_t storages = 0;
  for (const Tensor& t : graph.tensors()) {
    tensors.push_back(tensor_to_json(graph, t, storages));
    storages = std::max(storages, t.storage.index() + 1);
  }
  Json operators = Json::array();
  for (const Operator& op : graph.operators()) operators.push_back(operator_to_json(graph, op));
  json["parameters"] = std::move(parameters);
  json["tensors"] = std::move(tensors);
  json["operators"] = std::move(operators);
  json["outputs"] = names_to_json(graph, graph.outputs());
  if (graph.loss()) json["loss"] = graph.tensor(*graph.loss()).name;
  return json;
}

Graph graph_from_json(const Json& json, const std::string& where) {
  return GraphJsonReader(json, where).read();
}

}  // namespace espalier
