#include "testing/random_graphs.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "espalier/base/check.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"

namespace espalier::testing {
namespace {

bool chance(Rng& rng, std::uint64_t percent) {
  return rng.below(100) < percent;
}

template <class Container>
const auto& pick(Rng& rng, const Container& choices) {
  return choices[rng.below(choices.size())];
}

std::string numbered(const char* name, std::size_t i) {
  return name + std::to_string(i);
}

// Which earlier nodes each node reads.
using Inputs = std::vector<std::vector<std::size_t>>;

Inputs dag_inputs(Rng& rng, const RandomGraphOptions& options) {
  Inputs inputs(options.operators);
  for (std::size_t i = 1; i < options.operators; ++i) {
    if (chance(rng, 10)) continue;  // a further source
    const std::size_t count = 1 + rng.below(options.max_inputs);
    for (std::size_t k = 0; k < count; ++k) {
      // Mostly near ones, so that long paths arise.
      const std::size_t reach = chance(rng, 70) ? std::min<std::size_t>(i, 3) : i;
      inputs[i].push_back(i - 1 - rng.below(reach));
    }
    std::sort(inputs[i].begin(), inputs[i].end());
    inputs[i].erase(std::unique(inputs[i].begin(), inputs[i].end()), inputs[i].end());
  }
  return inputs;
}

// Appends `count` ≥ 1 nodes behind `before`, the last of which is behind all others.
void grow(Rng& rng, std::size_t count, std::vector<std::size_t> before, Inputs& inputs) {
  while (count > 0) {
    if (count >= 4 && chance(rng, 50)) {
      // Branches side by side; one more node joins them.
      std::size_t inside = 2 + rng.below(count - 2);
      count -= inside;
      std::vector<std::size_t> ends;
      while (inside > 0) {
        const std::size_t length = 1 + rng.below(std::max<std::size_t>(1, inside / 2));
        grow(rng, length, before, inputs);
        ends.push_back(inputs.size() - 1);
        inside -= length;
      }
      before = std::move(ends);
    }
    inputs.push_back(before);
    before = {inputs.size() - 1};
    --count;
  }
}

class GraphWriter {
 public:
  GraphWriter(Rng& rng, const RandomGraphOptions& options) : rng_(rng), options_(options) {}

  Graph write() {
    ESP_CHECK(options_.operators >= 1, options_.operators);
    Inputs inputs;
    if (options_.shape == GraphShape::kDag) {
      inputs = dag_inputs(rng_, options_);
    } else {
      grow(rng_, options_.operators, {}, inputs);
    }
    text_ = "graph random\nbatch 1.." + std::to_string(options_.max_batch.count()) + "\n";
    text_ += "x = input()" + type() + "\n";
    if (options_.duplicables) text_ += "c = constant() : i64[8]\n";
    node_outputs_.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) write_operator(i, inputs[i]);
    if (options_.unread_duplicables) write_unread();
    if (options_.loss) write_loss();
    return parse_graph(text_);
  }

 private:
  struct Output {
    std::string name;
    bool floating = true;
    bool read = false;
  };

  std::string type(bool floating = true) {
    if (!options_.batch_dependent) return floating ? " : f32[b]" : " : i64[b]";
    static constexpr std::array<std::string_view, 7> kSizes{"b",   "b,4", "2*b,3",   "(b+1)//2,5",
                                                            "b,b", "16",  "max(b,4)"};
    return std::string(" : ") + (floating ? chance(rng_, 80) ? "f32" : "bf16" : "i64") + "[" +
           std::string(pick(rng_, kSizes)) + "]";
  }

  std::string read_parameter(std::size_t i) {
    if (options_.ties && !parameters_.empty() && chance(rng_, 15)) return pick(rng_, parameters_);
    std::string name = numbered("w", i);
    text_ += name + " = parameter(" + name;
    if (options_.ties && chance(rng_, 10)) text_ += ", tied=tied_" + name;
    if (options_.non_gradient && chance(rng_, 10)) text_ += ", frozen";
    text_ += ") : f32[" + std::to_string(1 + rng_.below(64)) + ",4]\n";
    parameters_.push_back(name);
    return name;
  }

  std::string read_duplicable(std::size_t i) {
    if (!duplicables_.empty() && chance(rng_, 60)) return pick(rng_, duplicables_);
    std::string name = numbered("mask", i);
    const std::string from = duplicables_.empty() || chance(rng_, 50) ? "c" : duplicables_.back();
    text_ += name + " = arange(" + from + ") : i64[8] @duplicable\n";
    duplicables_.push_back(name);
    return name;
  }

  // An output of a node: its first, or its second if it has one.
  Output& output_of(std::size_t node) {
    auto& outputs = node_outputs_[node];
    return outputs[rng_.below(outputs.size())];
  }

  void write_operator(std::size_t i, const std::vector<std::size_t>& inputs) {
    std::vector<std::string> reads;
    bool first_is_float = true;
    for (const std::size_t node : inputs) {
      Output& output = output_of(node);
      output.read = true;
      if (reads.empty()) first_is_float = output.floating;
      reads.push_back(output.name);
    }
    const bool source = reads.empty();
    if (source) reads.emplace_back("x");
    const bool alias = !source && first_is_float && chance(rng_, 15);
    const bool view = alias && options_.views;
    const bool in_place = !view && !source && first_is_float && options_.mutations && chance(rng_, 10);
    if (options_.parameters && chance(rng_, 70)) reads.push_back(read_parameter(i));
    if (options_.duplicables && chance(rng_, 15)) reads.push_back(read_duplicable(i));
    std::string attributes;
    if (options_.mutations && chance(rng_, 8)) {
      const std::string buffer = numbered("stats", i);
      text_ += buffer + " = buffer(" + buffer + ") : f32[4]\n";
      reads.push_back(buffer);
      attributes += " @mutates=" + buffer;
    }
    write_line(i, reads, view ? " @view" : in_place ? " @inplace" : "", attributes);
  }

