// Piper's optimum by bisection of its objective (Tarnawski et al., NeurIPS 2021, section 4).
//
//   paper                          here
//   D, D' downsets from the sinks  sets of `Downsets` over reversed edges
//   TPS of (S, t, d, s)            stage_time(compute(y), …), y = ⌈s / d⌉
//   A[D][k][s]                     front of D: for each s the fewest devices, if fewer than before
//
// The authors fill a table over devices and s for every pair of downsets. We ask instead "is there a plan
// with TPS ≤ T?", for which a downset needs only its Pareto front. For a pair, t and d, the stage takes at
// most T up to some number ŷ of micro-batches in flight; so it can stand in front of any plan of the smaller
// downset with s ≤ d·(ŷ − 1). The choice of ways depends on t and y, not on d, and needs both only between
// "all plain fits" and "nothing fits".
//
// How we deviate: the authors' table ignores improvements below 1e-9 and may thus end that much above the
// optimum of its own model; bisection ends at the optimum, proved by one last search below it.
//
// Bad cases: thousands of downsets with no threshold to prune by, that is, no plan at all.

#include "espalier/planners/literal/piper.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/planners/literal/downsets.h"
#include "espalier/planners/literal/piper_model.h"

namespace espalier::literal {
namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr double kLeastSaving = 1e-9;  // bytes, as the authors compare
constexpr double kPruneSlack = 1e-9;   // relative: what lower bounds may be off by

// The ways of a stage at one degree, as the number of micro-batches in flight grows.
class StageWays {
 public:
  // `layers` are those of the stage, ascending.
  void reset(const PiperModel& model, std::size_t degree, const std::vector<std::uint32_t>& layers) {
    model_ = &model;
    ways_ = &model.layers[degree];
    layers_ = &layers;
    plain_ = per_micro_batch_ = fixed_ = parameters_ = 0;
    for (const std::uint32_t v : layers) {
      const LayerWays& ways = (*ways_)[v];
      plain_ += ways.fast.time;
      per_micro_batch_ += ways.fast.per_micro_batch;
      fixed_ += ways.fast.fixed;
      parameters_ += ways.parameters;
    }
    known_.clear();
  }

  double plain() const { return plain_; }  // compute time with every layer at its fastest
  double parameters() const { return parameters_; }

  // Σ time of the layers with y micro-batches in flight; kEndless if nothing fits.
  double compute(std::int64_t y) {
    if (fits_plain(y)) return plain_;
    const auto at = std::lower_bound(known_.begin(), known_.end(), std::pair(y, -1.0));
    if (at != known_.end() && at->first == y) return at->second;
    const double time = choose(y);
    known_.insert(std::lower_bound(known_.begin(), known_.end(), std::pair(y, -1.0)), {y, time});
    return time;
  }

  // The layers that are not at their fastest then, in the order of their swaps. Only where compute(y) is
  // finite.
  std::vector<std::uint32_t> swapped(std::int64_t y) {
    swaps_.clear();
    taken_ = 0;
    if (!fits_plain(y)) choose(y);
    std::vector<std::uint32_t> result;
    for (std::size_t i = 0; i < taken_; ++i) result.push_back(swaps_[i].layer);
    return result;
  }

 private:
  struct Swap {
    double price = 0;  // time per byte
    std::uint32_t layer = 0;
    double saving = 0, time = 0;
  };

  bool fits_plain(std::int64_t y) const {
    return per_micro_batch_ * static_cast<double>(y) + fixed_ <= model_->memory;
  }

