#include "espalier/plan/text.h"

#include <algorithm>
#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/words.h"

namespace espalier {
namespace {

constexpr std::string_view kPunctuation = "{}|";
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

// The words of one line, read from left to right. Errors name the line.
class LineReader {
 public:
  LineReader(std::size_t number, const std::vector<Word>& words) : number_(number), words_(words) {}

  bool done() const { return next_ == words_.size(); }
  const Word& peek() const { return words_[next_]; }
  bool at(std::string_view syntax) const { return !done() && peek().is(syntax); }
  bool take(std::string_view syntax) {
    if (!at(syntax)) return false;
    ++next_;
    return true;
  }
  void expect(std::string_view syntax) {
    if (take(syntax)) return;
    fail("expected '" + std::string(syntax) + "'" +
         (done() ? " at the end" : " before '" + peek().text + "'"));
  }
  const std::string& word(const char* what) {
    if (done() || (!peek().quoted && kPunctuation.find(peek().text) != std::string_view::npos)) {
      fail(std::string("expected ") + what + (done() ? " at the end" : " before '" + peek().text + "'"));
    }
    return words_[next_++].text;
  }
  std::int64_t number(const char* what, std::int64_t max) {
    try {
      return parse_integer(word(what), 0, max);
    } catch (const InputError& error) {
      fail(std::string(what) + " " + error.what());
    }
  }
  [[noreturn]] void fail(const std::string& problem) const {
    const std::string where = "line " + std::to_string(number_) + ": ";
    throw InputError(problem.rfind(where, 0) == 0 ? problem : where + problem);
  }

