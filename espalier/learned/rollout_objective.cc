#include "espalier/learned/rollout_objective.h"

namespace espalier::placement {
namespace {

at::Tensor entropy_of(const at::Tensor& log_probability, const at::Tensor& logits) {
  return -(at::softmax(logits, 1) * log_probability).sum(1).mean();
}

}  // namespace

at::Tensor log_probabilities(const at::Tensor& logits) {
  const at::Tensor all = at::log_softmax(logits, 1);
  return at::where(at::isfinite(all), all, at::zeros_like(all));
}

std::vector<std::int64_t> indices(const NodeDevices& devices) {
  std::vector<std::int64_t> result;
  for (const DeviceId device : devices) result.push_back(static_cast<std::int64_t>(device.index()));
  return result;
}

at::Tensor RolloutObjective::Head::rows(const HeadLogits& of) const {
  return groups ? pooled(of.*logits, *groups) : of.*logits;
}

RolloutObjective::RolloutObjective(std::span<const Sample> samples, std::span<const double> advantage,
                                   const HeadLogits& old, const JoinInput* join) {
  std::optional<Groups> groups;
  if (join) groups = groups_of_samples(*join, samples);
  std::vector<std::vector<std::int64_t>> devices, levels, joins;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    devices.push_back(indices(groups ? of_groups(groups->of_placement[i], sample.devices) : sample.devices));
    levels.emplace_back(sample.levels.begin(), sample.levels.end());
    joins.emplace_back(sample.choices.begin(), sample.choices.end());
  }
  add({&HeadLogits::devices, std::move(groups)}, devices, advantage, old);
  if (old.levels.defined()) add({&HeadLogits::levels, {}}, levels, advantage, old);
  if (join) add({&HeadLogits::joins, {}}, joins, advantage, old);
}

// `chosen`: by rollout, an entry for each of its rows; empty: it chose none.
void RolloutObjective::add(Head head, std::span<const std::vector<std::int64_t>> chosen,
                           std::span<const double> advantage, const HeadLogits& old) {
  head.old = log_probabilities(head.rows(old));
  const auto rows = static_cast<std::size_t>(head.old.size(0));
  const auto entries = static_cast<std::size_t>(head.old.size(1));
  std::vector<float> gained(rows * entries), lost(rows * entries);
  const double share = 1 / static_cast<double>(chosen.size() * static_cast<std::size_t>(old.devices.size(0)));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    std::vector<float>& sums = advantage[i] > 0 ? gained : lost;
    const auto each = static_cast<float>(advantage[i] * share);
    const std::size_t first = head.groups ? head.groups->begin[i] : 0;
    for (std::size_t row = 0; row < chosen[i].size(); ++row)
      sums[(first + row) * entries + static_cast<std::size_t>(chosen[i][row])] += each;
  }
  const auto tensor = [&](std::vector<float>& sums) {
    return at::from_blob(sums.data(), head.old.sizes(), at::kFloat).clone().to(head.old.device());
  };
  head.choices = {tensor(gained), tensor(lost)};
  heads_.push_back(std::move(head));
}

at::Tensor RolloutObjective::loss(const HeadLogits& now, double clip, double entropy_weight) const {
  at::Tensor loss;
  for (const Head& head : heads_) {
    const at::Tensor logits = head.rows(now), log_probability = log_probabilities(logits);
    const at::Tensor chance = at::exp(log_probability - head.old);
    at::Tensor own = -(head.choices.gained * at::clamp_max(chance, 1 + clip) +
                       head.choices.lost * at::clamp_min(chance, 1 - clip))
                          .sum();
    if (entropy_weight > 0) own = own - entropy_weight * entropy_of(log_probability, logits);
    loss = loss.defined() ? loss + own : own;
  }
  return loss;
}

}  // namespace espalier::placement
