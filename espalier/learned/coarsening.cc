#include "espalier/learned/coarsening.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

constexpr float kNobody = -std::numeric_limits<float>::infinity();

float scaled_log(double value, double scale) {
  return static_cast<float>(std::log1p(std::max(0.0, value)) / scale);
}

// What a node knows of an edge. Messages are parts of all work, both ways.
struct Neighbour {
  std::uint32_t node;
  double gives, takes;
  double both() const { return gives + takes; }
};

class OptionBuilder {
 public:
  explicit OptionBuilder(const PolicyInput& input) : input_(input), messages_(input.nodes) {
    for (std::size_t n = 0; n < input.nodes; ++n) {
      for (std::size_t i = 0; i < input.neighbours[n].size(); ++i) {
        messages_[n] += static_cast<double>(given(n)[i]);
        messages_[input.neighbours[n][i]] += static_cast<double>(given(n)[i]);
      }
    }
  }

  JoinOptions build() {
    for (std::size_t n = 0; n < input_.nodes; ++n) {
      const std::vector<Neighbour> chosen = longest(n);
      made_.count.push_back(static_cast<std::uint32_t>(chosen.size()));
      made_.target.push_back(static_cast<std::uint32_t>(n));
      for (const Neighbour& each : chosen) {
        made_.target.push_back(each.node);
        describe(n, each);
      }
      made_.target.resize((n + 1) * kJoinEntries, static_cast<std::uint32_t>(n));
    }
    return std::move(made_);
  }

 private:
  std::span<const float> given(std::size_t node) const {
    const std::size_t begin =
        static_cast<std::size_t>(input_.neighbours[node].data() - input_.neighbours.items.data());
    return std::span(input_.given).subspan(begin, input_.neighbours[node].size());
  }

  double given_to(std::size_t from, std::size_t to) const {
    const auto all = input_.neighbours[from];
    const auto place = std::lower_bound(all.begin(), all.end(), to);
    return static_cast<double>(given(from)[static_cast<std::size_t>(place - all.begin())]);
  }

  bool same_devices(std::size_t a, std::size_t b) const {
    const auto row = [&](std::size_t n) {
      return std::span(input_.allowed).subspan(n * input_.devices, input_.devices);
    };
    return std::equal(row(a).begin(), row(a).end(), row(b).begin());
  }

  std::vector<Neighbour> longest(std::size_t node) const {
    std::vector<Neighbour> all;
    for (const std::uint32_t other : input_.neighbours[node]) {
      if (same_devices(node, other)) all.push_back({other, given_to(node, other), given_to(other, node)});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Neighbour& a, const Neighbour& b) { return a.both() > b.both(); });
    all.resize(std::min(all.size(), kMostNeighbours));
    return all;
  }

  void describe(std::size_t node, const Neighbour& other) {
    const auto work = [&](std::size_t n) { return static_cast<double>(input_.work[n]) + 1e-9; };
    const double message = other.both(), both = work(node) + work(other.node);
    const auto part_of = [&](std::size_t n) {
      return static_cast<float>(message / std::max(1e-12, messages_[n]));
    };
    const auto devices = static_cast<double>(input_.devices);
    made_.numbers.insert(
        made_.numbers.end(),
        {scaled_log(message / both, 3), scaled_log(message * devices * 100, 4), part_of(node),
         part_of(other.node), static_cast<float>((other.gives - other.takes) / std::max(1e-12, message)),
         static_cast<float>(std::log(work(other.node) / work(node)) / 5), scaled_log(both * devices, 1),
         input_.layer[node] == input_.layer[other.node] ? 1.0F : 0.0F});
  }

  const PolicyInput& input_;
  std::vector<double> messages_;  // by node: all of them, both ways
  JoinOptions made_;
};

at::Tensor longs(const std::vector<std::int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

}  // namespace

JoinOptions join_options(const PolicyInput& input) {
  ESP_CHECK(input.given.size() == input.neighbours.items.size());
  return OptionBuilder(input).build();
}

Grouping groups_of(std::span<const std::uint32_t> target, const NodeChoices& choices) {
  // A root is the smallest of its component.
  std::vector<std::uint32_t> parent(choices.size());
  std::iota(parent.begin(), parent.end(), std::uint32_t{0});
  const auto root = [&](std::uint32_t node) {
    while (parent[node] != node) node = parent[node] = parent[parent[node]];
    return node;
  };
  for (std::uint32_t n = 0; n < choices.size(); ++n) {
    const std::uint32_t a = root(n), b = root(target[n * kJoinEntries + choices[n]]);
    parent[std::max(a, b)] = std::min(a, b);
  }
  Grouping group(choices.size());
  std::uint32_t groups = 0;
  for (std::uint32_t n = 0; n < group.size(); ++n) {
    const std::uint32_t first = root(n);
    group[n] = first == n ? groups++ : group[first];
  }
  return group;
}

