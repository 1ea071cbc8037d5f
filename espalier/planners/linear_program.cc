#include "espalier/planners/linear_program.h"

#include <coin/Clp_C_Interface.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "espalier/base/ids.h"

namespace espalier {

std::uint32_t LinearProgram::add_column(Column column) {
  columns.push_back(column);
  return narrow(columns.size() - 1);
}

std::uint32_t LinearProgram::add_row(Row row) {
  rows.push_back(row);
  return narrow(rows.size() - 1);
}

std::optional<LinearSolution> solve(const LinearProgram& program, int max_iterations) {
  std::vector<LinearProgram::Entry> entries = program.entries;
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.column != b.column ? a.column < b.column : a.row < b.row;
  });
  std::vector<CoinBigIndex> begin(program.columns.size() + 1);
  std::vector<int> row;
  std::vector<double> value;
  for (const LinearProgram::Entry& entry : entries) {
    ++begin[entry.column + 1];
    row.push_back(static_cast<int>(entry.row));
    value.push_back(entry.value);
  }
  for (std::size_t c = 0; c < program.columns.size(); ++c) begin[c + 1] += begin[c];
  std::vector<double> lower, upper, cost, row_lower, row_upper;
  const double most = std::numeric_limits<double>::max();  // CLP's infinity
  const auto limit = [most](double x) { return std::clamp(x, -most, most); };
  for (const LinearProgram::Column& column : program.columns) {
    lower.push_back(limit(column.lower));
    upper.push_back(limit(column.upper));
    cost.push_back(column.cost);
  }
  for (const LinearProgram::Row& each : program.rows) {
    row_lower.push_back(limit(each.lower));
    row_upper.push_back(limit(each.upper));
  }
  const std::unique_ptr<Clp_Simplex, void (*)(Clp_Simplex*)> model(Clp_newModel(), Clp_deleteModel);
  Clp_setLogLevel(model.get(), 0);
  Clp_loadProblem(model.get(), static_cast<int>(program.columns.size()),
                  static_cast<int>(program.rows.size()), begin.data(), row.data(), value.data(), lower.data(),
                  upper.data(), cost.data(), row_lower.data(), row_upper.data());
  Clp_setMaximumIterations(model.get(), max_iterations);
  Clp_initialSolve(model.get());
  if (Clp_status(model.get()) != 0) return std::nullopt;
  const double* const x = Clp_primalColumnSolution(model.get());
  return LinearSolution{{x, x + program.columns.size()}, Clp_objectiveValue(model.get())};
}

}  // namespace espalier
