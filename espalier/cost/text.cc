#include "espalier/cost/text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/words.h"
#include "espalier/cost/json.h"

namespace espalier {
namespace {

constexpr std::int64_t kMax = std::int64_t{1} << 62;

std::string saved_text(const SavedTensor& saved) {
  return (saved.side == SavedTensor::Side::kInput ? "in" : "out") + std::to_string(saved.index) +
         (saved.for_input_only ? "/i" : "");
}

SavedTensor parse_saved(std::string_view text) {
  SavedTensor saved;
  if (text.size() > 2 && text.substr(text.size() - 2) == "/i") {
    saved.for_input_only = true;
    text.remove_suffix(2);
  }
  if (text.rfind("out", 0) == 0) {
    saved.side = SavedTensor::Side::kOutput;
    text.remove_prefix(3);
  } else if (text.rfind("in", 0) == 0) {
    text.remove_prefix(2);
  } else {
    throw InputError("saved tensor '" + std::string(text.substr(0, 60)) + "': expected such as in0 or out1");
  }
  saved.index = static_cast<std::uint32_t>(parse_integer(text, 0, 1 << 20));
  return saved;
}

Origin parse_origin(std::string_view text) {
  for (const Origin origin :
       {Origin::kMeasured, Origin::kProfile, Origin::kInterpolated, Origin::kAnalytic}) {
    if (to_text(origin) == text) return origin;
  }
  throw InputError("origin '" + std::string(text.substr(0, 60)) +
                   "' is not known; expected measured, profile, interpolated or analytic");
}

// ---- lines ----

struct TimeAndRate {  // "100us+400ps/B"
  Duration fixed;
  std::int64_t picoseconds_per_byte = 0;
};

TimeAndRate parse_time_and_rate(std::string_view text) {
  TimeAndRate result;
  const std::size_t plus = text.find('+');
  result.fixed = parse_duration(text.substr(0, plus));
  if (plus == std::string_view::npos) return result;
  std::string_view rate = text.substr(plus + 1);
  if (rate.size() < 5 || rate.substr(rate.size() - 4) != "ps/B") {
    throw InputError("'" + std::string(rate) + "' is not a time per byte: expected such as 400ps/B");
  }
  result.picoseconds_per_byte = parse_integer(rate.substr(0, rate.size() - 4), 0, kMax);
  return result;
}

std::string rate_text(Duration fixed, std::int64_t picoseconds_per_byte) {
  return to_exact_text(fixed) + "+" + std::to_string(picoseconds_per_byte) + "ps/B";
}

// The words of a line behind its first: names, then `key=value` and flags.
class Fields {
 public:
  Fields(const std::vector<Word>& words, std::size_t names) {
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (names_.size() < names) {
        names_.push_back(words[i].text);
        continue;
      }
      const std::size_t equals = words[i].quoted ? std::string::npos : words[i].text.find('=');
      std::string key = words[i].text.substr(0, equals);
      std::string value = equals == std::string::npos ? "" : words[i].text.substr(equals + 1);
      if (equals != std::string::npos && value.empty() && i + 1 < words.size() && words[i + 1].quoted) {
        value = words[++i].text;
      }
      if (!fields_.emplace(key, value).second) throw InputError("'" + key + "' stands twice");
    }
    if (names_.size() < names) throw InputError("'" + words[0].text + "' lacks a name");
  }
  const std::string& name(std::size_t i) const { return names_[i]; }

