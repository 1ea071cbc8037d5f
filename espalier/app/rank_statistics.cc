#include "espalier/app/rank_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::size_t kMostExactPairs = 25;
constexpr double kPi = 3.14159265358979323846;

// Σ (t³ - t) over groups of t equal values.
double tie_sum(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (std::size_t i = 0; i < values.size();) {
    const std::size_t begin = i;
    while (i < values.size() && values[i] == values[begin]) ++i;
    const auto t = static_cast<double>(i - begin);
    sum += t * t * t - t;
  }
  return sum;
}

// Of two sides, for the smaller sum of ranks: counts the signs that give no more. Ranks are halves.
double exact_p(const std::vector<double>& ranks, double smaller) {
  std::vector<double> ways{1};  // by twice the sum
  for (const double rank : ranks) {
    const auto twice = static_cast<std::size_t>(std::llround(2 * rank));
    std::vector<double> next(ways.size() + twice);
    for (std::size_t s = 0; s < ways.size(); ++s) {
      next[s] += ways[s];
      next[s + twice] += ways[s];
    }
    ways = std::move(next);
  }
  double below = 0, all = 0;
  for (std::size_t s = 0; s < ways.size(); ++s) {
    all += ways[s];
    if (static_cast<double>(s) <= 2 * smaller + 0.25) below += ways[s];
  }
  return std::min(1.0, 2 * below / all);
}

}  // namespace

std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    const std::size_t begin = i;
    while (i < order.size() && values[order[i]] == values[order[begin]]) ++i;
    for (std::size_t j = begin; j < i; ++j) ranks[order[j]] = static_cast<double>(begin + 1 + i) / 2;
  }
  return ranks;
}

double chi_square_tail(double x, std::size_t degrees) {
  ESP_CHECK(degrees >= 1, degrees);
  if (x <= 0) return 1;
  // Q(a + 1, y) = Q(a, y) + y^a e^-y / Γ(a + 1), from Q(1/2, y) = erfc(√y) or Q(1, y) = e^-y.
  const double y = x / 2;
  const bool odd = degrees % 2 == 1;
  double a = odd ? 0.5 : 1;
  double tail = odd ? std::erfc(std::sqrt(y)) : std::exp(-y);
  double term = odd ? std::exp(-y) * 2 * std::sqrt(y / kPi) : std::exp(-y) * y;
  for (; 2 * a + 0.5 < static_cast<double>(degrees); a += 1) {
    tail += term;
    term *= y / (a + 1);
  }
  return std::min(1.0, tail);
}

Friedman friedman_test(const std::vector<std::vector<double>>& cases) {
  ESP_CHECK(!cases.empty() && cases.front().size() >= 2, cases.size());
  const std::size_t methods = cases.front().size();
  const auto n = static_cast<double>(cases.size()), k = static_cast<double>(methods);
  Friedman result;
  result.mean_rank.assign(methods, 0);
  double ties = 0;
  for (const std::vector<double>& of : cases) {
    const std::vector<double> ranks = ranks_of(of);
    for (std::size_t m = 0; m < methods; ++m) result.mean_rank[m] += ranks[m] / n;
    ties += tie_sum(of);
  }
  double squares = 0;
  for (const double rank : result.mean_rank) squares += (rank - (k + 1) / 2) * (rank - (k + 1) / 2);
  const double correction = 1 - ties / (n * (k * k * k - k));
  if (correction <= 1e-12) return result;
  result.chi_square = 12 * n / (k * (k + 1)) * squares / correction;
  result.p = chi_square_tail(result.chi_square, methods - 1);
  return result;
}

SignedRank signed_rank_test(std::span<const double> differences) {
  std::vector<double> sizes;
  std::vector<bool> above;
  for (const double difference : differences) {
    if (difference == 0) continue;
    sizes.push_back(std::abs(difference));
    above.push_back(difference > 0);
  }
  SignedRank result;
  result.pairs = sizes.size();
  if (sizes.empty()) return result;
  const std::vector<double> ranks = ranks_of(sizes);
  for (std::size_t i = 0; i < ranks.size(); ++i) (above[i] ? result.positive : result.negative) += ranks[i];
  const double smaller = std::min(result.positive, result.negative);
  if (sizes.size() <= kMostExactPairs) {
    result.p = exact_p(ranks, smaller);
    return result;
  }
  const auto n = static_cast<double>(sizes.size());
  const double variance = n * (n + 1) * (2 * n + 1) / 24 - tie_sum(sizes) / 48;
  const double z = std::max(0.0, n * (n + 1) / 4 - smaller - 0.5) / std::sqrt(variance);
  result.p = std::min(1.0, std::erfc(z / std::sqrt(2.0)));
  return result;
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] < p[b]; });
  std::vector<double> corrected(p.size());
  double least = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    least = std::max(least, std::min(1.0, p[order[i]] * static_cast<double>(p.size() - i)));
    corrected[order[i]] = least;
  }
  return corrected;
}

}  // namespace espalier