  double choose(std::int64_t in_flight) {
    const auto y = static_cast<double>(in_flight);
    swaps_.clear();
    taken_ = 0;
    double bytes = 0, least = 0;
    for (const std::uint32_t v : *layers_) {
      const LayerWays& ways = (*ways_)[v];
      const double own = ways.fast.bytes(y);
      bytes += own;
      const double saving = ways.other ? own - ways.other->bytes(y) : 0;
      least += own - std::max(0.0, saving);
      if (saving <= kLeastSaving) continue;
      const double slower = ways.other->time - ways.fast.time;
      swaps_.push_back({slower / saving, v, saving, slower});
    }
    if (least > model_->memory) return kEndless;
    std::sort(swaps_.begin(), swaps_.end(), [](const Swap& a, const Swap& b) {
      return std::tie(a.price, a.layer) < std::tie(b.price, b.layer);
    });
    double excess = bytes - model_->memory, time = plain_;
    while (taken_ < swaps_.size() && excess >= kLeastSaving) {
      excess -= swaps_[taken_].saving;
      time += swaps_[taken_].time;
      ++taken_;
    }
    return time;
  }

  const PiperModel* model_ = nullptr;
  const std::vector<LayerWays>* ways_ = nullptr;
  const std::vector<std::uint32_t>* layers_ = nullptr;
  double plain_ = 0, per_micro_batch_ = 0, fixed_ = 0, parameters_ = 0;
  std::vector<std::pair<std::int64_t, double>> known_;  // compute(y), ascending
  std::vector<Swap> swaps_;
  std::size_t taken_ = 0;
};

struct FoundStage {
  std::uint32_t set = 0, smaller = 0;
  std::size_t degree = 0;
  std::uint32_t replicas = 1;
  std::int64_t s = 0;  // Σ d from this stage to the last
};

class PiperSearch {
 public:
  PiperSearch(const PiperModel& model, const Downsets& sets)
      : model_(model), sets_(sets), words_(sets.words()) {
    for (std::uint32_t s = 0; s < sets.size(); ++s) {
      Weight weight{.set = s};
      for (std::size_t v = 0; v < sets.items(); ++v) {
        if (!sets.has(s, v)) continue;
        weight.work += model.work[v];
        weight.bytes += model.bytes[v];
        ++weight.layers;
      }
      weights_.push_back(weight);
    }
    total_ = weights_.back();
    // Replicas hold the same, so a stage has the memory of its tensor-parallel group alone.
    const double group = model.degrees.empty() ? 0 : model.degrees.back();
    most_stage_bytes_ = group * model.memory + kPruneSlack * total_.bytes;
    std::sort(weights_.begin(), weights_.end(), [](const Weight& a, const Weight& b) {
      return std::tie(a.work, a.layers, a.set) < std::tie(b.work, b.layers, b.set);
    });
    fewest_.resize(static_cast<std::size_t>(model.most_s) + 1);
    from_.resize(fewest_.size());
  }

  double least_time() const { return total_.work / static_cast<double>(model_.devices); }
  std::uint64_t pairs() const { return pairs_; }

  // The stages, first to last, of a plan with a TPS of at most `threshold`; empty if there is none.
  std::vector<FoundStage> search(double threshold) {
    threshold_ = threshold;
    rows_.clear(), front_.clear(), bits_.clear();
    for (const Weight& weight : weights_) {
      if (lacks(weight, 0)) continue;
      add(weight);
    }
    if (rows_.empty() || rows_.back().weight.set != total_.set) return {};
    return trace_back();
  }

 private:
  struct Weight {  // of a downset: sums that bound what it needs
    double work = 0, bytes = 0;
    std::size_t layers = 0;
    std::uint32_t set = 0;
  };
  struct Row {
    Weight weight;
    std::size_t begin = 0, end = 0;  // of its front
  };
  struct Origin {
    std::uint32_t row = 0, point = 0;
    std::uint32_t degree = 0, replicas = 0;
  };
  struct Point {
    std::int64_t s = 0, devices = 0;
    Origin origin;
  };
  struct Choice {
    std::uint32_t degree = 0, replicas = 0;
    std::int64_t devices = 0;
    std::int64_t most_s = 0;  // of the plan behind it
  };

  // Whether the layers outside cannot be done by the devices that are left of `used`.
  bool lacks(const Weight& weight, std::int64_t used) const {
    const double left = static_cast<double>(model_.devices - used) * (1 + kPruneSlack);
    const double work = total_.work - weight.work, bytes = total_.bytes - weight.bytes;
    return (threshold_ < kEndless && work > left * threshold_ + kPruneSlack * total_.work) ||
           bytes > left * model_.memory + kPruneSlack * total_.bytes;
  }