  // The value of a key, which counts as known from now on.
  std::optional<std::string> take(const std::string& key) {
    const auto node = fields_.extract(key);
    return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
  }
  Duration duration(const std::string& key) {
    const auto value = take(key);
    return value ? parse_duration(*value) : Duration();
  }
  Bytes bytes(const std::string& key) {
    const auto value = take(key);
    return value ? parse_bytes(*value) : Bytes();
  }
  std::int64_t integer(const std::string& key, std::int64_t otherwise, std::int64_t max) {
    const auto value = take(key);
    return value ? parse_integer(*value, 0, max) : otherwise;
  }
  void nothing_else() const {
    if (!fields_.empty()) throw InputError("'" + fields_.begin()->first + "' is not known here");
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> fields_;
};

KindOverhead parse_overhead(Fields& fields) {
  KindOverhead overhead;
  overhead.kind = fields.name(0);
  overhead.per_action = fields.duration("action");
  overhead.neighbour_per_mille = static_cast<std::int32_t>(fields.integer("neighbour", 0, 1'000'000));
  overhead.scatter.spread_per_mille = static_cast<std::int32_t>(fields.integer("spread", 0, 1000));
  overhead.scatter.device_per_mille = static_cast<std::int32_t>(fields.integer("device-spread", 0, 1000));
  overhead.scatter.first = fields.duration("first");
  for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    const auto value = fields.take(std::string(to_text(optimizer)));
    if (!value) continue;
    const TimeAndRate cost = parse_time_and_rate(*value);
    overhead.updates.push_back({optimizer, cost.fixed, cost.picoseconds_per_byte});
  }
  return overhead;
}

MeasuredLink parse_link(Fields& fields) {
  MeasuredLink link;
  link.bandwidth = parse_bandwidth(fields.name(0));
  link.latency = fields.duration("latency");
  for (const auto& [key, end] : {std::pair("send", &link.send), std::pair("receive", &link.receive)}) {
    const auto value = fields.take(key);
    if (!value) continue;
    const TimeAndRate cost = parse_time_and_rate(*value);
    *end = {cost.fixed, cost.picoseconds_per_byte};
  }
  return link;
}

CostRow parse_cost_line(Fields& fields) {
  CostRow row;
  row.op_class = fields.name(0);
  row.kind = fields.name(1);
  row.variant.tensor_parallel = static_cast<std::uint32_t>(fields.integer("tp", 1, 1 << 20));
  row.variant.recompute = fields.take("recompute").has_value();
  if (const auto by = fields.take("by")) row.implementation = *by;
  CostRow::Point point;
  point.batch = BatchSize(fields.integer("batch", 1, kMax));
  OperatorCost& cost = point.cost;
  cost.forward = fields.duration("f");
  cost.input_gradient = fields.duration("i");
  cost.weight_gradient = fields.duration("w");
  cost.private_bytes = fields.bytes("private");
  cost.private_for_input = fields.bytes("private-for-input");
  cost.between_halves = fields.bytes("between");
  cost.workspace = fields.bytes("workspace");
  cost.reduced_forward = fields.bytes("reduce-f");
  cost.reduced_backward = fields.bytes("reduce-i");
  if (const auto value = fields.take("saved")) {
    for (std::string_view list = *value;;) {
      const std::size_t comma = list.find(',');
      cost.saved.push_back(parse_saved(list.substr(0, comma)));
      if (comma == std::string_view::npos) break;
      list.remove_prefix(comma + 1);
    }
    std::sort(cost.saved.begin(), cost.saved.end());
  }
  if (const auto value = fields.take("origin")) cost.origin = parse_origin(*value);
  cost.extrapolated = fields.take("extrapolated").has_value();
  row.points.push_back(std::move(point));
  return row;
}

void parse_cost_table_line(const std::vector<Word>& words, CostTableParts& parts) {
  const std::string& head = words[0].text;
  const bool cost = head == "cost";
  if (!cost && head != "machine" && head != "overhead" && head != "link") {
    throw InputError("'" + head + "' is not known; expected machine, overhead, link or cost");
  }
  Fields fields(words, cost ? 2 : 1);
  if (cost) {
    parts.rows.push_back(parse_cost_line(fields));
  } else if (head == "overhead") {
    parts.overheads.push_back(parse_overhead(fields));
  } else if (head == "link") {
    if (parts.link) throw InputError("a second link; a table has one");
    parts.link = parse_link(fields);
  } else {
    parts.machine = fields.name(0);
    parts.threads = static_cast<std::uint32_t>(fields.integer("threads", 1, 1 << 20));
    if (const auto torch = fields.take("torch")) parts.torch_version = *torch;
  }
  fields.nothing_else();
}

// Rows of one key that came as several lines become one.
void join_rows(std::vector<CostRow>& rows) {
  std::map<std::tuple<std::string, std::string, Variant, std::string>, std::size_t> first;
  std::vector<CostRow> joined;
  for (CostRow& row : rows) {
    const auto [place, fresh] =
        first.try_emplace({row.op_class, row.kind, row.variant, row.implementation}, joined.size());
    if (fresh) {
      joined.push_back(std::move(row));
    } else {
      joined[place->second].points.push_back(std::move(row.points[0]));
    }
  }
  rows = std::move(joined);
}

std::string cost_line(const CostRow& row, const CostRow::Point& point) {
  const OperatorCost& cost = point.cost;
  std::string text = "cost " + quote_word(row.op_class) + " " + quote_word(row.kind) +
                     " batch=" + std::to_string(point.batch.count());
  const auto add = [&](const char* key, auto value) {
    if (value.count() != 0) text += std::string(" ") + key + "=" + to_exact_text(value);
  };
  add("f", cost.forward);
  add("i", cost.input_gradient);
  add("w", cost.weight_gradient);
  const char* separator = " saved=";
  for (const SavedTensor& saved : cost.saved) {
    text += separator + saved_text(saved);
    separator = ",";
  }
  add("private", cost.private_bytes);
  add("private-for-input", cost.private_for_input);
  add("between", cost.between_halves);
  add("workspace", cost.workspace);
  add("reduce-f", cost.reduced_forward);
  add("reduce-i", cost.reduced_backward);
  if (row.variant.tensor_parallel != 1) text += " tp=" + std::to_string(row.variant.tensor_parallel);
  if (row.variant.recompute) text += " recompute";
  if (!row.implementation.empty()) text += " by=" + row.implementation;
  text += " origin=" + std::string(to_text(cost.origin));
  return text + (cost.extrapolated ? " extrapolated\n" : "\n");
}

// ---- JSON ----

Json end_to_json(const EndpointCost& cost) {
  return {{"fixed_ns", cost.fixed.count()}, {"ps_per_byte", cost.picoseconds_per_byte}};
}

EndpointCost end_from_json(const JsonCursor& json) {
  json.only({"fixed_ns", "ps_per_byte"});
  return {json.at("fixed_ns").duration(), json.at("ps_per_byte").integer(0, kMax)};
}

Json point_to_json(const CostRow::Point& point) {
  const OperatorCost& cost = point.cost;
  Json json = {{"batch", point.batch.count()},
               {"forward_ns", cost.forward.count()},
               {"input_gradient_ns", cost.input_gradient.count()},
               {"weight_gradient_ns", cost.weight_gradient.count()}};
  if (!cost.saved.empty()) {
    json["saved"] = Json::array();
    for (const SavedTensor& saved : cost.saved) json["saved"].push_back(saved_text(saved));
  }
  const auto add = [&](const char* key, Bytes bytes) {
    if (bytes != Bytes()) json[key] = bytes.count();
  };
  add("private_bytes", cost.private_bytes);
  add("private_for_input_bytes", cost.private_for_input);
  add("between_halves_bytes", cost.between_halves);
  add("workspace_bytes", cost.workspace);
  add("reduced_forward_bytes", cost.reduced_forward);
  add("reduced_backward_bytes", cost.reduced_backward);
  json["origin"] = to_text(cost.origin);
  if (cost.extrapolated) json["extrapolated"] = true;
  return json;
}

CostRow::Point point_from_json(const JsonCursor& json) {
  json.only({"batch", "forward_ns", "input_gradient_ns", "weight_gradient_ns", "saved", "private_bytes",
             "private_for_input_bytes", "between_halves_bytes", "workspace_bytes", "reduced_forward_bytes",
             "reduced_backward_bytes", "origin", "extrapolated"});
  CostRow::Point point;
  point.batch = BatchSize(json.at("batch").integer(1, kMax));
  OperatorCost& cost = point.cost;
  cost.forward = json.at("forward_ns").duration();
  cost.input_gradient = json.at("input_gradient_ns").duration();
  cost.weight_gradient = json.at("weight_gradient_ns").duration();
  if (json.has("saved")) {
    const JsonCursor saved = json.at("saved");
    for (std::size_t i = 0; i < saved.size(); ++i) cost.saved.push_back(saved.at(i).parsed(parse_saved));
  }
  if (json.has("private_bytes")) cost.private_bytes = json.at("private_bytes").bytes();
  if (json.has("private_for_input_bytes")) {
    cost.private_for_input = json.at("private_for_input_bytes").bytes();
  }
  if (json.has("between_halves_bytes")) cost.between_halves = json.at("between_halves_bytes").bytes();
  if (json.has("workspace_bytes")) cost.workspace = json.at("workspace_bytes").bytes();
  if (json.has("reduced_forward_bytes")) cost.reduced_forward = json.at("reduced_forward_bytes").bytes();
  if (json.has("reduced_backward_bytes")) cost.reduced_backward = json.at("reduced_backward_bytes").bytes();
  cost.origin = json.at("origin").parsed(parse_origin);
  cost.extrapolated = json.has("extrapolated") && json.at("extrapolated").boolean();
  return point;
}

CostRow row_from_json(const JsonCursor& json) {
  json.only({"class", "kind", "tensor_parallel", "recompute", "implementation", "points"});
  CostRow row;
  row.op_class = json.at("class").string();
  row.kind = json.at("kind").string();
  if (json.has("tensor_parallel")) {
    row.variant.tensor_parallel = static_cast<std::uint32_t>(json.at("tensor_parallel").integer(1, 1 << 20));
  }
  row.variant.recompute = json.has("recompute") && json.at("recompute").boolean();
  if (json.has("implementation")) row.implementation = json.at("implementation").string();
  const JsonCursor points = json.at("points");
  for (std::size_t i = 0; i < points.size(); ++i) row.points.push_back(point_from_json(points.at(i)));
  return row;
}

KindOverhead overhead_from_json(const JsonCursor& json) {
  json.only({"kind", "per_action_ns", "neighbour_per_mille", "spread_per_mille", "device_spread_per_mille",
             "first_action_ns", "updates"});
  KindOverhead overhead;
  overhead.kind = json.at("kind").string();
  overhead.per_action = json.at("per_action_ns").duration();
  overhead.neighbour_per_mille =
      static_cast<std::int32_t>(json.at("neighbour_per_mille").integer(0, 1'000'000));
  overhead.scatter = scatter_from_json(json);
  const JsonCursor updates = json.at("updates");
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const JsonCursor update = updates.at(i);
    update.only({"optimizer", "fixed_ns", "ps_per_byte"});
    const auto optimizer = parse_optimizer(update.at("optimizer").string());
    if (!optimizer) update.at("optimizer").fail("is not known; expected sgd, adam or adamw");
    overhead.updates.push_back(
        {*optimizer, update.at("fixed_ns").duration(), update.at("ps_per_byte").integer(0, kMax)});
  }
  return overhead;
}