 private:
  std::size_t number_;
  const std::vector<Word>& words_;
  std::size_t next_ = 0;
};

OperatorId operator_named(const Graph& graph, LineReader& line) {
  const std::string& name = line.word("an operator");
  const auto id = graph.find_operator(name);
  if (!id) line.fail("operator '" + name + "' is not in the graph");
  return *id;
}

// `{ a b .. f }`: in graph order, whatever the order of the words.
std::vector<OperatorId> parse_operators(const Graph& graph, LineReader& line) {
  std::vector<OperatorId> operators;
  line.expect("{");
  while (!line.take("}")) {
    const OperatorId first = operator_named(graph, line);
    operators.push_back(first);
    if (!line.take("..")) continue;
    const OperatorId last = operator_named(graph, line);
    if (last < first) {
      line.fail("'" + graph.op(last).name + "' stands before '" + graph.op(first).name + "' in the graph");
    }
    for (std::size_t i = first.index() + 1; i <= last.index(); ++i) operators.push_back(OperatorId(i));
  }
  std::sort(operators.begin(), operators.end());
  const auto twice = std::adjacent_find(operators.begin(), operators.end());
  if (twice != operators.end()) line.fail("operator '" + graph.op(*twice).name + "' stands twice");
  return operators;
}

DeviceId device_named(const Cluster& cluster, LineReader& line) {
  const std::string& name = line.word("a device");
  const auto id = cluster.find_device(name);
  if (!id) line.fail("device '" + name + "' is not in the cluster");
  return *id;
}

struct PendingStage {
  LineReader line;
  Stage stage;
  std::vector<std::string> after;
  std::vector<std::vector<std::uint32_t>> shares;
  bool has_in_flight = false;
};

std::vector<std::vector<std::uint32_t>> parse_shares(LineReader& line) {
  std::vector<std::vector<std::uint32_t>> shares;
  do {
    std::vector<std::uint32_t>& share = shares.emplace_back();
    std::string_view list = line.word("micro-batch numbers");
    try {
      for (bool more = true; more;) {
        const std::size_t comma = list.find(',');
        share.push_back(
            static_cast<std::uint32_t>(parse_integer(list.substr(0, comma), 0, kMaxMicroBatches)));
        more = comma != std::string_view::npos;
        if (more) list.remove_prefix(comma + 1);
      }
    } catch (const InputError& error) {
      line.fail(error.what());
    }
  } while (line.take("|"));
  return shares;
}

PendingStage parse_stage(const Graph& graph, const Cluster& cluster, LineReader line, BatchSize micro_batch) {
  PendingStage pending{line, {}, {}, {}, false};
  LineReader& in = pending.line;
  Stage& stage = pending.stage;
  stage.name = in.word("the stage's name");
  stage.micro_batch = micro_batch;
  do {
    Replica& replica = stage.replicas.emplace_back();
    do replica.devices.push_back(device_named(cluster, in));
    while (in.take("+"));
  } while (in.take("|"));
  stage.operators = parse_operators(graph, in);
  std::set<std::string> seen;
  while (!in.done()) {
    const std::string part = in.word("a part of the stage");
    if (!seen.insert(part).second) in.fail("'" + part + "' stands twice");
    if (part == "in_flight") {
      stage.in_flight = static_cast<std::uint32_t>(in.number("in_flight", kMaxMicroBatches));
      pending.has_in_flight = true;
    } else if (part == "slots") {
      stage.slots = static_cast<std::uint32_t>(in.number("slots", kMaxMicroBatches));
    } else if (part == "micro_batch") {
      stage.micro_batch = BatchSize(in.number("micro_batch", kMaxCount));
    } else if (part == "recompute") {
      stage.recompute = parse_operators(graph, in);
    } else if (part == "share") {
      pending.shares = parse_shares(in);
    } else if (part == "after") {
      const auto ends = [&] {
        return in.done() || in.at("in_flight") || in.at("slots") || in.at("micro_batch") ||
               in.at("recompute") || in.at("share");
      };
      while (!ends()) pending.after.push_back(in.word("a stage"));
    } else {
      in.fail("'" + part +
              "' is not known; expected after, in_flight, slots, micro_batch, recompute or share");
    }
  }
  return pending;
}

// Says whether the orders are lists, on lines of their own.
bool parse_head(LineReader& line, PipelinePlan& plan, BatchSize& micro_batch) {
  bool lists = false;
  line.expect("batch");
  plan.batch = BatchSize(line.number("batch", kMaxCount));
  micro_batch = plan.batch;
  while (!line.done()) {
    if (line.take("micro_batch")) {
      micro_batch = BatchSize(line.number("micro_batch", kMaxCount));
    } else if (line.take("schedule")) {
      const std::string& name = line.word("a schedule");
      lists = name == "lists";
      if (lists) continue;
      try {
        plan.orders = parse_order_rule(name);
      } catch (const InputError& error) {
        line.fail(std::string("schedule ") + error.what());
      }
    } else if (line.take("tokens")) {
      const std::string& name = line.word("a token rule");
      const auto rule = parse_token_rule(name);
      if (!rule) line.fail("token rule '" + name + "' is not known; expected both, forward, free or none");
      plan.tokens = *rule;
    } else {
      line.fail("'" + line.peek().text + "' is not known; expected micro_batch, schedule or tokens");
    }
  }
  return lists;
}

// Lines `order gpu0 3F 29(B F) 3B`, by their numbers.
OrderLists parse_order_lines(std::string_view text, const std::set<std::size_t>& lines,
                             const PipelinePlan& plan, const Cluster& cluster) {
  const OrderNames names = order_names(plan, cluster);
  OrderLists lists(names.devices.size());
  std::size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!lines.contains(++number)) continue;
    const std::string where = "line " + std::to_string(number);
    std::vector<Word> words = split_words(line, "()");
    if (words.size() < 2 || !words[0].is("order"))
      throw InputError(where + ": expected a device after 'order'");
    const std::string device = words[1].text;
    const auto id = cluster.find_device(device);
    if (!id) throw InputError(where + ": device '" + device.substr(0, 60) + "' is not in the cluster");
    if (!lists[id->index()].empty()) {
      throw InputError(where + ": device '" + device.substr(0, 60) + "' has an order already");
    }
    words.erase(words.begin(), words.begin() + 2);
    lists[id->index()] = parse_order(words, *id, names, where);
  }
  return lists;
}

void resolve_after(std::vector<PendingStage>& stages) {
  std::map<std::string, StageId> ids;
  for (std::size_t x = 0; x < stages.size(); ++x) {
    const std::string& name = stages[x].stage.name;
    if (!ids.try_emplace(name, StageId(x)).second) stages[x].line.fail("stage '" + name + "' stands twice");
  }
  for (PendingStage& pending : stages) {
    for (const std::string& name : pending.after) {
      const auto id = ids.find(name);
      if (id == ids.end()) pending.line.fail("stage '" + name + "' in `after` does not exist");
      pending.stage.after.push_back(id->second);
    }
  }
}

