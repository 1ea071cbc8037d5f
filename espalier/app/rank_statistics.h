#pragma once

// Comparing several methods on several cases without supposing a distribution (Demšar, JMLR 2006).
//
// Friedman says whether the methods differ at all. Which ones differ is asked by Wilcoxon's signed-rank test
// against the method of the best mean rank, with Holm's correction, and not by Nemenyi's test: what that says
// of two methods depends on which others take part (Benavoli, Corani, Mangili, JMLR 2016), and it sees ranks
// alone where the signed ranks see by how much.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace espalier {

// 1 for the smallest; equal values share the mean of their ranks. O(n log n).
std::vector<double> ranks_of(std::span<const double> values);

struct Friedman {
  std::vector<double> mean_rank;  // by method
  double chi_square = 0;          // with the correction for ties; 0 where all are equal everywhere
  double p = 1;                   // by the chi-square distribution of methods - 1 degrees of freedom
};
// cases[i][m]: of method m on case i, smaller is better. At least one case and two methods.
Friedman friedman_test(const std::vector<std::vector<double>>& cases);

struct SignedRank {
  std::size_t pairs = 0;              // that differ
  double positive = 0, negative = 0;  // sums of ranks
  double p = 1;                       // of two sides
};
// Of paired differences. Exact up to 25 pairs that differ, ties included; beyond by the normal distribution
// with corrections for ties and continuity. O(n log n + n³) below, O(n log n) beyond.
SignedRank signed_rank_test(std::span<const double> differences);

// Holm's step-down correction: each p times how many are at least as large, never below a smaller one's.
std::vector<double> holm(std::span<const double> p);

// P(X ≥ x) of the chi-square distribution; 1 at 0. degrees ≥ 1. O(degrees).
double chi_square_tail(double x, std::size_t degrees);

}  // namespace espalier
