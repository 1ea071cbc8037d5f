#pragma once

// The modules of a model as a tree, with what each of them weighs: to choose stages and pins by. Their names
// are what --stages and --pin take (graph/module_names.h). In a graph without modules, operators whose names
// differ in a number at their end alone are taken together, "node[1-48]", and where the numbers ascend with
// the graph's order also in ten runs of about equal time.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/app/planning_job.h"
#include "espalier/report/table.h"

namespace espalier {

struct ModuleRow {
  std::string name;       // "transformer.h.0"; of several that are alike, "transformer.h.0-11"
  std::size_t level = 1;  // 1: outermost
  std::size_t operators = 0;
  Duration time = {};     // forward and backward, on the first device's kind
  double share = 0;       // of the time of all
  Bytes parameters = {};  // trainable
  Bytes memory = {};      // of a stage of these operators with one micro-batch in flight
  friend bool operator==(const ModuleRow&, const ModuleRow&) = default;
};

struct ModuleRows {
  BatchSize at;                             // the micro-batch
  std::string device;                       // kind
  std::vector<ModuleRow> rows;              // each before those inside it, in the order of the graph
  std::vector<std::string> without_module;  // operators that are in no row, by name
};

struct ModuleRowOptions {
  // Levels below what all modules have in common; none: down to numbered modules (layers) and to modules with
  // less than a twentieth of the time.
  std::optional<std::size_t> depth = {};
  // Neighbours with numbers that follow each other and the same modules, operators and parameters inside: one
  // row for all.
  enum class Alike : std::uint8_t { kOneRow, kOneRowEach } alike = Alike::kOneRow;
};

// O(operators · depth · log operators + the rows' runs of operators).
ModuleRows module_rows(const PlanningJob& job, const ModuleRowOptions& options);

Table module_table(const ModuleRows& rows);

}  // namespace espalier