constexpr std::int64_t kLongest = std::int64_t{1} << 44;  // nanoseconds, of a first action

}  // namespace

CostTable parse_costs(std::string_view text) {
  CostTableParts parts;
  for (const auto& [number, words] : split_lines(text)) {
    try {
      parse_cost_table_line(words, parts);
    } catch (const InputError& error) {
      throw InputError("line " + std::to_string(number) + ": " + error.what());
    }
  }
  join_rows(parts.rows);
  return CostTable(std::move(parts));
}

std::string print_costs(const CostTable& table) {
  const CostTableParts& parts = table.parts();
  std::string text;
  if (!parts.machine.empty() || parts.threads != 1 || !parts.torch_version.empty()) {
    text += "machine " + quote_word(parts.machine);
    text += " threads=" + std::to_string(parts.threads);
    if (!parts.torch_version.empty()) text += " torch=" + quote_word(parts.torch_version);
    text += "\n";
  }
  for (const KindOverhead& overhead : parts.overheads) {
    text += "overhead " + quote_word(overhead.kind) + " action=" + to_exact_text(overhead.per_action) +
            " neighbour=" + std::to_string(overhead.neighbour_per_mille);
    const ActionScatter& scatter = overhead.scatter;
    if (scatter.spread_per_mille > 0) text += " spread=" + std::to_string(scatter.spread_per_mille);
    if (scatter.device_per_mille > 0) text += " device-spread=" + std::to_string(scatter.device_per_mille);
    if (scatter.first > Duration()) text += " first=" + to_exact_text(scatter.first);
    for (const KindOverhead::Update& update : overhead.updates) {
      text += " " + std::string(to_text(update.optimizer)) + "=" +
              rate_text(update.fixed, update.picoseconds_per_byte);
    }
    text += "\n";
  }
  if (parts.link) {
    const MeasuredLink& link = *parts.link;
    text += "link " + bandwidth_text(link.bandwidth) + " latency=" + to_exact_text(link.latency) +
            " send=" + rate_text(link.send.fixed, link.send.picoseconds_per_byte) +
            " receive=" + rate_text(link.receive.fixed, link.receive.picoseconds_per_byte) + "\n";
  }
  for (const CostRow& row : parts.rows) {
    for (const CostRow::Point& point : row.points) text += cost_line(row, point);
  }
  return text;
}

