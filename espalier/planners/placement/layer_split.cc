#include "espalier/planners/placement/layer_split.h"

#include <algorithm>
#include <set>
#include <vector>

#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kAllCuts = 64;

// Where each device's layers end, ascending; the last one's end is the number of layers.
using Cuts = std::vector<std::size_t>;

class SplitSearch {
 public:
  SplitSearch(const Engine& engine, std::span<const std::uint32_t> layer, Context& context)
      : engine_(engine), layer_(layer), context_(context) {
    for (const std::uint32_t each : layer) layers_ = std::max<std::size_t>(layers_, each + 1);
  }

  std::optional<FittingAssignment> run() {
    const std::size_t devices = engine_.instance().devices();
    if (devices == 2 && layers_ <= kAllCuts) {
      for (std::size_t cut = 0; cut <= layers_; ++cut) look({cut, layers_});
      return std::move(best_);
    }
    for (const Cuts& start : starts()) climb(start);
    return std::move(best_);
  }

 private:
  // Smaller is better: what lacks, then the step.
  using Worth = std::pair<Bytes, Duration>;
  static constexpr Worth kWorst{Bytes::max(), Duration::max()};

  Assignment assignment_of(const Cuts& cuts) const {
    const Instance& instance = engine_.instance();
    std::vector<DeviceId> device;
    for (std::size_t l = 0, d = 0; l < layers_; ++l) {
      while (cuts[d] <= l) ++d;
      device.emplace_back(d);
    }
    Assignment assignment;
    for (std::size_t u = 0; u < instance.units(); ++u) {
      const std::span<const DeviceId> allowed = instance.allowed[u];
      const DeviceId wanted = device[layer_[u]];
      const bool may = std::binary_search(allowed.begin(), allowed.end(), wanted);
      assignment.push_back(may ? wanted : allowed.front());
    }
    return assignment;
  }

  Worth look(const Cuts& cuts) {
    if (!seen_.insert(cuts).second || context_.stop() || !context_.take_state()) return kWorst;
    Assignment assignment = assignment_of(cuts);
    const Evaluated evaluated = engine_.evaluate(assignment, scratch_);
    if (evaluated.deadlock) return kWorst;
    if (evaluated.fits && (!best_ || evaluated.time < best_->time))
      best_ = FittingAssignment{std::move(assignment), evaluated.time};
    return {evaluated.lack, evaluated.time};
  }

  void climb(Cuts cuts) {
    Worth worth = look(cuts);
    for (bool better = true; better;) {
      better = false;
      for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        for (std::size_t step = std::max<std::size_t>(1, layers_ / 4); step > 0; step /= 2) {
          for (const int sign : {-1, 1}) {
            Cuts moved = cuts;
            const std::size_t low = c == 0 ? 0 : cuts[c - 1], high = cuts[c + 1];
            if (sign < 0 ? cuts[c] < low + step : cuts[c] + step > high) continue;
            moved[c] = sign < 0 ? cuts[c] - step : cuts[c] + step;
            const Worth there = look(moved);
            if (worth <= there) continue;
            worth = there;
            cuts = std::move(moved);
            better = true;
          }
        }
      }
    }
  }

  // Ends such that each device has an even part of a quantity of the layers.
  Cuts even(const std::vector<double>& quantity) const {
    const std::size_t devices = engine_.instance().devices();
    double all = 0;
    for (const double each : quantity) all += each;
    Cuts cuts;
    double before = 0;
    for (std::size_t l = 0; l < layers_; ++l) {
      const double middle = before + quantity[l] / 2;
      while (cuts.size() + 1 < devices &&
             middle >= all * static_cast<double>(cuts.size() + 1) / static_cast<double>(devices)) {
        cuts.push_back(l);
      }
      before += quantity[l];
    }
    cuts.resize(devices - 1, layers_);
    cuts.push_back(layers_);
    return cuts;
  }

  std::vector<Cuts> starts() const {
    const Instance& instance = engine_.instance();
    std::vector<double> work(layers_), memory(layers_);
    for (std::size_t t = 0; t < instance.tasks(); ++t) {
      const std::size_t unit = instance.unit[t].index();
      work[layer_[unit]] +=
          static_cast<double>(instance.time_on(TaskId(t), instance.allowed[unit].front()).count());
      for (const ValueId value : instance.produces[t])
        memory[layer_[unit]] += static_cast<double>(instance.bytes[value.index()].count());
    }
    for (std::size_t u = 0; u < instance.units(); ++u) {
      for (const std::uint32_t resident : instance.resident[u])
        memory[layer_[u]] += static_cast<double>(instance.resident_bytes[resident].count());
    }
    std::vector<Cuts> all{even(work), even(memory), even(std::vector<double>(layers_, 1.0))};
    if (const Placed placed = human_expert(instance, layer_); placed.assignment) {
      Cuts cuts(instance.devices(), 0);
      for (std::size_t u = 0; u < instance.units(); ++u) {
        std::size_t& end = cuts[(*placed.assignment)[u].index()];
        end = std::max<std::size_t>(end, layer_[u] + 1);
      }
      for (std::size_t d = 1; d < cuts.size(); ++d) cuts[d] = std::max(cuts[d], cuts[d - 1]);
      cuts.back() = layers_;
      all.push_back(cuts);
    }
    return all;
  }

  const Engine& engine_;
  std::span<const std::uint32_t> layer_;
  Context& context_;
  Scratch scratch_;
  std::size_t layers_ = 0;
  std::set<Cuts> seen_;
  std::optional<FittingAssignment> best_;
};

}  // namespace

std::optional<FittingAssignment> best_layer_split(const Engine& engine, std::span<const std::uint32_t> layer,
                                                  Context& context) {
  if (engine.instance().units() == 0) return FittingAssignment{{}, {}};
  return SplitSearch(engine, layer, context).run();
}

}  // namespace espalier::placement
