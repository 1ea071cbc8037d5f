#include "espalier/planners/literal/block_partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "espalier/base/check.h"
#include "espalier/planners/literal/layer_sequence.h"

// Symbols of Bárány and Grinberg: M(P), the largest block, is block p; m(P), a smallest one, is q; the block
// beside q on the way to p is h, which gives an element to q.
//
// How we deviate: nothing that an answer shows. Of equal blocks the largest p and the least q are taken, as
// Python's max and min of (size, number) do.

namespace espalier::literal {
namespace {

void refuse_blocks(std::size_t costs, std::size_t blocks) {
  if (blocks >= 1 && blocks <= costs) return;
  throw InputError(std::to_string(costs) + " layers cannot be cut into " + std::to_string(blocks) +
                   " blocks");
}

std::vector<double> normalised(std::span<const double> costs) {
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
  const double minimum = *least, span = *most - *least;
  std::vector<double> result;
  for (const double cost : costs) result.push_back(span == 0 ? 0 : (cost - minimum) / span);
  return result;
}

std::vector<double> block_sums(std::span<const double> costs, const std::vector<std::size_t>& ends) {
  std::vector<double> sums;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += costs[i];
    sums.push_back(sum);
    begin = end;
  }
  return sums;
}

}  // namespace

std::vector<std::size_t> block_partition(std::span<const double> costs, std::size_t blocks) {
  refuse_blocks(costs.size(), blocks);
  const std::vector<double> sizes = normalised(costs);
  std::vector<std::size_t> ends;
  for (std::size_t b = 1; b < blocks; ++b) ends.push_back(costs.size() / blocks * b);
  ends.push_back(costs.size());
  while (true) {
    std::vector<double> sums = block_sums(sizes, ends);
    std::size_t p = 0;
    for (std::size_t b = 1; b < blocks; ++b) p = sums[b] >= sums[p] ? b : p;
    const double largest = sums[p];
    for (std::size_t h = blocks; h != p;) {
      const auto q = static_cast<std::size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
      if (largest <= sums[q] + 1) return ends;
      h = p < q ? q - 1 : q + 1;
      if (p < q) {
        --ends[h];
      } else {
        ++ends[q];
      }
      sums = block_sums(sizes, ends);
    }
  }
}

std::vector<std::size_t> least_largest_block(std::span<const double> costs, std::size_t blocks) {
  refuse_blocks(costs.size(), blocks);
  const std::size_t n = costs.size();
  std::vector<double> before{0};
  for (const double cost : costs) before.push_back(before.back() + cost);
  // best[b][i]: of the first i costs in b + 1 blocks; the last block begins at from[b][i].
  std::vector<std::vector<double>> best(blocks,
                                        std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<std::size_t>> from(blocks, std::vector<std::size_t>(n + 1, 0));
  best[0] = before;
  for (std::size_t b = 1; b < blocks; ++b) {
    for (std::size_t i = b + 1; i <= n; ++i) {
      // The first cut from which the last block is no longer than what stands before it, and the one before.
      std::size_t low = b, high = i - 1;
      while (low < high) {
        const std::size_t cut = (low + high) / 2;
        if (before[i] - before[cut] <= best[b - 1][cut]) {
          high = cut;
        } else {
          low = cut + 1;
        }
      }
      for (const std::size_t cut : {low, low > b ? low - 1 : low}) {
        const double largest = std::max(best[b - 1][cut], before[i] - before[cut]);
        if (largest >= best[b][i]) continue;
        best[b][i] = largest;
        from[b][i] = cut;
      }
    }
  }
  std::vector<std::size_t> ends(blocks, n);
  for (std::size_t b = blocks - 1; b > 0; --b) ends[b - 1] = from[b][ends[b]];
  return ends;
}

double largest_block(std::span<const double> costs, const std::vector<std::size_t>& ends) {
  const std::vector<double> sums = block_sums(costs, ends);
  return sums.empty() ? 0 : *std::max_element(sums.begin(), sums.end());
}

TorchgpipeResult torchgpipe_balance(const PipedreamProfile& profile, std::size_t blocks) {
  const std::vector<std::size_t> sequence = layer_sequence(profile);
  std::vector<double> times;
  for (const std::size_t node : sequence)
    times.push_back(profile.nodes[node].forward + profile.nodes[node].backward);
  TorchgpipeResult result;
  if (blocks < 1 || blocks > sequence.size()) {
    result.why =
        std::to_string(sequence.size()) + " layers cannot be cut into " + std::to_string(blocks) + " blocks";
    return result;
  }
  const std::vector<std::size_t> ends = block_partition(times, blocks);
  const std::vector<double> sums = block_sums(times, ends);
  std::size_t begin = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    result.blocks.push_back({{sequence.begin() + static_cast<std::ptrdiff_t>(begin),
                              sequence.begin() + static_cast<std::ptrdiff_t>(ends[b])},
                             sums[b]});
    begin = ends[b];
  }
  result.largest = largest_block(times, ends);
  result.exact = largest_block(times, least_largest_block(times, blocks));
  return result;
}

std::vector<std::string> check_torchgpipe(const PipedreamProfile& profile, std::size_t blocks,
                                          const TorchgpipeResult& result) {
  std::vector<std::string> problems;
  if (!result.found()) return problems;
  if (result.blocks.size() != blocks)
    problems.push_back("blocks: there are " + std::to_string(result.blocks.size()));
  std::vector<std::size_t> place(profile.nodes.size(), profile.nodes.size());
  std::size_t next = 0;
  double largest = 0;
  for (const TorchgpipeBlock& block : result.blocks) {
    double time = 0;
    for (const std::size_t node : block.nodes) {
      if (place[node] != profile.nodes.size()) problems.push_back(profile.nodes[node].id + " stands twice");
      place[node] = next++;
      time += profile.nodes[node].forward + profile.nodes[node].backward;
    }
    if (std::abs(time - block.time) > 1e-9 * time)
      problems.push_back("time: a block takes " + std::to_string(time));
    largest = std::max(largest, time);
  }
  for (std::size_t node = 0; node < place.size(); ++node) {
    const bool input = std::string_view(profile.nodes[node].description).substr(0, 5) == "Input";
    if (!input && place[node] == profile.nodes.size())
      problems.push_back(profile.nodes[node].id + " is missing");
  }
  for (const PipedreamProfile::Edge& edge : profile.edges) {
    if (place[edge.from] < place.size() && place[edge.from] > place[edge.to]) {
      problems.push_back(profile.nodes[edge.to].id + " stands before " + profile.nodes[edge.from].id);
    }
  }
  if (std::abs(largest - result.largest) > 1e-9 * largest)
    problems.push_back("largest: it is " + std::to_string(largest));
  if (result.exact > result.largest * (1 + 1e-9)) problems.push_back("exact: the published cut is better");
  return problems;
}

}  // namespace espalier::literal