  // That do the work within the threshold.
  std::int64_t least_devices(double work) const {
    if (threshold_ == kEndless) return work > 0 ? 1 : 0;
    const double devices = (work - kPruneSlack * total_.work) / threshold_;
    if (!(devices <= static_cast<double>(model_.devices))) return model_.devices + 1;
    return std::max(work > 0 ? std::int64_t{1} : 0, static_cast<std::int64_t>(std::ceil(devices)));
  }

  void add(const Weight& weight) {
    const std::uint64_t* const bits = sets_.row(weight.set);
    const std::size_t begin = front_.size();
    if (weight.layers == 0) {
      front_.push_back({});
    } else {
      std::fill(fewest_.begin(), fewest_.end(), model_.devices + 1);
      const std::int64_t outside = least_devices(total_.work - weight.work);
      for (std::size_t r = rows_.size(); r-- > 0;) {
        const Row& row = rows_[r];
        const double work = weight.work - row.weight.work;
        if (least_devices(work) > model_.devices) break;  // rows stand in order of work
        stage_devices_ = model_.devices - front_[row.end - 1].devices - outside;
        if (least_devices(work) > stage_devices_) continue;
        if (weight.bytes - row.weight.bytes > most_stage_bytes_) continue;
        if (is_subset(bits_.data() + r * words_, bits, words_)) extend(static_cast<std::uint32_t>(r), bits);
      }
      keep_front(weight);
    }
    if (front_.size() == begin) return;
    rows_.push_back({weight, begin, front_.size()});
    bits_.insert(bits_.end(), bits, bits + words_);
  }

  void keep_front(const Weight& weight) {
    std::int64_t fewest = model_.devices + 1;
    for (std::size_t s = 0; s < fewest_.size(); ++s) {
      if (fewest_[s] >= fewest) continue;
      fewest = fewest_[s];
      if (!lacks(weight, fewest)) front_.push_back({static_cast<std::int64_t>(s), fewest, from_[s]});
    }
  }

  // Offers stages of the layers that `bits` has more than row r.
  void extend(std::uint32_t r, const std::uint64_t* bits) {
    ++pairs_;
    const Row row = rows_[r];
    least_s_ = front_[row.begin].s;
    most_s_ = front_[row.end - 1].s;
    find_layers(bits_.data() + r * words_, bits);
    find_choices();
    for (const Choice& choice : choices_) {
      for (std::size_t p = row.begin; p < row.end && front_[p].s <= choice.most_s; ++p) {
        const std::int64_t devices = front_[p].devices + choice.devices;
        const auto s = static_cast<std::size_t>(front_[p].s + choice.replicas);
        if (s >= fewest_.size() || devices >= fewest_[s]) continue;
        fewest_[s] = devices;
        from_[s] = {r, static_cast<std::uint32_t>(p), choice.degree, choice.replicas};
      }
    }
  }

  void find_layers(const std::uint64_t* smaller, const std::uint64_t* bits) {
    layers_.clear();
    inside_.assign(words_, 0);
    for (std::size_t w = 0; w < words_; ++w) {
      inside_[w] = bits[w] & ~smaller[w];
      for (std::uint64_t left = inside_[w]; left != 0; left &= left - 1)
        layers_.push_back(
            static_cast<std::uint32_t>(w * 64 + static_cast<std::size_t>(std::countr_zero(left))));
    }
  }

  double border(std::size_t degree) const {
    double bytes = 0;
    for (const std::uint32_t v : layers_) {
      for (const BorderEdge& edge : model_.edges[v]) {
        if ((inside_[edge.peer / 64] >> (edge.peer % 64) & 1) == 0) bytes += edge.bytes[degree];
      }
    }
    return bytes;
  }