  void write_line(std::size_t i, const std::vector<std::string>& reads, const std::string& alias,
                  std::string attributes) {
    const std::string name = numbered("n", i);
    const bool two = alias.empty() && options_.several_outputs && chance(rng_, 10);
    const bool integer = alias.empty() && options_.non_gradient && chance(rng_, 8);
    if (options_.non_gradient && chance(rng_, 5)) attributes += " @nograd";
    if (options_.one_class_each) attributes += " @class=" + name;
    static constexpr std::array<std::string_view, 4> kTargets{"linear", "relu", "add", "norm"};
    text_ += name + (two ? ", " + name + "_too" : "") + " = " + std::string(pick(rng_, kTargets)) + "(";
    for (std::size_t k = 0; k < reads.size(); ++k) text_ += (k == 0 ? "" : ", ") + reads[k];
    text_ += ")";
    if (alias.empty()) text_ += type(!integer) + (two ? "," + type().substr(2) : "");
    text_ += alias + attributes + "\n";
    node_outputs_[i].push_back({name, !integer, false});
    if (two) node_outputs_[i].push_back({name + "_too", true, false});
  }

  void write_unread() {
    if (duplicables_.empty()) return;
    std::string from = pick(rng_, duplicables_);
    for (std::size_t i = 0; i < 1 + rng_.below(2); ++i) {
      const std::string name = numbered("unread", i);
      text_ += name + " = arange(" + from + ") : i64[8] @duplicable\n";
      from = name;
    }
  }

  void write_loss() {
    std::string reads;
    for (const auto& outputs : node_outputs_) {
      for (const Output& output : outputs) {
        if (!output.read) reads += (reads.empty() ? "" : ", ") + output.name;
      }
    }
    text_ += "loss = loss(" + reads + ")";
    if (options_.one_class_each) text_ += " @class=loss";
    text_ += "\n";
  }

  Rng& rng_;
  const RandomGraphOptions& options_;
  std::string text_;
  std::vector<std::vector<Output>> node_outputs_;
  std::vector<std::string> parameters_, duplicables_;
};

}  // namespace

Graph random_graph(Rng& rng, const RandomGraphOptions& options) {
  return GraphWriter(rng, options).write();
}

std::vector<Graph> all_small_graphs(std::size_t nodes) {
  ESP_CHECK(nodes <= 5, nodes);
  std::vector<Graph> graphs;
  for (std::size_t n = 1; n <= nodes; ++n) {
    const std::size_t pairs = n * (n - 1) / 2;
    for (std::uint32_t edges = 0; edges < (1U << pairs); ++edges) {
      std::string text = "x = input()\n";
      std::size_t bit = 0;
      for (std::size_t to = 0; to < n; ++to) {
        std::string reads;
        for (std::size_t from = 0; from < to; ++from, ++bit) {
          if ((edges >> bit & 1) != 0) reads += numbered("n", from) + ", ";
        }
        const std::string name = numbered("n", to);
        const std::string weight = numbered("w", to);
        text += weight + " = parameter(" + weight + ") : f32[4]\n";
        text += name + " = op(" + (reads.empty() ? "x, " : reads) + weight + ") @class=" + name + "\n";
      }
      graphs.push_back(parse_graph(text));
    }
  }
  return graphs;
}

Cluster random_cluster(Rng& rng, const RandomClusterOptions& options) {
  std::string text;
  const std::size_t kinds = 1 + rng.below(options.max_kinds);
  for (std::size_t k = 0; k < kinds; ++k) {
    text +=
        numbered("kind k", k) + " " + std::to_string(1 + rng.below(16)) +
        "GiB f32=" + std::to_string(1 + rng.below(20)) + "e12 f16=" + std::to_string(20 + rng.below(300)) +
        "e12 mem=" + std::to_string(100 + rng.below(2000)) + "GB launch=" + std::to_string(rng.below(10)) +
        "us sms=" + std::to_string(1 + rng.below(108)) + (chance(rng, 30) ? " speed=0.5" : "") + "\n";
  }
  const auto group = [&](const std::string& name, std::uint64_t gigabytes) {
    text += "group " + name;
    if (chance(rng, 85)) text += " " + std::to_string(1 + rng.below(gigabytes)) + "GB";
    text += " latency=" + std::to_string(rng.below(50)) + "us";
    if (!options.contention || chance(rng, 20)) text += " lanes=unlimited";
    if (options.endpoint_costs && chance(rng, 20)) text += " send=3us+20ps/B receive=1us";
    text += "\n";
  };
  const std::size_t hosts = 1 + rng.below(options.max_hosts);
  group("network", 20);
  for (std::size_t h = 0; h < hosts; ++h) group(numbered("host", h) + " in network", 300);
  const std::size_t devices = 1 + rng.below(options.max_devices);
  for (std::size_t d = 0; d < devices; ++d) {
    text += numbered("device d", d) + " " + numbered("k", rng.below(kinds)) + " in " +
            numbered("host", rng.below(hosts));
    if (options.own_memory && chance(rng, 20)) text += " memory=512MiB";
    text += "\n";
  }
  return parse_cluster_lines(text);
}

}  // namespace espalier::testing
