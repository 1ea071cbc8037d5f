#include "espalier/planners/pipeline/graphpipe_tree.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "espalier/base/check.h"

namespace espalier::internal {

void append_places(PlaceRanges& ranges, const Places& fresh) {
  if (fresh.empty()) return;
  if (ranges.empty() || ranges.back().end < fresh.begin) {
    ranges.push_back(fresh);
  } else if (ranges.back().end == fresh.begin) {
    ranges.back().end = fresh.end;
  } else {
    ranges.push_back(fresh);
    std::sort(ranges.begin(), ranges.end());
    PlaceRanges joined;
    for (const Places& each : ranges) append_places(joined, each);
    ranges = std::move(joined);
  }
}

PlaceRanges PipeTree::places(std::uint32_t run, std::size_t first, std::size_t last) const {
  PlaceRanges ranges;
  for (std::size_t i = first; i < last; ++i) {
    for (const Places& each : runs[run].items[i].places) append_places(ranges, each);
  }
  return ranges;
}

bool has_tangles(const Structure& structure) {
  return std::any_of(structure.waits.begin(), structure.waits.end(),
                     [](const Structure::Wait& wait) { return wait.pairs > 0; });
}

namespace {

constexpr std::size_t kAllSets = 4;           // branches of which every set may be a group
constexpr std::size_t kLongestGroup = 32;     // branches of a group, where there are more
constexpr std::size_t kHeavyInGroup = 4;      // branches of a group, unless they are light:
constexpr std::int64_t kSharesOfGroup = 2;    // what these may weigh together, in even shares of a device
constexpr std::size_t kItemsOfGroup = 16;     // of a group that is cut
constexpr std::size_t kDevicesForGroups = 6;  // for each branch: with more, groups are not cut

class PipeTreeBuilder {
 public:
  PipeTreeBuilder(const Structure& structure, std::span<const Weight> before, const PipeTreeOptions& options)
      : structure_(structure), before_(before), options_(options), tangled_(structure.parts.size(), 0) {
    for (const Structure::Wait& wait : structure.waits) {
      if (wait.pairs > 0) tangled_[wait.series.index()] = 1;
    }
  }

  PipeTree build() {
    add_run({PartId(0)}, Form::kWithForks, options_.most_items);
    return std::move(tree_);
  }

 private:
  enum class Form : std::uint8_t { kWithForks, kFlat };

  std::uint32_t add_run(const std::vector<PartId>& parts, Form form, std::size_t most_items) {
    std::vector<std::uint32_t> key{static_cast<std::uint32_t>(form), narrow(most_items)};
    for (const PartId part : parts) key.push_back(narrow(structure_.part(part).like.index()));
    const auto number = narrow(tree_.runs.size());
    tree_.runs.emplace_back();
    PipeRun run;
    for (const PartId part : parts) form == Form::kFlat ? append_leaves(part, run) : append(part, run);
    condense(run, most_items);
    for (const PipeItem& item : run.items) run.work += item.work;
    const auto like = likes_.try_emplace(std::move(key), number).first->second;
    const bool shared = options_.share_equal_parts && tree_.runs[like].items.size() == run.items.size();
    run.like = shared ? like : number;
    tree_.runs[number] = std::move(run);
    return number;
  }

  void append(PartId id, PipeRun& run) {
    const Structure::Part& part = structure_.part(id);
    const bool flat = options_.tangles == PipeTreeOptions::Tangles::kConvexCuts && tangled_[id.index()] != 0;
    if (part.kind == PartKind::kLeaf) {
      add_piece({part.first_operator, part.end_operator}, run);
    } else if (flat) {
      append_leaves(id, run);
    } else if (part.kind == PartKind::kSeries) {
      for (const PartId child : structure_.children_of(id)) append(child, run);
    } else if (worth_a_fork(id)) {
      append_fork(id, run);
    } else {
      for (const PartId child : structure_.children_of(id)) append(child, run);
    }
  }

  void append_leaves(PartId id, PipeRun& run) {
    const Structure::Part& part = structure_.part(id);
    if (part.kind == PartKind::kLeaf) return add_piece({part.first_operator, part.end_operator}, run);
    for (const PartId child : structure_.children_of(id)) append_leaves(child, run);
  }

  void add_piece(const Places& places, PipeRun& run) {
    run.items.push_back({.places = {places}, .fork = {}, .work = work(places)});
  }

  Weight work(const Places& places) const { return before_[places.end] - before_[places.begin]; }
  Weight work(PartId id) const {
    return work(Places{structure_.part(id).first_operator, structure_.part(id).end_operator});
  }
  bool is_light(PartId id) const { return work(id) == Weight() || work(id) < options_.light_branch; }

  bool worth_a_fork(PartId id) const {
    Weight sum, heaviest;
    std::size_t heavy = 0;
    for (const PartId child : structure_.children_of(id)) {
      sum += work(child);
      heaviest = std::max(heaviest, work(child));
      heavy += is_light(child) ? 0 : 1;
    }
    return heavy > 1 && sum - heaviest >= options_.least_fork;
  }