  // Degrees at which the layers meet the threshold, less those that another beats in all respects.
  void find_choices() {
    choices_.clear();
    for (std::size_t degree = 0; degree < model_.degrees.size(); ++degree) {
      const std::vector<LayerWays>& ways = model_.layers[degree];
      if (!std::all_of(layers_.begin(), layers_.end(), [&](std::uint32_t v) { return ways[v].listed; }))
        continue;
      stage_.reset(model_, degree, layers_);
      const double bytes = border(degree);
      std::int64_t furthest = -1;
      for (const std::uint32_t d : model_.replicas) {
        const std::int64_t devices = std::int64_t{d} * model_.degrees[degree];
        const std::int64_t furthest_use = std::min(most_s_, model_.most_s - std::int64_t{d});
        if (devices > stage_devices_ || furthest_use < least_s_ || furthest >= furthest_use) break;
        const std::int64_t in_flight = most_in_flight(bytes, d, furthest_use);
        const std::int64_t most_s = std::min(d * (in_flight - 1), furthest_use);
        if (in_flight == 0 || most_s <= furthest) continue;
        furthest = most_s;
        const bool beaten = std::any_of(choices_.begin(), choices_.end(), [&](const Choice& other) {
          return other.devices <= devices && other.replicas <= d && other.most_s >= most_s;
        });
        if (!beaten) choices_.push_back({static_cast<std::uint32_t>(degree), d, devices, most_s});
      }
    }
  }

  // The most micro-batches in flight with which the stage meets the threshold on d replicas, of those that it
  // has before plans with a Σ d from least_s_ to `furthest`; 0: not even the least.
  std::int64_t most_in_flight(double border_bytes, std::uint32_t d, std::int64_t furthest) {
    const auto meets = [&](double compute) {
      return compute < kEndless &&
             model_.stage_time(compute, border_bytes, stage_.parameters(), d) <= threshold_;
    };
    const auto in_flight = [&](std::int64_t s) { return (s + d - 1) / d + 1; };
    std::int64_t good = in_flight(least_s_), bad = in_flight(furthest) + 1;
    if (!meets(stage_.plain()) || !meets(stage_.compute(good))) return 0;
    while (bad - good > 1) {
      const std::int64_t y = good + (bad - good) / 2;
      (meets(stage_.compute(y)) ? good : bad) = y;
    }
    return good;
  }

  std::vector<FoundStage> trace_back() const {
    std::vector<FoundStage> stages;
    const Row* row = &rows_.back();
    std::size_t point = row->begin;
    while (row->weight.layers > 0) {
      const Point& at = front_[point];
      const Row* const smaller = &rows_[at.origin.row];
      stages.push_back({row->weight.set, smaller->weight.set, at.origin.degree, at.origin.replicas, at.s});
      point = at.origin.point;
      row = smaller;
    }
    return stages;
  }