void complete_after(const Graph& graph, PipelinePlan& plan) {
  std::vector<std::optional<StageId>> owner(graph.operators().size());
  for (std::size_t x = plan.stages.size(); x-- > 0;) {
    for (const OperatorId op : plan.stages[x].operators) {
      if (!graph.op(op).duplicable) owner[op.index()] = StageId(x);
    }
  }
  for (std::size_t x = 0; x < plan.stages.size(); ++x) {
    Stage& stage = plan.stages[x];
    std::set<StageId> after(stage.after.begin(), stage.after.end());
    for (const OperatorId op : stage.operators) {
      for (const TensorId input : graph.op(op).inputs) {
        const auto producer = graph.tensor(input).producer;
        if (!producer || !owner[producer->index()] || owner[producer->index()] == StageId(x)) continue;
        after.insert(*owner[producer->index()]);
      }
    }
    stage.after.assign(after.begin(), after.end());
  }
}

// A line of a few bytes may stand for 2^20 micro-batches, so there is a limit for all lines together.
void fill_shares(PipelinePlan& plan, const std::vector<PendingStage>& pending) {
  std::int64_t total = 0;
  for (std::size_t x = 0; x < plan.stages.size(); ++x) {
    Stage& stage = plan.stages[x];
    const auto& shares = pending[x].shares;
    if (!shares.empty() && shares.size() != stage.replicas.size()) {
      pending[x].line.fail("there are " + std::to_string(shares.size()) + " shares for " +
                           std::to_string(stage.replicas.size()) + " replicas");
    }
    const std::int64_t size = stage.micro_batch.count();
    if (size > 0 && plan.batch.count() / size > kMaxMicroBatches) {
      pending[x].line.fail("the batch has more than 2^20 micro-batches");
    }
    const std::uint32_t count = plan.micro_batches(StageId(x));
    total += count;
    if (total > kMaxMicroBatchesOfAllStages) {
      pending[x].line.fail("the stages have more than 2^21 micro-batches together");
    }
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      stage.replicas[r].micro_batches =
          shares.empty() ? round_robin(count, r, stage.replicas.size()) : shares[r];
    }
  }
}

std::string name_text(const std::string& name) {
  return quote_word(name, kPunctuation,
                    {"..", "+", "in_flight", "slots", "micro_batch", "recompute", "share", "after"});
}

std::string operators_text(const Graph& graph, const std::vector<OperatorId>& operators) {
  std::string text = "{";
  for (std::size_t i = 0; i < operators.size();) {
    std::size_t last = i;
    while (last + 1 < operators.size() && operators[last + 1].index() == operators[last].index() + 1) ++last;
    text += " " + name_text(graph.op(operators[i]).name);
    if (last > i + 1) text += " ..";
    if (last > i) text += " " + name_text(graph.op(operators[last]).name);
    i = last + 1;
  }
  return text + " }";
}

std::string share_text(const Stage& stage) {
  std::string text = " share";
  for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
    if (r > 0) text += " |";
    const char* separator = " ";
    for (const std::uint32_t j : stage.replicas[r].micro_batches) {
      text += separator + std::to_string(j);
      separator = ",";
    }
  }
  return text;
}

}  // namespace

PipelinePlan parse_plan(std::string_view text, const Graph& graph, const Cluster& cluster) {
  const auto lines = split_lines(text, kPunctuation);
  if (lines.empty()) throw InputError("line 1: expected 'batch N …'");
  PipelinePlan plan;
  BatchSize micro_batch;
  LineReader head(lines[0].first, lines[0].second);
  const bool listed = parse_head(head, plan, micro_batch);
  std::vector<PendingStage> pending;
  std::set<std::size_t> orders;  // lines
  for (std::size_t i = 1; i < lines.size(); ++i) {
    LineReader line(lines[i].first, lines[i].second);
    if (line.at("order")) {
      if (!listed) line.fail("an order needs 'schedule lists' in the first line");
      orders.insert(lines[i].first);
      continue;
    }
    line.expect("stage");
    pending.push_back(parse_stage(graph, cluster, line, micro_batch));
  }
  resolve_after(pending);
  for (const PendingStage& stage : pending) plan.stages.push_back(stage.stage);
  complete_after(graph, plan);
  fill_shares(plan, pending);
  if (listed) plan.orders = Orders(parse_order_lines(text, orders, plan, cluster));
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t x = 0; x < plan.stages.size(); ++x) {
    if (!pending[x].has_in_flight) plan.stages[x].in_flight = limits[x];
  }
  return plan;
}

