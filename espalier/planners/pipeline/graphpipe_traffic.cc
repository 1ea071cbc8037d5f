#include "espalier/planners/pipeline/graphpipe_traffic.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace espalier::internal {

StepTraffic::StepTraffic(const Problem& problem, const std::vector<StageAt>& stages) : problem_(problem) {
  std::vector<StageBorder> borders;
  std::map<TensorId, std::size_t> sender;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    micro_batch_.push_back(stages[s].prices->micro_batch().count());
    borders.push_back(stages[s].prices->border(*stages[s].places));
    gradients_.push_back(borders.back().gradients);
    for (const StageBorder::Tensor& each : borders.back().sent) sender.emplace(each.tensor, s);
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    std::map<std::size_t, Crossing> from;
    for (const StageBorder::Tensor& each : borders[s].received) {
      const auto at = sender.find(each.tensor);
      if (at == sender.end()) continue;
      Crossing& crossing = from[at->second];
      crossing.forward += each.bytes;
      if (each.gradient) crossing.backward += each.bytes;
    }
    for (auto& [producer, crossing] : from) {
      crossing.from = producer;
      crossing.to = s;
      crossing.samples_at_once = std::gcd(micro_batch_[producer], micro_batch_[s]);
      const std::int64_t pieces = micro_batch_[s] / crossing.samples_at_once;
      crossing.forward = Bytes(crossing.forward.count() / pieces);
      crossing.backward = Bytes(crossing.backward.count() / pieces);
      crossings_.push_back(crossing);
    }
  }
}

std::vector<std::int64_t> StepTraffic::on_links(const std::vector<std::vector<DeviceId>>& devices) const {
  const Cluster& cluster = problem_.cluster;
  std::vector<std::int64_t> held(cluster.link_count(), 0);
  const auto send = [&](DeviceId from, DeviceId to, Bytes bytes, std::int64_t times) {
    if (from == to || bytes == Bytes()) return;
    const Route route = cluster.route(from, to);
    for (const LinkIndex link : route.links) held[link] += times * route.hold(bytes).count();
  };
  for (const Crossing& each : crossings_) {
    const std::int64_t pieces = problem_.training.batch.count() / each.samples_at_once;
    const auto in_turn = [&](std::size_t stage) {  // pieces of a micro-batch, and until its replicas repeat
      const std::int64_t of_one = micro_batch_[stage] / each.samples_at_once;
      return std::pair(of_one, of_one * static_cast<std::int64_t>(devices[stage].size()));
    };
    const auto [of_sender, senders] = in_turn(each.from);
    const auto [of_receiver, receivers] = in_turn(each.to);
    const std::int64_t period = std::lcm(senders, receivers);
    for (std::int64_t piece = 0; piece < std::min(period, pieces); ++piece) {
      const DeviceId from = devices[each.from][static_cast<std::size_t>(piece % senders / of_sender)];
      const DeviceId to = devices[each.to][static_cast<std::size_t>(piece % receivers / of_receiver)];
      const std::int64_t times = pieces / period + (piece < pieces % period ? 1 : 0);
      send(from, to, each.forward, times);
      send(to, from, each.backward, times);
    }
  }
  for (std::size_t s = 0; s < devices.size(); ++s) {
    if (devices[s].size() < 2 || gradients_[s] == Bytes()) continue;
    const CollectiveCost sum = all_reduce_cost(cluster, devices[s], gradients_[s]);
    for (const LinkIndex link : sum.links) held[link] += sum.hold.count();
  }
  return held;
}

std::int64_t StepTraffic::busiest(const std::vector<std::vector<DeviceId>>& devices) const {
  const std::vector<std::int64_t> held = on_links(devices);
  return held.empty() ? 0 : *std::max_element(held.begin(), held.end());
}

}  // namespace espalier::internal
