#include "espalier/graph/text.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/base/words.h"
#include "espalier/graph/text_defaults.h"

namespace espalier {
namespace {

constexpr std::array<std::string_view, 18> kAttributes{
    "view",     "inplace",    "shares", "mutates", "name",    "module", "source", "backward", "update",
    "colocate", "duplicable", "random", "mixes",   "unknown", "grad",   "nograd", "class",    "gradient_of"};

bool is_source(const Word& word) {
  return !word.quoted && std::find(kTextSources.begin(), kTextSources.end(), word.text) != kTextSources.end();
}

struct Type {
  DType dtype = DType::kF32;
  std::vector<SizeExpr> sizes;
};

// One line, cut into its parts.
struct Line {
  std::vector<std::string> outputs;
  Word target;
  std::vector<std::vector<Word>> arguments;  // words between the commas
  std::optional<std::vector<Type>> types;
  std::map<std::string, std::optional<std::vector<Word>>, std::less<>> attributes;

  bool has(std::string_view attribute) const { return attributes.find(attribute) != attributes.end(); }
};

class LineReader {
 public:
  explicit LineReader(const std::vector<Word>& words) : words_(words) {}

  Line read() {
    Line line;
    if (words_.size() > 1 && !words_[1].is("(")) {
      line.outputs.push_back(name());
      while (take(",")) line.outputs.push_back(name());
      expect("=", "behind the outputs");
    }
    if (at_ == words_.size()) throw InputError("expected target(inputs) behind '='");
    line.target = words_[at_++];
    expect("(", "behind the target '" + line.target.text + "'");
    if (!take(")")) {
      do {
        line.arguments.push_back(argument());
      } while (take(","));
      expect(")", "behind the inputs");
    }
    if (take(":")) {
      line.types.emplace();
      do {
        line.types->push_back(type());
      } while (take(","));
    }
    while (take("@")) attribute(line);
    if (at_ < words_.size()) throw InputError("'" + words_[at_].text + "' is not expected here");
    return line;
  }

 private:
  bool take(std::string_view syntax) {
    if (at_ == words_.size() || !words_[at_].is(syntax)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view syntax, const std::string& place) {
    if (!take(syntax)) throw InputError("expected '" + std::string(syntax) + "' " + place);
  }
  bool at_name() const {
    return at_ < words_.size() &&
           (words_[at_].quoted || kTextPunctuation.find(words_[at_].text[0]) == std::string_view::npos);
  }
  std::string name() {
    if (!at_name()) {
      throw InputError("expected a name" +
                       (at_ < words_.size() ? ", found '" + words_[at_].text + "'" : std::string()));
    }
    return words_[at_++].text;
  }
  std::vector<Word> argument() {
    std::vector<Word> result;
    while (at_ < words_.size() && (at_name() || words_[at_].is("="))) result.push_back(words_[at_++]);
    if (result.empty()) throw InputError("an input is missing between commas");
    return result;
  }
  Type type() {
    Type result;
    const std::string text = name();
    const auto dtype = parse_dtype(text);
    if (!dtype)
      throw InputError("'" + text + "' is not an element type: expected such as f32, bf16, i64, bool");
    result.dtype = *dtype;
    expect("[", "behind '" + text + "': a type is written f32[b,16]");
    if (take("]")) return result;
    std::string size;
    int depth = 0;
    for (; at_ < words_.size(); ++at_) {
      const Word& word = words_[at_];
      if (word.is("]")) break;
      if (word.is(",") && depth == 0) {
        result.sizes.push_back(parse_size_expr(size));
        size.clear();
        continue;
      }
      depth += word.is("(") ? 1 : word.is(")") ? -1 : 0;
      size += word.text;
    }
    expect("]", "at the end of a type");
    result.sizes.push_back(parse_size_expr(size));
    return result;
  }
  void attribute(Line& line) {
    const std::string key = name();
    if (std::find(kAttributes.begin(), kAttributes.end(), key) == kAttributes.end()) {
      throw InputError("'@" + key + "' is not known; did you mean '@" +
                       std::string(*nearest_word(key, kAttributes)) + "'?");
    }
    std::optional<std::vector<Word>> value;
    if (take("=")) {
      value.emplace();
      while (at_ < words_.size() && !words_[at_].is("@")) value->push_back(words_[at_++]);
      if (value->empty()) throw InputError("'@" + key + "=' has no value");
    }
    if (!line.attributes.emplace(key, std::move(value)).second)
      throw InputError("'@" + key + "' stands twice");
  }

  const std::vector<Word>& words_;
  std::size_t at_ = 0;
};

class GraphReader {
 public:
  Graph read(std::string_view text) {
    parts_.batch = {BatchSize(1), BatchSize(1024)};
    const auto lines = split_lines(text, kTextPunctuation);
    training_ =
        std::any_of(lines.begin(), lines.end(), [](const auto& line) { return has_role(line.second); });
    for (const auto& [number, words] : lines) {
      try {
        read_line(words);
      } catch (const InputError& error) {
        throw InputError("line " + std::to_string(number) + ": " + error.what());
      }
    }
    if (!outputs_given_) parts_.outputs = derived_outputs(parts_);
    if (!loss_given_) parts_.loss = derived_loss(parts_.tensors, parts_.outputs);
    return Graph(with_colocation(std::move(parts_)));
  }