nlohmann::ordered_json costs_to_json(const CostTable& table) {
  const CostTableParts& parts = table.parts();
  Json json = {{"format", "espalier.costs/1"},
               {"machine", parts.machine},
               {"threads", parts.threads},
               {"torch_version", parts.torch_version}};
  if (parts.link) {
    json["link"] = {{"bytes_per_second", parts.link->bandwidth},
                    {"latency_ns", parts.link->latency.count()},
                    {"send", end_to_json(parts.link->send)},
                    {"receive", end_to_json(parts.link->receive)}};
  }
  json["overheads"] = Json::array();
  for (const KindOverhead& overhead : parts.overheads) {
    Json updates = Json::array();
    for (const KindOverhead::Update& update : overhead.updates) {
      updates.push_back({{"optimizer", to_text(update.optimizer)},
                         {"fixed_ns", update.fixed.count()},
                         {"ps_per_byte", update.picoseconds_per_byte}});
    }
    Json entry{{"kind", overhead.kind},
               {"per_action_ns", overhead.per_action.count()},
               {"neighbour_per_mille", overhead.neighbour_per_mille}};
    add_scatter(entry, overhead.scatter);
    entry["updates"] = std::move(updates);
    json["overheads"].push_back(std::move(entry));
  }
  json["rows"] = Json::array();
  for (const CostRow& row : parts.rows) {
    Json entry = {{"class", row.op_class}, {"kind", row.kind}};
    if (row.variant.tensor_parallel != 1) entry["tensor_parallel"] = row.variant.tensor_parallel;
    if (row.variant.recompute) entry["recompute"] = true;
    if (!row.implementation.empty()) entry["implementation"] = row.implementation;
    entry["points"] = Json::array();
    for (const CostRow::Point& point : row.points) entry["points"].push_back(point_to_json(point));
    json["rows"].push_back(std::move(entry));
  }
  return json;
}

