#include "espalier/planners/pipeline/part_splits.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::size_t kBlocksOfPart = 64;

Duration time_of(const OperatorCost& cost) {
  return cost.forward + cost.backward();
}

}  // namespace

std::vector<Duration> whole_times(const Linearization& line, const OperatorCosts& costs) {
  std::vector<Duration> times;
  for (std::size_t k = 0; k < line.problem().cluster.kinds().size(); ++k) {
    Duration sum;
    for (const OperatorId op : line.order()) sum += time_of(costs.of(op, KindId(k)));
    times.push_back(sum);
  }
  return times;
}

PartSplits::PartSplits(const Linearization& line, const DeviceTable& table, std::vector<DeviceId> row,
                       BatchSize micro_batch, const OperatorCosts& costs, SplitOptions options)
    : line_(line),
      table_(table),
      row_(std::move(row)),
      micro_batch_(micro_batch),
      options_(std::move(options)) {
  std::map<KindId, std::int64_t> kinds;
  for (const DeviceId device : row_) ++kinds[line.problem().cluster.device(device).kind];
  if (kinds.empty()) {
    for (const Device& device : line.problem().cluster.devices()) ++kinds[device.kind];
  }
  for (const auto& [kind, count] : kinds) {
    std::vector<Duration>& before = before_.emplace_back(line.size() + 1);
    for (std::size_t place = 0; place < line.size(); ++place) {
      before[place + 1] = before[place] + time_of(costs.of(line[place], kind));
    }
    devices_of_kind_.push_back(count);
  }
}

void PartSplits::take_row(std::vector<DeviceId> row) {
  ESP_CHECK(row.size() == row_.size(), row.size(), row_.size());
  row_ = std::move(row);
}

Duration PartSplits::work(const Places& places) const {
  Duration sum;
  std::int64_t devices = 0;
  for (std::size_t k = 0; k < before_.size(); ++k) {
    sum += devices_of_kind_[k] * (before_[k][places.end] - before_[k][places.begin]);
    devices += devices_of_kind_[k];
  }
  return sum / devices;
}

std::size_t PartSplits::part(std::vector<Places> places) {
  std::sort(places.begin(), places.end());
  std::vector<std::uint32_t> members;
  for (const Places& each : places) {
    for (std::uint32_t place = each.begin; place < each.end; ++place) members.push_back(place);
  }
  return part_of(std::move(members));
}

std::size_t PartSplits::part_of(std::vector<std::uint32_t> members) {
  ESP_CHECK(!members.empty());
  const auto [it, fresh] = numbers_.try_emplace(members, parts_.size());
  if (!fresh) return it->second;
  Part& part = parts_.emplace_back();
  std::set<DeviceId> pinned;
  part.fastest = Duration::max();
  for (std::size_t k = 0; k < before_.size(); ++k) {
    Duration sum;
    for (const std::uint32_t place : members) sum += before_[k][place + 1] - before_[k][place];
    part.fastest = std::min(part.fastest, sum);
  }
  for (const std::uint32_t place : members) {
    part.work += work({place, place + 1});
    if (const auto pin = line_.pin(place)) pinned.insert(*pin);
  }
  part.pinned = pinned.size();
  part.members = std::move(members);
  return it->second;
}

Duration PartSplits::least_busy(std::size_t part, std::size_t devices) const {
  const std::int64_t m = line_.problem().training.batch.count() / micro_batch_.count();
  // A pinned device may be of any kind, so its speed is not known here.
  if (parts_[part].pinned > 0) return Duration();
  return m * parts_[part].fastest / static_cast<std::int64_t>(std::max<std::size_t>(devices, 1));
}

const Chain& PartSplits::chain_of(std::size_t number) {
  Part& part = parts_[number];
  if (!part.chain) {
    part.chain.emplace(line_, micro_batch_,
                       Chain::Options{.max_blocks = kBlocksOfPart, .members = part.members});
  }
  return *part.chain;
}

std::size_t PartSplits::first_like(std::size_t number) {
  Part& part = parts_[number];
  if (part.like) return *part.like;
  part.like = number;
  if (part.pinned > 0) return number;
  for (std::size_t other = 0; other < parts_.size(); ++other) {
    const Part& earlier = parts_[other];
    if (other == number || earlier.like != other || earlier.work != part.work) continue;
    if (chain_of(number).is_like(chain_of(other))) {
      part.like = other;
      break;
    }
  }
  return *part.like;
}

bool PartSplits::alike(const Run& a, const Run& b) const {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (table_.class_of(a[i]) != table_.class_of(b[i]) || table_.memory(a[i]) != table_.memory(b[i]))
      return false;
    for (std::size_t j = 0; j < i; ++j) {
      if (table_.hop_of(a[i], a[j]) != table_.hop_of(b[i], b[j])) return false;
      if (table_.hop_of(a[j], a[i]) != table_.hop_of(b[j], b[i])) return false;
    }
  }
  return true;
}

std::size_t PartSplits::run_like(const Question& question, bool must_be_it) {
  const auto begin = row_.begin() + static_cast<std::ptrdiff_t>(question.first);
  Run run(begin, begin + static_cast<std::ptrdiff_t>(question.count));
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    if (runs_[i] == run || (!must_be_it && alike(runs_[i], run))) return i;
  }
  runs_.push_back(std::move(run));
  return runs_.size() - 1;
}

PartSplits::Key PartSplits::key_of(const Question& question) {
  // The links of a pinned device to runs that are alike may differ.
  const bool pinned = parts_[question.part].pinned > 0;
  return {first_like(question.part), run_like(question, pinned)};
}

std::vector<ChainSplit> PartSplits::solve(const Key& key, Context& context) const {
  const auto [part, run] = key;
  const std::int64_t m = line_.problem().training.batch.count() / micro_batch_.count();
  return min_max_splits(*parts_[part].chain, table_, runs_[run], m, options_, context);
}

const std::vector<ChainSplit>& PartSplits::splits(const Question& question, Context& context) {
  const Key key = key_of(question);
  const auto [it, fresh] = splits_.try_emplace(key);
  if (fresh) {
    chain_of(key.first);
    it->second = solve(key, context);
  }
  return it->second;
}

void PartSplits::answer(const std::vector<Question>& questions, Duration limit, Context& context) {
  options_.limit = std::min(options_.limit, limit);
  std::vector<Key> fresh;
  std::vector<std::vector<ChainSplit>*> answers;
  for (const Question& question : questions) {
    const Key key = key_of(question);
    const auto [it, is_fresh] = splits_.try_emplace(key);
    if (!is_fresh) continue;
    fresh.push_back(key);
    answers.push_back(&it->second);
  }
  for (const Key& key : fresh) chain_of(key.first);  // made before threads ask
  context.for_each(fresh.size(),
                   [&](std::size_t i, Context& share) { *answers[i] = solve(fresh[i], share); });
}

std::vector<StageDraft> PartSplits::drafts(const Question& question, const ChainSplit& split) {
  const Run& run = runs_[key_of(question).second];
  std::vector<StageDraft> drafts = drafts_of(chain_of(question.part), split, table_);
  for (StageDraft& draft : drafts) {
    for (DeviceId& device : draft.devices) {
      const auto at = std::find(run.begin(), run.end(), device);
      if (at != run.end()) device = row_[question.first + static_cast<std::size_t>(at - run.begin())];
    }
  }
  return drafts;
}

}  // namespace espalier