std::string print_plan(const PipelinePlan& plan, const Graph& graph, const Cluster& cluster) {
  const BatchSize micro_batch = plan.stages.empty() ? plan.batch : plan.stages[0].micro_batch;
  std::string text = "batch " + std::to_string(plan.batch.count()) + " micro_batch " +
                     std::to_string(micro_batch.count()) + " schedule " + to_text(plan.orders);
  if (plan.tokens != TokenRule::kBothWays) text += " tokens " + std::string(to_text(plan.tokens));
  text += "\n";
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t x = 0; x < plan.stages.size(); ++x) {
    const Stage& stage = plan.stages[x];
    text += "stage " + name_text(stage.name);
    bool round = true;
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      const Replica& replica = stage.replicas[r];
      if (r > 0) text += " |";
      for (std::size_t d = 0; d < replica.devices.size(); ++d) {
        text += (d > 0 ? " + " : " ") + name_text(cluster.device(replica.devices[d]).name);
      }
      round = round &&
              replica.micro_batches == round_robin(plan.micro_batches(StageId(x)), r, stage.replicas.size());
    }
    text += " " + operators_text(graph, stage.operators);
    if (stage.micro_batch != micro_batch) text += " micro_batch " + std::to_string(stage.micro_batch.count());
    if (!stage.after.empty()) text += " after";
    for (const StageId before : stage.after) text += " " + name_text(plan.stages[before.index()].name);
    if (stage.in_flight != limits[x]) text += " in_flight " + std::to_string(stage.in_flight);
    if (stage.slots) text += " slots " + std::to_string(*stage.slots);
    if (!round) text += share_text(stage);
    if (!stage.recompute.empty()) text += " recompute " + operators_text(graph, stage.recompute);
    text += "\n";
  }
  const OrderLists* lists = plan.orders.lists();
  const OrderNames names = order_names(plan, cluster);
  for (std::size_t d = 0; lists != nullptr && d < lists->size(); ++d) {
    if ((*lists)[d].empty()) continue;
    text += "order " + quote_word(names.devices[d], "()") + " " +
            print_order((*lists)[d], DeviceId(d), names) + "\n";
  }
  return text;
}

Placement parse_placement(std::string_view text, const Graph& graph, const Cluster& cluster) {
  std::vector<std::optional<DeviceId>> device(graph.operators().size());
  std::optional<bool> leveled;  // what the first line says
  Placement placement;
  for (const auto& [number, words] : split_lines(text, kPunctuation)) {
    LineReader line(number, words);
    const DeviceId id = device_named(cluster, line);
    const bool has_level = line.take("level");
    if (leveled.value_or(has_level) != has_level) line.fail("expected a level in every line or in none");
    leveled = has_level;
    placement.level.resize(has_level ? device.size() : 0);
    const std::int64_t level = has_level ? line.number("a level", kMostLevel) : 0;
    for (const OperatorId op : parse_operators(graph, line)) {
      if (device[op.index()]) line.fail("operator '" + graph.op(op).name + "' stands on two devices");
      device[op.index()] = id;
      if (has_level) placement.level[op.index()] = static_cast<std::uint32_t>(level);
    }
    if (!line.done()) line.fail("expected the end of the line before '" + line.peek().text + "'");
  }
  for (std::size_t i = 0; i < device.size(); ++i) {
    if (!device[i]) throw InputError("operator '" + graph.operators()[i].name + "' stands on no device");
    placement.device.push_back(*device[i]);
  }
  return placement;
}

std::string print_placement(const Placement& placement, const Graph& graph, const Cluster& cluster) {
  std::map<std::pair<DeviceId, std::uint32_t>, std::vector<OperatorId>> operators;
  const bool leveled = !placement.level.empty();
  for (std::size_t i = 0; i < placement.device.size(); ++i) {
    operators[{placement.device[i], leveled ? placement.level[i] : 0}].push_back(OperatorId(i));
  }
  std::string text;
  for (const auto& [place, of] : operators) {
    text += name_text(cluster.device(place.first).name) + " " +
            (leveled ? "level " + std::to_string(place.second) + " " : "") + operators_text(graph, of) + "\n";
  }
  return text;
}

}  // namespace espalier