CostTable costs_from_json(const nlohmann::ordered_json& json, const std::string& where) {
  const JsonCursor root(json, where);
  root.expect_format("espalier.costs/1");
  root.only({"format", "machine", "threads", "torch_version", "link", "overheads", "rows"});
  CostTableParts parts;
  parts.machine = root.at("machine").string();
  parts.threads = static_cast<std::uint32_t>(root.at("threads").integer(1, 1 << 20));
  parts.torch_version = root.at("torch_version").string();
  if (root.has("link")) {
    const JsonCursor link = root.at("link");
    link.only({"bytes_per_second", "latency_ns", "send", "receive"});
    parts.link = {link.at("bytes_per_second").integer(1, kMax), link.at("latency_ns").duration(),
                  end_from_json(link.at("send")), end_from_json(link.at("receive"))};
  }
  const JsonCursor overheads = root.at("overheads");
  for (std::size_t i = 0; i < overheads.size(); ++i) {
    parts.overheads.push_back(overhead_from_json(overheads.at(i)));
  }
  const JsonCursor rows = root.at("rows");
  for (std::size_t i = 0; i < rows.size(); ++i) parts.rows.push_back(row_from_json(rows.at(i)));
  try {
    return CostTable(std::move(parts));
  } catch (const InputError& error) {
    root.fail(error.what());
  }
}

void add_scatter(Json& json, const ActionScatter& scatter) {
  json["spread_per_mille"] = scatter.spread_per_mille;
  json["device_spread_per_mille"] = scatter.device_per_mille;
  json["first_action_ns"] = scatter.first.count();
}

ActionScatter scatter_from_json(const JsonCursor& json) {
  const auto member = [&json](const char* key, std::int64_t most) {
    return json.has(key) ? json.at(key).integer(0, most) : 0;
  };
  return {.spread_per_mille = static_cast<std::int32_t>(member("spread_per_mille", 1000)),
          .device_per_mille = static_cast<std::int32_t>(member("device_spread_per_mille", 1000)),
          .first = Duration(member("first_action_ns", kLongest))};
}

}  // namespace espalier