  // Light branches go to the end of the run that has least, and so do those beyond the number of tracks:
  // longest first (Graham, 1969).
  void append_fork(PartId id, PipeRun& run) {
    std::vector<PartId> children(structure_.children_of(id).begin(), structure_.children_of(id).end());
    std::stable_sort(children.begin(), children.end(), [&](PartId a, PartId b) { return work(a) > work(b); });
    std::vector<std::vector<PartId>> branches;
    std::vector<std::pair<std::size_t, Weight>> load;  // light branches it has (on tracks: none count), work
    for (const PartId child : children) {
      const bool has_track = options_.tracks == 0 || branches.size() < options_.tracks;
      if (has_track && (options_.tracks > 0 || !is_light(child))) {
        branches.push_back({child});
        load.emplace_back(0, work(child));
        continue;
      }
      const auto least = std::min_element(load.begin(), load.end());
      least->first += options_.tracks == 0 ? 1 : 0;
      least->second += work(child);
      branches[static_cast<std::size_t>(least - load.begin())].push_back(child);
    }
    if (options_.tracks > 0) {  // the heaviest first
      const auto work_of = [&](const std::vector<PartId>& parts) {
        Weight sum;
        for (const PartId part : parts) sum += work(part);
        return sum;
      };
      std::stable_sort(branches.begin(), branches.end(),
                       [&](const auto& a, const auto& b) { return work_of(a) > work_of(b); });
    }
    const auto number = narrow(tree_.forks.size());
    tree_.forks.emplace_back();
    PipeItem item;
    item.fork = number;
    item.work = work(id);
    append_places(item.places, {structure_.part(id).first_operator, structure_.part(id).end_operator});
    PipeFork fork;
    for (const auto& branch : branches) {
      fork.branches.push_back(add_run(branch, Form::kWithForks, options_.most_items));
    }
    if (options_.tracks <= kAllSets) add_groups(branches, fork);
    tree_.forks[number] = std::move(fork);
    run.items.push_back(std::move(item));
  }

  void add_groups(const std::vector<std::vector<PartId>>& branches, PipeFork& fork) {
    const std::size_t count = branches.size();
    const bool crowded = options_.devices <= kDevicesForGroups * count;
    const std::size_t items = crowded ? std::min(options_.most_items, kItemsOfGroup) : 1;
    const auto add = [&](const std::vector<std::uint16_t>& members) {
      std::vector<PartId> parts;
      for (const std::uint16_t b : members) parts.insert(parts.end(), branches[b].begin(), branches[b].end());
      Weight sum;
      for (const PartId part : parts) sum += work(part);
      const auto devices = static_cast<std::int64_t>(options_.devices);
      if (members.size() > kHeavyInGroup && devices * (sum / kSharesOfGroup) > before_.back()) return;
      const std::uint32_t run = add_run(parts, Form::kFlat, items);
      fork.groups.emplace(members, run);
    };
    if (count <= kAllSets) {
      for (std::size_t set = 1; set < std::size_t{1} << count; ++set) {
        std::vector<std::uint16_t> members;
        for (std::size_t b = 0; b < count; ++b) {
          if ((set >> b & 1) != 0) members.push_back(static_cast<std::uint16_t>(b));
        }
        if (members.size() > 1) add(members);
      }
      return;
    }
    for (std::size_t first = 0; first < count; ++first) {
      std::vector<std::uint16_t> members{static_cast<std::uint16_t>(first)};
      while (members.back() + std::size_t{1} < count && members.size() < kLongestGroup) {
        members.push_back(static_cast<std::uint16_t>(members.back() + 1));
        add(members);
      }
    }
  }

  // Pieces without work join the piece before them, or the one behind; beyond most_items only the cuts stay
  // that divide the work of the run's pieces most evenly.
  void condense(PipeRun& run, std::size_t most_items) const {
    Weight total;
    std::size_t forks = 0;
    for (const PipeItem& item : run.items) {
      item.fork ? void(++forks) : void(total += item.work);
    }
    const std::size_t room = std::max<std::size_t>(most_items, forks + 1) - forks;
    std::size_t pieces = 0;
    for (const PipeItem& item : run.items) pieces += !item.fork && item.work > Weight() ? 1 : 0;
    const bool every = pieces <= room;
    std::vector<PipeItem> kept;
    Weight sum;  // of pieces up to the one at hand
    std::int64_t share = -1;
    for (PipeItem& item : run.items) {
      if (item.fork) {
        kept.push_back(std::move(item));
        share = -1;
        continue;
      }
      const std::int64_t mine =
          total == Weight()
              ? 0
              : static_cast<std::int64_t>(static_cast<double>((sum + item.work / 2).count()) /
                                          static_cast<double>(total.count()) * static_cast<double>(room));
      sum += item.work;
      const bool can_join = !kept.empty() && !kept.back().fork;
      const bool idle = item.work == Weight() || (can_join && kept.back().work == Weight());
      if (can_join && (idle || (!every && mine == share))) {
        for (const Places& each : item.places) append_places(kept.back().places, each);
        kept.back().work += item.work;
      } else {
        kept.push_back(std::move(item));
      }
      share = mine;
    }
    run.items = std::move(kept);
  }

  const Structure& structure_;
  const std::span<const Weight> before_;
  const PipeTreeOptions& options_;
  std::vector<char> tangled_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> likes_;
  PipeTree tree_;
};

}  // namespace

PipeTree make_pipe_tree(const Structure& structure, std::span<const Weight> before,
                        const PipeTreeOptions& options) {
  ESP_CHECK(!structure.empty());
  return PipeTreeBuilder(structure, before, options).build();
}

}  // namespace espalier::internal
