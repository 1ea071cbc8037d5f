#include "espalier/learned/varied_samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

constexpr std::array<double, 4> kSharpness = {4, 1, 8, 2};
constexpr std::array<double, 4> kLeanings = {0, 0.5, 1.5, 5};
constexpr std::array<double, 2> kLooseness = {1, 1.25};
constexpr std::array<double, 3> kOfWork = {1, 0.5, 0};
// Devices differ in room by so much, first not at all: layers are few and coarse, so cuts must be able to
// move by one of them.
constexpr std::array<double, 4> kRoom = {0, 0.15, 0.3, 0.6};

// What the samples of a turn are, and how many of that kind come before.
enum Kind : std::uint8_t { kNodes, kLayers, kSplit };
constexpr std::array<std::pair<Kind, std::size_t>, 8> kKinds = {{{kNodes, 0},
                                                                 {kLayers, 0},
                                                                 {kSplit, 0},
                                                                 {kLayers, 1},
                                                                 {kNodes, 1},
                                                                 {kSplit, 1},
                                                                 {kLayers, 2},
                                                                 {kSplit, 2}}};
constexpr std::array<std::size_t, 3> kOf = {2, 3, 3};  // of each kind a turn

// A factor for each device, drawn log-normally.
std::vector<double> drawn_factors(std::size_t devices, double deviation, Rng& rng) {
  std::vector<double> factor;
  for (std::size_t d = 0; d < devices; ++d) {
    double normal = -6;  // the sum of twelve uniform draws is as good as normal here
    for (int k = 0; k < 12; ++k) normal += rng.unit();
    factor.push_back(std::exp(deviation * normal));
  }
  return factor;
}

// Each row times a factor for each device, to a power, as probabilities again. A row of zeros stays as it is.
std::vector<float> leaning_rows(std::span<const float> probability, std::span<const double> factor,
                                double power) {
  std::vector<float> rows(probability.begin(), probability.end());
  for (std::size_t begin = 0; begin < rows.size(); begin += factor.size()) {
    double sum = 0;
    for (std::size_t d = 0; d < factor.size(); ++d)
      sum += std::pow(static_cast<double>(probability[begin + d]) * factor[d], power);
    for (std::size_t d = 0; d < factor.size() && sum > 0; ++d) {
      rows[begin + d] =
          static_cast<float>(std::pow(static_cast<double>(probability[begin + d]) * factor[d], power) / sum);
    }
  }
  return rows;
}

// Devices by the mean layer of their work, as the policy has it; equals by number.
std::vector<std::size_t> devices_along(const LayerRows& rows, std::span<const float> of_layers) {
  std::vector<double> place(rows.devices), work(rows.devices, 1e-12);
  for (std::size_t l = 0; l < rows.layers; ++l) {
    for (std::size_t d = 0; d < rows.devices; ++d) {
      const std::size_t at = l * rows.devices + d;
      const double part = rows.work[at] * static_cast<double>(of_layers[at]);
      place[d] += part * static_cast<double>(l);
      work[d] += part;
    }
  }
  std::vector<std::size_t> order(rows.devices);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return place[a] / work[a] < place[b] / work[b]; });
  return order;
}

class Sampler {
 public:
  Sampler(const PlacementTask& task, std::span<const float> probability)
      : task_(task), probability_(probability), devices_(task.input().devices) {
    measure_layers();
    average_layers();
    order_ = devices_along(rows_, of_layers_);
  }

  Assignment sample(std::size_t number, std::uint64_t seed) const {
    Rng rng(stream_key(seed, {number, 1}));
    const auto [kind, before] = kKinds[number % kKinds.size()];
    const std::size_t turn = number / kKinds.size() * kOf[kind] + before;
    if (kind == kSplit) return split(turn, rng);
    const double leaning = kLeanings[turn % kLeanings.size()];
    const double power = kSharpness[turn / kLeanings.size() % kSharpness.size()];
    const std::vector<double> factor = drawn_factors(devices_, leaning, rng);
    const std::span<const float> from = kind == kLayers ? std::span<const float>(of_layers_) : probability_;
    NodeDevices drawn = std::move(
        draw(leaning_rows(from, factor, power), devices_, 1, stream_key(seed, {number, 2})).front());
    return assignment_of_clusters(task_.clusters(), kind == kLayers ? by_layer_of_node(drawn) : drawn);
  }

