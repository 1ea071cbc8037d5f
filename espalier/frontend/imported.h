#pragma once

// What a frontend returns, and the one door to all of them. PipeDream, MSR and Piper files carry costs and a
// cluster besides the graph, some a plan.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/plan/plan.h"

namespace espalier {

enum class Repair : std::uint8_t {
  kRepair,   // units and oddities of published files are put right, with a warning that says what was done
  kLiteral,  // a file is read exactly as published
};

enum class LossRule : std::uint8_t {
  kRequired,  // an exported program without a loss is refused with the recipe that gives it one
  kOptional,  // it is read, with that recipe as a warning; for looking at a model
};

struct ImportOptions {
  Repair repair = Repair::kRepair;
  LossRule loss_rule = LossRule::kRequired;
  std::string loss;  // name of the output that is the loss; empty: the only floating-point scalar
};

struct Imported {
  Graph graph;
  std::optional<CostTable> costs;
  std::optional<Cluster> cluster;
  std::optional<PipelinePlan> plan;
  std::optional<Placement> placement;
  std::vector<std::string> warnings;  // one line each, for people
};

// By content, not by file name: a zip is .pt2, JSON is told by its keys (espalier.graph/1, MSR, Piper),
// PipeDream by its lines, an Espalier graph text by its. Files of known other kinds (TorchScript, a pickled
// state dict, ONNX, old .pt2) get the recipe that makes a readable one. Throws InputError, in bounded memory
// whatever the bytes.
Imported import_file(const std::string& path, const ImportOptions& options = {});
Imported import_bytes(std::string_view bytes, const std::string& name, const ImportOptions& options = {});

Imported import_msr(std::string_view text, const std::string& name, const ImportOptions& options = {});
Imported import_piper(std::string_view text, const std::string& name, const ImportOptions& options = {});
Imported import_pipedream(std::string_view text, const std::string& name, const ImportOptions& options = {});

}  // namespace espalier