 private:
  static bool has_role(const std::vector<Word>& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (words[i - 1].is("@") && (words[i].is("backward") || words[i].is("update"))) return true;
    }
    return false;
  }

  void read_line(const std::vector<Word>& words) {
    const bool assignment = words.size() > 1 && (words[1].is("=") || words[1].is(",") || words[1].is("("));
    if (!assignment) return read_setting(words);
    const Line line = LineReader(words).read();
    if (is_source(line.target)) {
      read_source(line);
    } else {
      read_operator(line);
    }
  }

  void read_setting(const std::vector<Word>& words) {
    const Word& key = words[0];
    const auto one = [&]() -> const std::string& {
      if (words.size() != 2) throw InputError("expected one word behind '" + key.text + "'");
      return words[1].text;
    };
    if (key.is("graph")) {
      parts_.name = one();
    } else if (key.is("batch")) {
      read_batch(one());
    } else if (key.is("mode")) {
      if (one() != "train" && one() != "eval")
        throw InputError("'mode' is train or eval, not '" + one() + "'");
      parts_.training_mode = one() == "train";
    } else if (key.is("loss")) {
      parts_.loss = tensor(one());
      loss_given_ = true;
    } else if (key.is("no") && words.size() == 2 && words[1].is("loss")) {
      loss_given_ = true;
    } else if (key.is("return")) {
      outputs_given_ = true;
      for (std::size_t i = 1; i < words.size(); ++i) {
        if (i % 2 == 0 && !words[i].is(",")) throw InputError("expected ',' between outputs");
        if (i % 2 == 1) parts_.outputs.push_back(tensor(words[i].text));
      }
    } else {
      throw InputError(
          "'" + key.text +
          "' begins no line: expected `name = target(inputs)`, graph, batch, mode, loss or return");
    }
  }

  void read_batch(const std::string& text) {
    const std::size_t dots = text.find("..");
    const auto number = [](const std::string& part) {
      return BatchSize(parse_integer(part, 1, std::int64_t{1} << 40));
    };
    parts_.batch.min = number(text.substr(0, dots));
    parts_.batch.max = dots == std::string::npos ? parts_.batch.min : number(text.substr(dots + 2));
  }

  TensorId tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw InputError("'" + name + "' is not defined above");
    return found->second;
  }

