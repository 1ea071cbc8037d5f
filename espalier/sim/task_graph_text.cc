#include "espalier/sim/task_graph_text.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/words.h"
#include "espalier/sim/task_graph_json.h"

namespace espalier {
namespace {

constexpr std::string_view kFormat = "espalier.task_graph/1";
constexpr std::int64_t kMaxIndex = 0xfffffffe;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;
using When = TaskGraph::MemoryDelta::When;
constexpr std::string_view kWhen[] = {"start", "end", "arrival"};
constexpr std::string_view kOrder[] = {"in-order", "by-priority"};

template <class T>
std::span<const T> part(const std::vector<T>& items, const std::vector<std::uint32_t>& begin, std::size_t i) {
  return {items.data() + begin[i], begin[i + 1] - begin[i]};
}

std::string list_text(const char* name, std::span<const std::uint32_t> items) {
  std::string text = items.empty() ? "" : name;
  for (const std::uint32_t item : items) text += " " + std::to_string(item);
  return text;
}

std::optional<When> when_named(std::string_view text) {
  for (std::size_t i = 0; i < std::size(kWhen); ++i) {
    if (text == kWhen[i]) return static_cast<When>(i);
  }
  return std::nullopt;
}

std::optional<LaneOrder> order_named(std::string_view text) {
  for (std::size_t i = 0; i < std::size(kOrder); ++i) {
    if (text == kOrder[i]) return static_cast<LaneOrder>(i);
  }
  return std::nullopt;
}

TaskGraph empty_graph() {
  TaskGraph graph;
  graph.link_begin = graph.successor_begin = graph.order_begin = {0};
  return graph;
}

void end_task(TaskGraph& graph) {
  graph.link_begin.push_back(static_cast<std::uint32_t>(graph.links.size()));
  graph.successor_begin.push_back(static_cast<std::uint32_t>(graph.successors.size()));
}

void end_lane(TaskGraph& graph) {
  graph.order_begin.push_back(static_cast<std::uint32_t>(graph.order.size()));
}

// The words of one line after the first.
class Line {
 public:
  explicit Line(const std::vector<Word>& words) : words_(words) {}

  bool done() const { return next_ == words_.size(); }
  const std::string& word(const char* what) {
    if (done()) throw InputError(std::string("expected ") + what + " at the end");
    return words_[next_++].text;
  }
  std::uint32_t index(const char* what) {
    return static_cast<std::uint32_t>(parse_integer(word(what), 0, kMaxIndex));
  }
  // Numbers up to the next word that is none.
  void indices(std::vector<std::uint32_t>& to) {
    while (!done() && !words_[next_].text.empty() && words_[next_].text[0] >= '0' &&
           words_[next_].text[0] <= '9')
      to.push_back(index("a number"));
  }
  std::uint64_t priority() {
    const std::string& text = word("a priority");
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      throw InputError("'" + text.substr(0, 80) + "' is no priority");
    return value;
  }