 private:
  void measure_layers() {
    const Instance& instance = task_.instance();
    for (const std::uint32_t layer : task_.layer_of_unit())
      rows_.layers = std::max<std::size_t>(rows_.layers, layer + 1);
    rows_.devices = devices_;
    const std::size_t cells = rows_.layers * devices_;
    rows_.work.resize(cells);
    rows_.bytes.resize(cells);
    rows_.value.resize(cells);
    for (std::size_t u = 0; u < instance.units(); ++u) {
      const std::size_t row = task_.layer_of_unit()[u] * devices_;
      const std::size_t node = task_.clusters().of_unit[u] * devices_;
      const double bytes = bytes_of(UnitId(u));
      for (std::size_t d = 0; d < devices_; ++d) {
        double time = 0;
        for (const TaskId task : instance.tasks_of[u])
          time += static_cast<double>(instance.time_on(task, DeviceId(d)).count()) + 1;
        rows_.work[row + d] += time;
        rows_.bytes[row + d] += bytes / (static_cast<double>(instance.memory[d].count()) + 1);
        rows_.value[row + d] += time * std::log(static_cast<double>(probability_[node + d]) + 1e-12);
      }
    }
    const double all = std::accumulate(rows_.work.begin(), rows_.work.end(), 1e-9);
    for (std::size_t cell = 0; cell < cells; ++cell) {
      rows_.work[cell] *= static_cast<double>(devices_) / all;
      rows_.value[cell] *= static_cast<double>(devices_) / all;
    }
  }

  double bytes_of(UnitId unit) const {
    const Instance& instance = task_.instance();
    std::int64_t bytes = 0;
    for (const TaskId task : instance.tasks_of[unit.index()]) {
      for (const ValueId value : instance.produces[task.index()])
        bytes += instance.bytes[value.index()].count();
    }
    for (const std::uint32_t resident : instance.resident[unit.index()])
      bytes += instance.resident_bytes[resident].count();
    return static_cast<double>(bytes);
  }

  // Rows of layers: the mean of the logarithms of their units, each by its work.
  void average_layers() {
    of_layers_.resize(rows_.value.size());
    for (std::size_t row = 0; row < of_layers_.size(); row += devices_) {
      double sum = 0;
      std::vector<double> chance;
      for (std::size_t d = 0; d < devices_; ++d) {
        chance.push_back(std::exp(rows_.value[row + d] / std::max(rows_.work[row + d], 1e-12)));
        sum += chance.back();
      }
      for (std::size_t d = 0; d < devices_; ++d)
        of_layers_[row + d] = static_cast<float>(chance[d] / std::max(sum, 1e-12));
    }
  }

  Assignment split(std::size_t turn, Rng& rng) const {
    SplitChoice choice;
    choice.of_work = kOfWork[turn % kOfWork.size()];
    choice.looseness = kLooseness[turn % kLooseness.size()];
    choice.room = drawn_factors(devices_, kRoom[turn / kOfWork.size() % kRoom.size()], rng);
    choice.order = order_;
    const std::vector<std::size_t> of_layer = most_probable_split(rows_, choice);
    return by_layer([&](std::uint32_t layer) { return DeviceId(of_layer[layer]); });
  }

  // Clusters where the layer of their first unit stands, if they may: what must not be parted stays together.
  NodeDevices by_layer_of_node(const NodeDevices& of_layer) const {
    const PolicyInput& input = task_.input();
    NodeDevices placement = most_probable(probability_, devices_);
    for (std::size_t n = 0; n < input.nodes; ++n) {
      const DeviceId wanted = of_layer[input.layer[n]];
      if (input.allowed[n * devices_ + wanted.index()] != 0) placement[n] = wanted;
    }
    return placement;
  }

  // Units where their layer's device is allowed; elsewhere where they most probably are.
  template <class DeviceOf>
  Assignment by_layer(const DeviceOf& device_of) const {
    const Instance& instance = task_.instance();
    Assignment assignment = assignment_of_clusters(task_.clusters(), most_probable(probability_, devices_));
    for (std::size_t u = 0; u < instance.units(); ++u) {
      const DeviceId wanted = device_of(task_.layer_of_unit()[u]);
      const std::span<const DeviceId> allowed = instance.allowed[u];
      if (std::binary_search(allowed.begin(), allowed.end(), wanted)) assignment[u] = wanted;
    }
    return assignment;
  }