JoinInput::JoinInput(const PolicyInput& input, at::Device device) {
  JoinOptions options = join_options(input);
  const std::size_t nodes = input.nodes;
  std::vector<std::int64_t> node_of, neighbour, slot;
  std::vector<float> begins(nodes * kJoinEntries, kNobody);
  for (std::size_t n = 0; n < nodes; ++n) {
    slot.push_back(static_cast<std::int64_t>(n * kJoinEntries));
    const double others = options.count[n] * kOfItself / (1 - kOfItself);
    begins[n * kJoinEntries] = options.count[n] > 0 ? static_cast<float>(std::log(others)) : 0;
  }
  for (std::size_t n = 0; n < nodes; ++n) {
    for (std::size_t i = 1; i <= options.count[n]; ++i) {
      node_of.push_back(static_cast<std::int64_t>(n));
      neighbour.push_back(options.target[n * kJoinEntries + i]);
      slot.push_back(static_cast<std::int64_t>(n * kJoinEntries + i));
      begins[n * kJoinEntries + i] = 0;
    }
  }
  target = std::move(options.target);
  from = longs(node_of, device);
  to = longs(neighbour, device);
  slots = longs(slot, device);
  numbers = at::tensor(options.numbers, at::kFloat)
                .view({static_cast<std::int64_t>(node_of.size()), static_cast<std::int64_t>(kJoinNumbers)})
                .to(device);
  prior = at::tensor(begins, at::kFloat)
              .view({static_cast<std::int64_t>(nodes), static_cast<std::int64_t>(kJoinEntries)})
              .to(device);
  weight = at::tensor(node_weights(input), at::kFloat).to(device);
}

Groups make_groups(const JoinInput& input, std::vector<Grouping> groupings) {
  Groups made{std::move(groupings), {0}, {}, {}};
  std::vector<std::int64_t> rows;
  for (const Grouping& grouping : made.of_placement) {
    const std::size_t first = made.begin.back();
    std::size_t end = first;
    for (const std::uint32_t group : grouping) {
      rows.push_back(static_cast<std::int64_t>(first + group));
      end = std::max(end, first + group + 1);
    }
    made.begin.push_back(end);
  }
  made.of_node = longs(rows, input.weight.device());
  const at::Tensor weight = input.weight.repeat({static_cast<std::int64_t>(made.of_placement.size())});
  const at::Tensor sum = at::zeros({static_cast<std::int64_t>(made.begin.back())}, weight.options())
                             .index_add(0, made.of_node, weight);
  made.share = (weight / sum.index_select(0, made.of_node)).unsqueeze(1);
  return made;
}

std::vector<Grouping> groupings_of(const JoinInput& input, std::span<const NodeChoices> choices) {
  std::vector<Grouping> groupings;
  for (const NodeChoices& each : choices) groupings.push_back(groups_of(input.target, each));
  return groupings;
}

Groups groups_of_samples(const JoinInput& input, std::span<const Sample> samples) {
  std::vector<NodeChoices> choices;
  for (const Sample& sample : samples)
    choices.push_back(sample.choices.empty() ? NodeChoices(sample.devices.size()) : sample.choices);
  return make_groups(input, groupings_of(input, choices));
}

NodeDevices of_groups(const Grouping& grouping, const NodeDevices& devices) {
  NodeDevices result;
  for (std::size_t n = 0; n < grouping.size(); ++n) {
    if (grouping[n] == result.size()) result.push_back(devices[n]);
  }
  return result;
}

std::vector<NodeDevices> draw_groups(std::span<const float> probability, std::size_t devices,
                                     const Groups& groups, std::uint64_t seed) {
  std::vector<NodeDevices> result;
  for (std::size_t i = 0; i < groups.of_placement.size(); ++i) {
    const std::size_t first = groups.begin[i] * devices, end = groups.begin[i + 1] * devices;
    const NodeDevices drawn =
        draw(probability.subspan(first, end - first), devices, 1, stream_key(seed, {i})).front();
    NodeDevices& placement = result.emplace_back();
    for (const std::uint32_t group : groups.of_placement[i]) placement.push_back(drawn[group]);
  }
  return result;
}

at::Tensor pooled(const at::Tensor& logits, const Groups& groups) {
  const std::int64_t placements = groups.of_node.size(0) / logits.size(0);
  return at::zeros({static_cast<std::int64_t>(groups.begin.back()), logits.size(1)}, logits.options())
      .index_add(0, groups.of_node, logits.repeat({placements, 1}) * groups.share);
}

NodeChoices best_choices(const at::Tensor& logits) {
  const at::Tensor rows = logits.detach().to(at::kCPU).contiguous();
  const float* values = rows.const_data_ptr<float>();
  NodeChoices best;
  for (std::int64_t n = 0; n < rows.size(0); ++n, values += rows.size(1))
    best.push_back(static_cast<std::uint32_t>(std::max_element(values, values + rows.size(1)) - values));
  return best;
}

at::Tensor kept_together(const at::Tensor& logits, const JoinInput& input,
                         std::span<const std::int64_t> label) {
  std::vector<float> same(input.target.size());
  for (std::size_t i = 0; i < same.size(); ++i)
    same[i] = label[i / kJoinEntries] == label[input.target[i]] ? 1.0F : 0.0F;
  const at::Tensor wanted = at::tensor(same, at::kFloat).view(logits.sizes()).to(logits.device());
  return at::log((at::softmax(logits, 1) * wanted).sum(1));
}

}  // namespace espalier::placement