 private:
  const std::vector<Word>& words_;
  std::size_t next_ = 1;
};

void read_task(TaskGraph& graph, Line& line) {
  graph.duration.push_back(parse_duration(line.word("a duration")));
  graph.delay.emplace_back();
  graph.lane.push_back(TaskGraph::kNoLane);
  graph.priority.push_back(0);
  graph.gives_way.push_back(0);
  while (!line.done()) {
    const std::string& key = line.word("a key");
    if (key == "delay") {
      graph.delay.back() = parse_duration(line.word("a delay"));
    } else if (key == "lane") {
      graph.lane.back() = line.index("a lane");
    } else if (key == "priority") {
      graph.priority.back() = line.priority();
    } else if (key == "gives-way") {
      graph.gives_way.back() = 1;
    } else if (key == "links") {
      line.indices(graph.links);
    } else if (key == "then") {
      line.indices(graph.successors);
    } else {
      throw InputError("'" + key.substr(0, 80) +
                       "' is not known; expected delay, lane, priority, gives-way, links or then");
    }
  }
  end_task(graph);
}

void read_memory(TaskGraph& graph, Line& line) {
  TaskGraph::MemoryDelta delta;
  delta.task = line.index("a task");
  const std::string& when = line.word("start, end or arrival");
  const auto named = when_named(when);
  if (!named) throw InputError("'" + when.substr(0, 80) + "' is not known; expected start, end or arrival");
  delta.when = *named;
  delta.account = line.index("an account");
  delta.bytes = Bytes(parse_integer(line.word("bytes"), -kMaxBytes, kMaxBytes));
  graph.memory.push_back(delta);
}

void read_lane(TaskGraph& graph, Line& line) {
  const std::string& text = line.word("in-order or by-priority");
  const auto order = order_named(text);
  if (!order) throw InputError("'" + text.substr(0, 80) + "' is not known; expected in-order or by-priority");
  graph.lane_order.push_back(*order);
  line.indices(graph.order);
  end_lane(graph);
}

void read_line(TaskGraph& graph, const std::vector<Word>& words) {
  const std::string& head = words.front().text;
  Line line(words);
  if (head == "links") {
    graph.link_count = line.index("a number of links");
  } else if (head == "lane") {
    read_lane(graph, line);
  } else if (head == "account") {
    graph.initial.push_back(Bytes(parse_integer(line.word("bytes"), -kMaxBytes, kMaxBytes)));
  } else if (head == "task") {
    read_task(graph, line);
  } else if (head == "memory") {
    read_memory(graph, line);
  } else {
    throw InputError("'" + head.substr(0, 80) +
                     "' is not known; expected links, lane, account, task or memory");
  }
  if (!line.done()) throw InputError("'" + line.word("").substr(0, 80) + "' is not expected here");
}

Json numbers(std::span<const std::uint32_t> items) {
  Json list = Json::array();
  for (const std::uint32_t item : items) list.push_back(item);
  return list;
}

std::uint32_t index_at(const JsonCursor& cursor) {
  return static_cast<std::uint32_t>(cursor.integer(0, kMaxIndex));
}

void append(const JsonCursor& list, std::vector<std::uint32_t>& to) {
  for (std::size_t i = 0; i < list.size(); ++i) to.push_back(index_at(list.at(i)));
}

void task_from_json(TaskGraph& graph, const JsonCursor& task) {
  task.only({"duration_ns", "delay_ns", "lane", "priority", "gives_way", "links", "then"});
  graph.duration.push_back(task.at("duration_ns").duration());
  graph.delay.push_back(task.has("delay_ns") ? task.at("delay_ns").duration() : Duration());
  graph.lane.push_back(task.has("lane") ? index_at(task.at("lane")) : TaskGraph::kNoLane);
  graph.priority.push_back(0);
  if (task.has("priority")) {
    const JsonCursor priority = task.at("priority");
    if (!priority.json().is_number_unsigned()) priority.fail("expected a whole number from 0");
    graph.priority.back() = priority.json().get<std::uint64_t>();
  }
  graph.gives_way.push_back(task.has("gives_way") && task.at("gives_way").boolean() ? 1 : 0);
  if (task.has("links")) append(task.at("links"), graph.links);
  if (task.has("then")) append(task.at("then"), graph.successors);
  end_task(graph);
}

TaskGraph::MemoryDelta memory_from_json(const JsonCursor& json) {
  json.only({"task", "when", "account", "bytes"});
  const auto when = when_named(json.at("when").string());
  if (!when) json.at("when").fail("is not known; expected start, end or arrival");
  return {index_at(json.at("task")), *when, index_at(json.at("account")),
          Bytes(json.at("bytes").integer(-kMaxBytes, kMaxBytes))};
}

}  // namespace

std::string print_task_graph(const TaskGraph& graph) {
  std::string text = "links " + std::to_string(graph.link_count) + "\n";
  for (std::size_t lane = 0; lane < graph.lane_order.size(); ++lane) {
    text += "lane " + std::string(kOrder[static_cast<std::size_t>(graph.lane_order[lane])]) +
            list_text("", part(graph.order, graph.order_begin, lane)) + "\n";
  }
  for (const Bytes bytes : graph.initial) text += "account " + std::to_string(bytes.count()) + "\n";
  for (std::size_t i = 0; i < graph.size(); ++i) {
    text += "task " + to_exact_text(graph.duration[i]);
    if (graph.delay[i] != Duration()) text += " delay " + to_exact_text(graph.delay[i]);
    if (graph.lane[i] != TaskGraph::kNoLane) text += " lane " + std::to_string(graph.lane[i]);
    if (graph.priority[i] != 0) text += " priority " + std::to_string(graph.priority[i]);
    if (graph.gives_way[i] != 0) text += " gives-way";
    text += list_text(" links", part(graph.links, graph.link_begin, i));
    text += list_text(" then", part(graph.successors, graph.successor_begin, i)) + "\n";
  }
  for (const TaskGraph::MemoryDelta& delta : graph.memory) {
    text += "memory " + std::to_string(delta.task) + " " +
            std::string(kWhen[static_cast<std::size_t>(delta.when)]) + " " + std::to_string(delta.account) +
            " " + std::to_string(delta.bytes.count()) + "\n";
  }
  return text;
}

TaskGraph parse_task_graph(std::string_view text) {
  TaskGraph graph = empty_graph();
  for (const auto& [number, words] : split_lines(text)) {
    try {
      read_line(graph, words);
    } catch (const InputError& error) {
      throw InputError("line " + std::to_string(number) + ": " + error.what());
    }
  }
  return graph;
}

nlohmann::ordered_json task_graph_to_json(const TaskGraph& graph) {
  Json lanes = Json::array(), tasks = Json::array(), initial = Json::array(), memory = Json::array();
  for (std::size_t lane = 0; lane < graph.lane_order.size(); ++lane) {
    lanes.push_back({{"order", kOrder[static_cast<std::size_t>(graph.lane_order[lane])]},
                     {"tasks", numbers(part(graph.order, graph.order_begin, lane))}});
  }
  for (std::size_t i = 0; i < graph.size(); ++i) {
    Json task = {{"duration_ns", graph.duration[i].count()}};
    if (graph.delay[i] != Duration()) task["delay_ns"] = graph.delay[i].count();
    if (graph.lane[i] != TaskGraph::kNoLane) task["lane"] = graph.lane[i];
    if (graph.priority[i] != 0) task["priority"] = graph.priority[i];
    if (graph.gives_way[i] != 0) task["gives_way"] = true;
    const auto links = part(graph.links, graph.link_begin, i);
    if (!links.empty()) task["links"] = numbers(links);
    const auto then = part(graph.successors, graph.successor_begin, i);
    if (!then.empty()) task["then"] = numbers(then);
    tasks.push_back(std::move(task));
  }
  for (const Bytes bytes : graph.initial) initial.push_back(bytes.count());
  for (const TaskGraph::MemoryDelta& delta : graph.memory) {
    memory.push_back({{"task", delta.task},
                      {"when", kWhen[static_cast<std::size_t>(delta.when)]},
                      {"account", delta.account},
                      {"bytes", delta.bytes.count()}});
  }
  return {{"format", kFormat},         {"links", graph.link_count},     {"lanes", std::move(lanes)},
          {"tasks", std::move(tasks)}, {"initial", std::move(initial)}, {"memory", std::move(memory)}};
}

TaskGraph task_graph_from_json(const nlohmann::ordered_json& json, const std::string& where) {
  const JsonCursor root(json, where);
  root.expect_format(kFormat);
  root.only({"format", "links", "lanes", "tasks", "initial", "memory"});
  TaskGraph graph = empty_graph();
  graph.link_count = index_at(root.at("links"));
  const JsonCursor lanes = root.at("lanes"), tasks = root.at("tasks"), initial = root.at("initial"),
                   memory = root.at("memory");
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const JsonCursor lane = lanes.at(i);
    lane.only({"order", "tasks"});
    const auto order = order_named(lane.at("order").string());
    if (!order) lane.at("order").fail("is not known; expected in-order or by-priority");
    graph.lane_order.push_back(*order);
    append(lane.at("tasks"), graph.order);
    end_lane(graph);
  }
  for (std::size_t i = 0; i < tasks.size(); ++i) task_from_json(graph, tasks.at(i));
  for (std::size_t i = 0; i < initial.size(); ++i)
    graph.initial.push_back(Bytes(initial.at(i).integer(-kMaxBytes, kMaxBytes)));
  for (std::size_t i = 0; i < memory.size(); ++i) graph.memory.push_back(memory_from_json(memory.at(i)));
  return graph;
}

}  // namespace espalier