  const PlacementTask& task_;
  std::span<const float> probability_;
  std::size_t devices_;
  LayerRows rows_;
  std::vector<float> of_layers_;  // layers × devices
  std::vector<std::size_t> order_;
};

// Sums over the layers before a border, for each device in order.
class SplitSums {
 public:
  SplitSums(const LayerRows& rows, const SplitChoice& choice)
      : devices_(rows.devices), share_((rows.layers + 1) * devices_), value_(share_.size()) {
    for (std::size_t l = 0; l < rows.layers; ++l) {
      for (std::size_t k = 0; k < devices_; ++k) {
        const std::size_t from = l * devices_ + choice.order[k], cell = (l + 1) * devices_ + k;
        const double share = choice.of_work * rows.work[from] + (1 - choice.of_work) * rows.bytes[from];
        const double room = choice.room.empty() ? 1.0 : choice.room[choice.order[k]];
        share_[cell] = share_[cell - devices_] + share / room;
        value_[cell] = value_[cell - devices_] + rows.value[from];
      }
    }
  }

  std::size_t borders() const { return share_.size() / devices_; }
  double share(std::size_t begin, std::size_t end, std::size_t k) const {
    return share_[end * devices_ + k] - share_[begin * devices_ + k];
  }
  double value(std::size_t begin, std::size_t end, std::size_t k) const {
    return value_[end * devices_ + k] - value_[begin * devices_ + k];
  }

 private:
  std::size_t devices_;
  std::vector<double> share_, value_;
};

// What the fullest device has in the most even split.
double least_share(const SplitSums& sums, std::size_t devices) {
  std::vector<double> least(sums.borders(), std::numeric_limits<double>::infinity());
  least[0] = 0;
  for (std::size_t k = 0; k < devices; ++k) {
    std::vector<double> next = least;  // nothing on this device
    for (std::size_t end = 0; end < least.size(); ++end) {
      for (std::size_t begin = 0; begin < end; ++begin)
        next[end] = std::min(next[end], std::max(least[begin], sums.share(begin, end, k)));
    }
    least = std::move(next);
  }
  return least.back();
}

}  // namespace

std::vector<std::size_t> most_probable_split(const LayerRows& rows, const SplitChoice& choice) {
  const SplitSums sums(rows, choice);
  const double most = least_share(sums, rows.devices) * choice.looseness * (1 + 1e-9);
  constexpr double kImpossible = -std::numeric_limits<double>::infinity();
  std::vector<double> best(sums.borders(), kImpossible);
  best[0] = 0;
  std::vector<std::vector<std::size_t>> from(rows.devices, std::vector<std::size_t>(sums.borders()));
  for (std::size_t k = 0; k < rows.devices; ++k) {
    std::vector<double> next(sums.borders(), kImpossible);
    for (std::size_t end = 0; end < sums.borders(); ++end) {
      for (std::size_t begin = 0; begin <= end; ++begin) {
        if (best[begin] == kImpossible || sums.share(begin, end, k) > most) continue;
        const double value = best[begin] + sums.value(begin, end, k);
        if (value <= next[end]) continue;
        next[end] = value;
        from[k][end] = begin;
      }
    }
    best = std::move(next);
  }
  std::vector<std::size_t> of_layer(rows.layers);
  for (std::size_t k = rows.devices, end = rows.layers; k-- > 0;) {
    const std::size_t begin = from[k][end];
    for (std::size_t l = begin; l < end; ++l) of_layer[l] = choice.order[k];
    end = begin;
  }
  return of_layer;
}

std::vector<Assignment> varied_samples(const PlacementTask& task, std::span<const float> probability,
                                       std::size_t count, std::uint64_t seed) {
  std::vector<Assignment> samples(count);
  if (task.input().nodes == 0) return samples;
  const Sampler sampler(task, probability);
  for (std::size_t i = 0; i < count; ++i) samples[i] = sampler.sample(i, seed);
  return samples;
}

}  // namespace espalier::placement
