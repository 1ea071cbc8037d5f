#pragma once

// Linear programs: minimise cost · x where lower ≤ x ≤ upper and row_lower ≤ A x ≤ row_upper. Solved by CLP
// (COIN-OR), which nothing else in the project sees.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace espalier {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct LinearProgram {
  struct Column {
    double cost = 0, lower = 0, upper = kNoLimit;
  };
  struct Row {
    double lower = -kNoLimit, upper = kNoLimit;
  };
  struct Entry {
    std::uint32_t row, column;  // each pair once
    double value;
  };
  std::vector<Column> columns = {};
  std::vector<Row> rows = {};
  std::vector<Entry> entries = {};

  std::uint32_t add_column(Column column);
  std::uint32_t add_row(Row row);
};

struct LinearSolution {
  std::vector<double> x;  // by column
  double cost = 0;
};

// Nothing where there is no optimum, or none was found in so many iterations of the simplex method. The same
// solution each time with one build of CLP; where several are best, another build may give another.
std::optional<LinearSolution> solve(const LinearProgram& program, int max_iterations = 1'000'000);

}  // namespace espalier