  const PiperModel& model_;
  const Downsets& sets_;
  std::size_t words_;
  std::vector<Weight> weights_;  // of all downsets, by work
  Weight total_;
  double most_stage_bytes_ = 0;
  std::int64_t stage_devices_ = 0;         // that the stage which is looked at may have
  std::int64_t least_s_ = 0, most_s_ = 0;  // of the plans behind it
  double threshold_ = kEndless;
  std::vector<Row> rows_;             // downsets that a plan within the threshold may pass
  std::vector<std::uint64_t> bits_;   // of rows_
  std::vector<Point> front_;          // of rows_: by ascending s, devices descending
  std::vector<std::int64_t> fewest_;  // of the downset that is added: by s, the fewest devices
  std::vector<Origin> from_;
  std::vector<std::uint32_t> layers_;  // of the stage that is looked at
  std::vector<std::uint64_t> inside_;
  std::vector<Choice> choices_;
  StageWays stage_;
  std::uint64_t pairs_ = 0;
};

// The plan as a value, each stage priced again.
std::vector<PiperStage> stages_of(const PiperModel& model, const Downsets& sets,
                                  const std::vector<FoundStage>& found) {
  std::vector<PiperStage> result;
  for (const FoundStage& stage : found) {
    std::vector<std::uint32_t> layers;
    double border = 0, bytes = 0;
    for (std::uint32_t v = 0; v < sets.items(); ++v) {
      if (sets.has(stage.set, v) && !sets.has(stage.smaller, v)) layers.push_back(v);
    }
    for (const std::uint32_t v : layers) {
      for (const BorderEdge& edge : model.edges[v]) {
        const bool inside = sets.has(stage.set, edge.peer) && !sets.has(stage.smaller, edge.peer);
        if (!inside) border += edge.bytes[stage.degree];
      }
    }
    const std::int64_t y = (stage.s + stage.replicas - 1) / stage.replicas;
    StageWays ways;
    ways.reset(model, stage.degree, layers);
    PiperStage out;
    out.tensor = model.degrees[stage.degree];
    out.data = stage.replicas;
    out.in_flight = y;
    out.time = model.stage_time(ways.compute(y), border, ways.parameters(), stage.replicas);
    std::vector<std::uint32_t> swapped = ways.swapped(y);
    std::sort(swapped.begin(), swapped.end());
    for (const std::uint32_t v : layers) {
      const LayerWays& layer = model.layers[stage.degree][v];
      const bool other = std::binary_search(swapped.begin(), swapped.end(), v);
      const LayerWays::Way& way = other ? *layer.other : layer.fast;
      bytes += way.bytes(static_cast<double>(y));
      if (way.recompute) out.recomputed.push_back(v);
    }
    out.bytes = bytes;
    out.nodes.assign(layers.begin(), layers.end());
    result.push_back(std::move(out));
  }
  return result;
}

double longest(const std::vector<PiperStage>& stages) {
  double time = 0;
  for (const PiperStage& stage : stages) time = std::max(time, stage.time);
  return time;
}

// Replaces `best` by better plans over `sets` until there is none. Empty: no plan yet.
void improve(const PiperModel& model, const Downsets& sets, std::vector<PiperStage>& best,
             PiperResult& result) {
  PiperSearch search(model, sets);
  double low = search.least_time();
  const auto try_at = [&](double threshold) {
    ++result.searches;
    const std::vector<FoundStage> found = search.search(threshold);
    if (found.empty()) return false;
    best = stages_of(model, sets, found);
    return true;
  };
  const auto may_be_better = [&] { return best.empty() || longest(best) > 0; };
  while (may_be_better() && try_at(best.empty() ? kEndless : std::nextafter(longest(best), 0.0))) {
    constexpr double kNarrow = 1e-4;  // from there, from plan to plan
    for (double high = longest(best); high - low > kNarrow * high; high = longest(best)) {
      const double middle = low + (high - low) / 2;
      if (!try_at(middle)) low = middle;
    }
  }
  result.pairs += search.pairs();
}

}  // namespace

PiperResult piper(const PiperProfile& profile, const PiperOptions& options) {
  const PiperModel model = piper_model(profile, options);
  PiperResult result;
  improve(model, prefixes(topological_order(model.after)), result.stages, result);
  const std::optional<Downsets> sets = enumerate_downsets(model.after, options.max_downsets);
  if (!sets) {
    result.stages.clear();
    result.why = "the graph has more than " + std::to_string(options.max_downsets) + " downsets";
    return result;
  }
  result.downsets = sets->size();
  improve(model, *sets, result.stages, result);
  if (result.stages.empty()) {
    result.why = "no plan fits " + std::to_string(model.devices) + " devices of " +
                 std::to_string(static_cast<std::int64_t>(model.memory)) + " bytes";
    return result;
  }
  result.time_per_sample = longest(result.stages);
  for (const PiperStage& stage : result.stages)
    result.devices += std::int64_t{stage.tensor} * std::int64_t{stage.data};
  return result;
}