  std::vector<TensorId> tensor_list(const std::vector<Word>& words) const {
    std::vector<TensorId> ids;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i % 2 == 1 && !words[i].is(",")) throw InputError("expected ',' between names");
      if (i % 2 == 0) ids.push_back(tensor(words[i].text));
    }
    return ids;
  }

  void add_tensor(Tensor tensor) {
    if (!tensors_.emplace(tensor.name, TensorId(parts_.tensors.size())).second) {
      throw InputError("tensor '" + tensor.name + "' is defined twice");
    }
    parts_.tensors.push_back(std::move(tensor));
  }
  StorageId new_storage() { return StorageId(storages_++); }

  // input(), constant(), parameter(…), buffer(…)
  void read_source(const Line& line) {
    const std::string& call = line.target.text;
    const bool stored = call == "parameter" || call == "buffer";
    if (line.types && line.types->size() != 1) throw InputError("expected one type");
    std::optional<ParameterId> parameter;
    if (stored) {
      parameter = read_parameter(line);
    } else if (!line.arguments.empty()) {
      throw InputError(call + "() takes nothing");
    }
    for (const auto& [key, value] : line.attributes) {
      if (key != "shares" && key != "grad" && key != "nograd" && key != "gradient_of")
        throw InputError("'@" + key + "' is for operators");
    }
    if (line.outputs.empty() && stored) return;
    if (line.outputs.size() != 1) throw InputError(call + "() gives one tensor");

    Tensor t;
    t.name = line.outputs[0];
    t.role = call == "input"       ? TensorRole::kInput
             : call == "parameter" ? TensorRole::kParameter
             : call == "buffer"    ? TensorRole::kBuffer
                                   : TensorRole::kConstant;
    t.parameter = parameter;
    if (line.types || !stored) {
      const Type type = line.types ? line.types->front() : Type{DType::kF32, {SizeExpr::batch()}};
      t.dtype = type.dtype;
      t.sizes = type.sizes;
    } else {
      const Parameter& p = parts_.parameters[parameter->index()];
      t.dtype = p.dtype;
      t.sizes.assign(p.sizes.begin(), p.sizes.end());
    }
    const std::optional<StorageId> known =
        parameter ? storage_of_parameter_[parameter->index()] : std::nullopt;
    if (line.has("shares")) {
      t.storage = parts_.tensors[only_pair(line, "shares", t.name).index()].storage;
    } else {
      t.storage = known ? *known : new_storage();
    }
    if (parameter) storage_of_parameter_[parameter->index()] = t.storage;
    t.requires_grad =
        (derived_gradient(t, parts_.parameters, training_) || line.has("grad")) && !line.has("nograd");
    if (line.has("gradient_of")) t.gradient_of = only_pair(line, "gradient_of", t.name);
    add_tensor(std::move(t));
  }

  // The other tensor of "@key=name:other".
  TensorId only_pair(const Line& line, const std::string& key, const std::string& name) const {
    const auto& value = line.attributes.find(key)->second;
    const bool pair = value && value->size() == 3 && (*value)[1].is(":") && (*value)[0].text == name;
    if (!pair) throw InputError("expected @" + key + "=" + name + ":other");
    return tensor((*value)[2].text);
  }

  ParameterId read_parameter(const Line& line) {
    if (line.arguments.empty() || line.arguments[0].size() != 1) {
      throw InputError(line.target.text + "(…) needs a name");
    }
    const std::string& name = line.arguments[0][0].text;
    if (const auto found = parameters_.find(name); found != parameters_.end()) {
      if (line.arguments.size() > 1) throw InputError("'" + name + "' was described above");
      return found->second;
    }
    const ParameterId id(parts_.parameters.size());
    Parameter p;
    p.names = {name};
    p.trainable = line.target.text == "parameter";
    for (std::size_t i = 1; i < line.arguments.size(); ++i) {
      const std::vector<Word>& words = line.arguments[i];
      if (words.size() == 3 && words[0].is("tied") && words[1].is("=")) {
        p.names.push_back(words[2].text);
      } else if (words.size() == 1 && words[0].is("frozen")) {
        p.trainable = false;
      } else if (words.size() == 1 && words[0].is("nonpersistent")) {
        p.persistent = false;
      } else {
        throw InputError("'" + words[0].text + "' is not known: expected tied=name, frozen or nonpersistent");
      }
    }
    const Type type = line.types ? line.types->front() : Type{DType::kF32, {1}};
    p.dtype = type.dtype;
    for (const SizeExpr& size : type.sizes) {
      if (!size.constant()) throw InputError("parameter '" + name + "' has a size that depends on the batch");
      p.sizes.push_back(*size.constant());
    }
    for (const std::string& n : p.names) {
      if (!parameters_.emplace(n, id).second) throw InputError("parameter '" + n + "' stands twice");
    }
    parts_.parameters.push_back(std::move(p));
    storage_of_parameter_.emplace_back();
    return id;
  }

  void read_operator(const Line& line) {
    Operator op;
    op.target = line.target.text;
    for (const std::vector<Word>& words : line.arguments) {
      if (words.size() != 1)
        throw InputError("expected one name between commas, found '" + words[1].text + "' too");
      op.inputs.push_back(tensor(words[0].text));
    }
    const OperatorId id(parts_.operators.size());
    if (line.types && line.types->size() != line.outputs.size()) {
      throw InputError("expected as many types as outputs");
    }
    const bool alias = line.has("view") || line.has("inplace");
    if (alias && op.inputs.empty()) throw InputError("a view needs an input");
    read_flags(line, op);
    for (std::size_t i = 0; i < line.outputs.size(); ++i) {
      Tensor t;
      t.name = line.outputs[i];
      t.producer = id;
      if (line.types) {
        t.dtype = (*line.types)[i].dtype;
        t.sizes = (*line.types)[i].sizes;
      } else if (alias) {
        t.dtype = first_input(op).dtype;
        t.sizes = first_input(op).sizes;
      } else if (t.name != "loss") {
        t.sizes = {SizeExpr::batch()};
      }
      t.requires_grad = derived_gradient(op, t, parts_.tensors);
      t.storage = StorageId(parts_.tensors.size());  // set below, once all outputs have names
      op.outputs.emplace_back(parts_.tensors.size());
      add_tensor(std::move(t));
    }
    set_storages(line, op);
    set_gradients(line, op);
    if (line.has("mutates")) op.mutates = tensor_list(list(line, "mutates"));
    if (line.has("inplace")) op.mutates.insert(op.mutates.begin(), op.inputs[0]);
    op.name = line.has("name") ? text(line, "name") : line.outputs.empty() ? "" : line.outputs[0];
    if (op.name.empty()) throw InputError("an operator without outputs needs @name=…");
    op.op_class = line.has("class") ? text(line, "class") : default_op_class(op, parts_.tensors);
    parts_.operators.push_back(std::move(op));
  }

  const Tensor& first_input(const Operator& op) const { return parts_.tensors[op.inputs[0].index()]; }

  static const std::vector<Word>& list(const Line& line, std::string_view key) {
    const auto& value = line.attributes.find(key)->second;
    if (!value) throw InputError("'@" + std::string(key) + "' needs a value");
    return *value;
  }
  static std::string text(const Line& line, std::string_view key) {
    std::string joined;
    for (const Word& word : list(line, key)) joined += word.text;
    return joined;
  }

  void read_flags(const Line& line, Operator& op) const {
    for (const auto& [key, value] : line.attributes) {
      const bool plain = key != "shares" && key != "mutates" && key != "name" && key != "module" &&
                         key != "source" && key != "colocate" && key != "class" && key != "grad" &&
                         key != "nograd" && key != "gradient_of";
      if (plain && value) throw InputError("'@" + key + "' takes no value");
    }
    if (line.has("backward") && line.has("update"))
      throw InputError("@backward and @update exclude each other");
    op.role = line.has("backward") ? OperatorRole::kBackward
              : line.has("update") ? OperatorRole::kUpdate
                                   : OperatorRole::kForward;
    if (line.has("module")) op.module_path = text(line, "module");
    if (line.has("source")) op.source = text(line, "source");
    if (line.has("colocate")) {
      op.colocation = static_cast<std::uint32_t>(parse_integer(text(line, "colocate"), 0, UINT32_MAX));
    }
    op.duplicable = line.has("duplicable");
    op.random = line.has("random");
    op.mixes_samples = line.has("mixes");
    op.known = !line.has("unknown");
  }

  // "@key=output:other, …"; none if the line has no such attribute.
  std::vector<std::pair<TensorId, TensorId>> pairs(const Line& line, const std::string& key,
                                                   const Operator& op) const {
    std::vector<std::pair<TensorId, TensorId>> result;
    if (!line.has(key)) return result;
    const std::vector<Word>& words = list(line, key);
    for (std::size_t i = 0; i < words.size(); i += 4) {
      const bool triple = i + 2 < words.size() && words[i + 1].is(":");
      if (!triple || (i + 3 < words.size() && !words[i + 3].is(","))) {
        throw InputError("expected @" + key + "=output:other, …");
      }
      const TensorId output = tensor(words[i].text);
      result.emplace_back(output, tensor(words[i + 2].text));
      const bool own = std::find(op.outputs.begin(), op.outputs.end(), output) != op.outputs.end();
      if (!own || result.back().second >= output)
        throw InputError("@" + key + "=output:other: an output of this line and an earlier tensor");
    }
    return result;
  }

  void set_storages(const Line& line, const Operator& op) {
    const auto shares = pairs(line, "shares", op);
    for (const TensorId id : op.outputs) {
      Tensor& t = parts_.tensors[id.index()];
      const auto shared =
          std::find_if(shares.begin(), shares.end(), [&](const auto& s) { return s.first == id; });
      if (shared != shares.end()) {
        t.storage = parts_.tensors[shared->second.index()].storage;
      } else if (line.has("view") || line.has("inplace")) {
        t.storage = first_input(op).storage;
      } else {
        t.storage = new_storage();
      }
    }
  }

  void set_gradients(const Line& line, const Operator& op) {
    for (const auto& [output, other] : pairs(line, "gradient_of", op)) {
      parts_.tensors[output.index()].gradient_of = other;
    }
    for (const std::string_view key : {"nograd", "grad"}) {
      if (!line.has(key)) continue;
      const auto& value = line.attributes.find(key)->second;
      for (const TensorId id : value ? tensor_list(*value) : op.outputs) {
        Tensor& t = parts_.tensors[id.index()];
        if (std::find(op.outputs.begin(), op.outputs.end(), id) == op.outputs.end()) {
          throw InputError("@" + std::string(key) + ": '" + t.name + "' is no output of this line");
        }
        t.requires_grad = key == "grad" && (value || is_floating_point(t.dtype));
      }
    }
  }

  GraphParts parts_;
  std::unordered_map<std::string, TensorId> tensors_;
  std::unordered_map<std::string, ParameterId> parameters_;
  std::vector<std::optional<StorageId>> storage_of_parameter_;
  std::size_t storages_ = 0;
  bool training_ = false;  // the graph holds backward or update operators
  bool outputs_given_ = false;
  bool loss_given_ = false;
};

}  // namespace

Graph parse_graph(std::string_view text) {
  return GraphReader().read(text);
}

}  // namespace espalier
