#include "espalier/learned/grouping.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

void divide_by_largest(std::span<float> part) {
  const float largest = *std::max_element(part.begin(), part.end());
  for (float& number : part) number /= largest + 1;
}

}  // namespace

GroupDescriber::GroupDescriber(const PlacementTask& task, std::size_t groups, GroupFeatures features)
    : input_(task.input()),
      groups_(groups),
      features_(features),
      operators_(input_.nodes),
      sizes_(input_.nodes * kSizes) {
  const Instance& instance = task.instance();
  const auto node_of = [&](TaskId id) { return task.clusters().of_unit[instance.unit[id.index()].index()]; };
  for (std::size_t t = 0; t < instance.tasks(); ++t) operators_[node_of(TaskId(t))] += 1;

  std::vector<double> produced(input_.nodes), resident(input_.nodes);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const std::uint32_t from = node_of(instance.producer[v]);
    produced[from] += static_cast<double>(instance.bytes[v].count());
    for (const TaskId reader : instance.readers[v]) {
      if (node_of(reader) != from) pairs.emplace_back(from, node_of(reader));
    }
  }
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (const std::uint32_t held : instance.resident[u])
      resident[task.clusters().of_unit[u]] += static_cast<double>(instance.resident_bytes[held].count());
  }
  const double all_produced = std::accumulate(produced.begin(), produced.end(), 1e-9);
  const double all_resident = std::accumulate(resident.begin(), resident.end(), 1e-9);
  const auto scale = static_cast<double>(groups);
  for (std::size_t n = 0; n < input_.nodes; ++n) {
    sizes_[n * kSizes] = static_cast<float>(static_cast<double>(input_.work[n]) * scale);
    sizes_[n * kSizes + 1] = static_cast<float>(produced[n] / all_produced * scale);
    sizes_[n * kSizes + 2] = static_cast<float>(resident[n] / all_resident * scale);
  }
  std::sort(pairs.begin(), pairs.end());
  for (const auto& [from, to] : pairs) {
    if (edges_.empty() || edges_.back().from != from || edges_.back().to != to)
      edges_.push_back({from, to, 0});
    edges_.back().values += 1;
  }
}

std::size_t GroupDescriber::width() const {
  const std::size_t published = kOperatorTypes + kSizes + 2 * groups_;
  return features_ == GroupFeatures::kPublished ? published : published + kNodeNumbers + kSizes;
}

void GroupDescriber::write_counts(const Grouping& grouping, std::span<float> rows) const {
  const std::size_t width = this->width();
  for (std::size_t n = 0; n < input_.nodes; ++n) {
    float* row = rows.data() + grouping[n] * width;
    for (std::size_t i = input_.types.begin[n]; i < input_.types.begin[n + 1]; ++i)
      row[input_.types.items[i]] += input_.type_share[i] * operators_[n];
    for (std::size_t s = 0; s < kSizes; ++s) row[kOperatorTypes + s] += sizes_[n * kSizes + s];
  }
  constexpr std::size_t kTo = kOperatorTypes + kSizes;
  for (const Edge& edge : edges_) {
    const std::uint32_t from = grouping[edge.from], to = grouping[edge.to];
    rows[from * width + kTo + to] += edge.values;
    rows[to * width + kTo + groups_ + from] += edge.values;
  }
}

void GroupDescriber::write_means(const Grouping& grouping, std::span<float> rows) const {
  const std::size_t width = this->width(), begin = kOperatorTypes + kSizes + 2 * groups_;
  std::vector<float> work(groups_);
  for (std::size_t n = 0; n < input_.nodes; ++n) {
    float* means = rows.data() + grouping[n] * width + begin;
    const float* numbers = input_.numbers.data() + n * kNodeNumbers;
    const float weight = input_.work[n] + 1e-9F;
    work[grouping[n]] += weight;
    for (std::size_t i = 0; i < kNodeNumbers; ++i) means[i] += weight * numbers[i];
  }
  for (std::size_t g = 0; g < groups_; ++g) {
    float* means = rows.data() + g * width + begin;
    for (std::size_t i = 0; i < kNodeNumbers; ++i) means[i] /= std::max(work[g], 1e-9F);
    for (std::size_t s = 0; s < kSizes; ++s)
      means[kNodeNumbers + s] = std::log1p(rows[g * width + kOperatorTypes + s]);
  }
}

std::vector<float> GroupDescriber::describe(const Grouping& grouping) const {
  const std::size_t width = this->width();
  std::vector<float> rows(groups_ * width);
  write_counts(grouping, rows);
  if (features_ == GroupFeatures::kMeans) write_means(grouping, rows);
  for (std::size_t g = 0; g < groups_; ++g) {
    const std::span<float> row = std::span(rows).subspan(g * width, width);
    divide_by_largest(row.subspan(0, kOperatorTypes));
    divide_by_largest(row.subspan(kOperatorTypes, kSizes));
    divide_by_largest(row.subspan(kOperatorTypes + kSizes, 2 * groups_));
  }
  return rows;
}

std::vector<float> GroupDescriber::describe_all(std::span<const Grouping> groupings, ThreadPool* pool) const {
  const std::size_t each = groups_ * width();
  std::vector<float> all(groupings.size() * each);
  on_threads(pool, groupings.size(), [&](std::size_t i) {
    const std::vector<float> rows = describe(groupings[i]);
    std::copy(rows.begin(), rows.end(), all.begin() + static_cast<std::ptrdiff_t>(i * each));
  });
  return all;
}

std::vector<Grouping> draw_groupings(std::span<const float> probability, std::size_t groups,
                                     std::size_t count, std::uint64_t seed, ThreadPool* pool) {
  const std::size_t nodes = probability.size() / groups;
  std::vector<Grouping> groupings(count);
  on_threads(pool, count, [&](std::size_t i) {
    Rng rng(stream_key(seed, {i}));
    groupings[i].reserve(nodes);
    for (std::size_t n = 0; n < nodes; ++n) {
      groupings[i].push_back(
          static_cast<std::uint32_t>(drawn_entry(probability.subspan(n * groups, groups), rng.unit())));
    }
  });
  return groupings;
}

std::vector<double> places_by_layer(const PolicyInput& input) {
  std::vector<std::uint32_t> line = input.order;
  std::stable_sort(line.begin(), line.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return input.layer[a] < input.layer[b]; });
  std::vector<double> place(input.nodes);
  for (std::size_t i = 0; i < line.size(); ++i)
    place[line[i]] = static_cast<double>(i) / static_cast<double>(input.nodes);
  return place;
}

}  // namespace espalier::placement