std::vector<std::string> check_piper(const PiperProfile& profile, const PiperOptions& options,
                                     const PiperResult& result) {
  std::vector<std::string> wrong;
  if (!result.found()) return wrong;
  const auto say = [&](bool holds, const std::string& what) {
    if (!holds) wrong.push_back(what);
  };
  const auto close = [](double a, double b) {
    return std::abs(a - b) <= 1e-9 * std::max(std::abs(b), 1e-12);
  };
  const std::int64_t batches = options.micro_batches.value_or(profile.micro_batches);
  const double bandwidth = options.bandwidth.value_or(profile.bandwidth);
  constexpr std::size_t kNowhere = ~std::size_t{0};
  std::vector<std::size_t> place(profile.nodes.size(), kNowhere);
  std::int64_t devices = 0, behind = 0;
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    const PiperStage& stage = result.stages[s];
    for (const std::size_t node : stage.nodes) {
      if (node >= place.size() || place[node] != kNowhere) return {"a layer is not there or stands twice"};
      place[node] = s;
    }
    devices += std::int64_t{stage.tensor} * std::int64_t{stage.data};
    behind += stage.data;
    say(stage.data > 0 && batches % stage.data == 0,
        "a degree of data parallelism does not divide the batch");
    say(options.data_parallel || stage.data == 1, "data parallelism is not allowed");
    say(options.tensor_parallel || stage.tensor == 1, "tensor parallelism is not allowed");
    say(options.recompute || stage.recomputed.empty(), "recomputation is not allowed");
  }
  if (std::find(place.begin(), place.end(), kNowhere) != place.end()) return {"a layer is in no stage"};
  say(devices == result.devices, "the number of devices is another");
  say(devices <= options.devices.value_or(profile.devices), "too many devices are used");
  say(behind <= batches, "more replicas than micro-batches");
  std::vector<double> time(result.stages.size()), bytes(result.stages.size()), border(result.stages.size());
  const auto way_of = [&](std::size_t node) -> const PiperProfile::Way* {
    const PiperStage& stage = result.stages[place[node]];
    const bool recompute =
        std::find(stage.recomputed.begin(), stage.recomputed.end(), node) != stage.recomputed.end();
    for (const PiperProfile::Way& way : profile.nodes[node].ways) {
      if (way.degree == stage.tensor && way.recompute == recompute) return &way;
    }
    return nullptr;
  };
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    const PiperStage& stage = result.stages[s];
    const std::int64_t y = (behind + stage.data - 1) / stage.data;
    say(stage.in_flight == y,
        "stage " + std::to_string(s) + " has another number of micro-batches in flight");
    behind -= stage.data;
    for (const std::size_t node : stage.nodes) {
      const PiperProfile::Way* const way = way_of(node);
      if (!way) return {"a layer has no such way to run"};
      time[s] += way->time / stage.data + 4.0 * (stage.data - 1) * way->parameters / stage.data /
                                              static_cast<double>(batches) / bandwidth;
      bytes[s] += way->memory_per_micro_batch * static_cast<double>(y) + way->memory_fixed;
    }
  }
  const auto sync = [&](const std::vector<PiperProfile::PeerBytes>& list, std::size_t peer) {
    double sum = 0;
    for (const PiperProfile::PeerBytes& entry : list)
      sum += entry.peer == std::to_string(profile.nodes[peer].id) ? entry.bytes : 0;
    return sum;
  };
  for (const PiperProfile::Edge& edge : profile.edges) {
    const std::size_t from = place[edge.from], to = place[edge.to];
    say(from <= to, "an edge leads to an earlier stage");
    if (from == to) continue;
    border[from] += 2 * (edge.bytes + sync(way_of(edge.from)->sync_backward, edge.to));
    border[to] += 2 * (edge.bytes + sync(way_of(edge.to)->sync_forward, edge.from));
  }
  double most = 0;
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    const PiperStage& stage = result.stages[s];
    const double own = time[s] + border[s] / stage.data / bandwidth;
    say(close(stage.time, own), "stage " + std::to_string(s) + " takes another time");
    say(close(stage.bytes, bytes[s]), "stage " + std::to_string(s) + " needs other bytes");
    say(bytes[s] <= options.memory.value_or(profile.memory) * (1 + 1e-12),
        "stage " + std::to_string(s) + " lacks memory");
    most = std::max(most, own);
  }
  say(close(result.time_per_sample, most), "the time per sample is another");
  return wrong;
}

}  // namespace espalier::literal
