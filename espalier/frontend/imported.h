#pragma once

// What a frontend returns, and the one door to all of them. PipeDream, MSR and Piper files carry costs and a
// cluster besides the graph, some a plan.

#include <map>
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
  std::string loss = {};  // name of the output that is the loss; empty: the only floating-point scalar
  // Parameters whose name matches one of these patterns are not trained. Of an exported program: gradients
  // flow no further than they must.
  std::vector<std::string> frozen = {};
  // Of an ONNX file: how large a size is that it leaves open, by its name there ("seq"), or by input and
  // dimension ("tokens.1") where it has none. May depend on the batch.
  std::map<std::string, SizeExpr> dims = {};
};

struct Imported {
  Graph graph;
  std::optional<CostTable> costs = {};
  std::optional<Cluster> cluster = {};
  std::optional<PipelinePlan> plan = {};
  std::optional<Placement> placement = {};
  std::optional<BatchSize> batch = {};     // of a step, where the file names one
  std::vector<std::string> warnings = {};  // one line each, for people
};

// By content, not by file name: a zip is .pt2, ONNX is told by its first fields, JSON by its keys
// (espalier.graph/1, MSR, Piper, WfFormat), PipeDream, STG and Doppler by their lines, an Espalier graph text
// by its. Files of known other kinds (TorchScript, a pickled state dict, old .pt2) get the recipe that makes
// a readable one. Throws InputError, in bounded memory whatever the bytes.
Imported import_file(const std::string& path, const ImportOptions& options = {});
Imported import_bytes(std::string_view bytes, const std::string& name, const ImportOptions& options = {});

// An ONNX file: a graph to plan and simulate, in the file's evaluation mode. Its batch is the open size that
// is called so ("batch", "N"), else the first dimension of the first input that leaves it open; without one
// the batch is fixed. Sizes of all that lies between inputs and outputs are derived here (onnx_sizes.h), or
// taken from the file where an operator is unknown. Weights are not read. Refused: Loop, Scan, an If that
// data decide, functions of the file's own, sequences and maps, and values of which nobody tells the size.
Imported import_onnx(std::string_view bytes, const std::string& name, const ImportOptions& options = {});

// How costs of profiles are laid out: a fixed batch of one (one micro-batch of the file; PipeDream's samples
// where they can be read off), tensors and weights of type kOpaque in bytes, one row per operator and device
// kind ("accelerator" and "cpu" for MSR, else "profiled"). A backward time is divided into halves for inputs
// and weights. A graph that already holds its backward half (MSR training) keeps it as operators of role
// kBackward, each with its time as an input half: it is simulated, not run. Each importer's .cc lists the
// oddities of its files.
Imported import_msr(std::string_view text, const std::string& name, const ImportOptions& options = {});
Imported import_piper(std::string_view text, const std::string& name, const ImportOptions& options = {});
Imported import_pipedream(std::string_view text, const std::string& name, const ImportOptions& options = {});
// A graph of the Standard Task Graph Set, a computation graph of Doppler and a workflow of WfCommons: task
// graphs. Where the file says how long messages take, they have the bytes for that, and a cluster comes
// along.
Imported import_stg(std::string_view text, const std::string& name, const ImportOptions& options = {});
Imported import_doppler(std::string_view text, const std::string& name, const ImportOptions& options = {});
Imported import_wfformat(std::string_view text, const std::string& name, const ImportOptions& options = {});
bool is_stg(std::string_view text);      // its first two lines are whole numbers alone
bool is_doppler(std::string_view text);  // the first a whole number alone, the second such with commas

// A placement of the MSR files ("fpgas", "cpus": node ids per device) for a graph read by import_msr, on
// devices that are called as there. A node it leaves out goes where the others of its colour are.
Placement import_msr_placement(std::string_view text, const std::string& name, const Graph& graph,
                               const Cluster& cluster);

// A profile's costs for another cluster: each device kind without rows gets those of the profile's first
// kind.
CostTable costs_on(const CostTable& profile, const Cluster& cluster);

}  // namespace espalier
