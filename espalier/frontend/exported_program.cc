#include "espalier/frontend/exported_program.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/profile.h"
#include "espalier/frontend/program_reader.h"
#include "espalier/frontend/recipes.h"
#include "espalier/frontend/sample_inputs.h"
#include "espalier/frontend/tensor_flow.h"

namespace espalier {
namespace {

void expect_entry(const ZipReader& archive, const std::string& file, const char* entry,
                  std::string_view value) {
  std::string_view found = archive.get(entry);
  while (!found.empty() && (found.back() == '\n' || found.back() == '\r')) found.remove_suffix(1);
  if (found != value) {
    throw InputError(file + ": " + entry + " is " + quote(found) + "; this program reads '" +
                     std::string(value) + "'");
  }
}

// The name of the one program in the archive.
std::string find_model(const ZipReader& archive, const std::string& file) {
  constexpr std::string_view kFolder = "models/", kSuffix = ".json";
  std::vector<std::string> names;
  for (const ZipReader::Entry& entry : archive.entries()) {
    if (entry.name.starts_with(kFolder) && entry.name.ends_with(kSuffix)) {
      names.push_back(entry.name.substr(kFolder.size(), entry.name.size() - kFolder.size() - kSuffix.size()));
    }
  }
  if (names.size() == 1) return names.front();
  if (std::find(names.begin(), names.end(), "model") != names.end()) return "model";
  if (names.empty()) {
    throw InputError(
        file + ": holds no exported program (models/model.json); a package compiled by AOTInductor cannot " +
        "be trained: save what torch.export.export returns with torch.export.save");
  }
  throw InputError(file + ": holds " + std::to_string(names.size()) +
                   " programs and none is called 'model'; save one");
}

// What our exporter notes beside the program; nothing if another exporter wrote it.
struct ExportNotes {
  std::optional<bool> training;
  std::optional<BatchSize> fixed_batch;
};

ExportNotes read_notes(const ZipReader& archive, const std::string& file) {
  ExportNotes notes;
  const std::optional<std::string_view> bytes = archive.find("extra/espalier.json");
  if (!bytes) return notes;
  const std::string where = file + ": extra/espalier.json";
  const Json json = parse_json(*bytes, where);
  const JsonCursor cursor(json, where);
  if (cursor.has("mode")) notes.training = cursor.at("mode").string() == "train";
  if (cursor.has("batch") && cursor.at("batch").has("size")) {
    notes.fixed_batch = BatchSize(cursor.at("batch").at("size").integer(1, std::int64_t{1} << 20));
  }
  return notes;
}

bool can_be_loss(const FlatTensor& tensor) {
  return tensor.sizes.empty() && is_floating_point(tensor.dtype);
}

std::string output_names(const FlatProgram& program) {
  std::string names;
  for (const TensorId id : program.outputs) {
    names += (names.empty() ? "" : ", ") + program.tensors[id.index()].name;
  }
  return names.empty() ? "none" : names;
}

// The loss by the rules of docs/semantics.md; fills `warning` where there is none and none is required.
std::optional<TensorId> find_loss(const FlatProgram& program, const std::string& file,
                                  const ImportOptions& options, std::vector<std::string>& warnings) {
  std::vector<TensorId> candidates;
  for (const TensorId id : program.outputs) {
    if (can_be_loss(program.tensors[id.index()])) candidates.push_back(id);
  }
  if (!options.loss.empty()) {
    for (const TensorId id : program.outputs) {
      if (program.tensors[id.index()].name != options.loss) continue;
      if (std::find(candidates.begin(), candidates.end(), id) != candidates.end()) return id;
      throw InputError(file + ": output " + quote(options.loss) +
                       " cannot be the loss: it is not one floating-point number");
    }
    throw InputError(file + ": has no output " + quote(options.loss) +
                     "; its outputs: " + output_names(program));
  }
  if (program.declared_loss) return program.declared_loss;
  if (candidates.size() == 1) return candidates.front();
  if (candidates.size() > 1) {
    throw InputError(file + ": has " + std::to_string(candidates.size()) +
                     " outputs that could be the loss; name one with --loss: " + output_names(program));
  }
  if (options.loss_rule == LossRule::kRequired) throw InputError(file + ": " + no_loss_recipe());
  warnings.push_back(no_loss_recipe());
  return std::nullopt;
}

std::vector<UserInput> user_inputs(const FlatProgram& program, const ZipReader& archive,
                                   const std::string& file) {
  std::vector<std::optional<SampleRange>> samples;
  for (const ZipReader::Entry& entry : archive.entries()) {
    if (entry.name.starts_with("data/sample_inputs/") && samples.empty()) {
      samples = read_sample_ranges(archive.get(entry.name), file + ": " + entry.name);
    }
  }
  if (samples.size() != program.inputs.size()) samples.assign(program.inputs.size(), std::nullopt);
  std::vector<UserInput> result;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    if (!program.inputs[i].tensor) continue;
    UserInput input{.name = one_line(program.inputs[i].name), .tensor = *program.inputs[i].tensor};
    if (samples[i]) input.sample_min = samples[i]->min, input.sample_max = samples[i]->max;
    result.push_back(std::move(input));
  }
  return result;
}

Graph build_graph(const FlatProgram& program, const std::string& name, std::optional<TensorId> loss,
                  std::optional<bool> training) {
  try {
    GraphParts parts = derive_graph(program);
    parts.name = file_stem(name);
    parts.loss = loss;
    parts.training_mode = training.value_or(training_flags(program).value_or(true));
    return Graph(std::move(parts));
  } catch (const InputError& error) {  // only to name the file
    throw InputError(name + ": " + error.what());
  }
}

std::vector<std::string> unknown_warnings(const Graph& graph) {
  std::vector<std::string> result;
  for (const UnknownOperator& unknown : unknown_operators(graph)) {
    const Operator& first = graph.op(unknown.first);
    result.push_back("operator " + unknown.target + " (" + std::to_string(unknown.count) + " times, first " +
                     (first.source.empty() ? first.name : first.source) +
                     ") is not known here: it counts as possibly aliasing what it reads");
  }
  return result;
}

}  // namespace

ExportedProgram read_exported_program(std::string_view bytes, const std::string& name,
                                      const ImportOptions& options) {
  const ZipReader archive(bytes, name);
  refuse_other_archives(archive, name);
  expect_entry(archive, name, "archive_format", "pt2");
  expect_entry(archive, name, "archive_version", "0");
  if (archive.find("byteorder")) expect_entry(archive, name, "byteorder", "little");
  const std::string model = find_model(archive, name);
  const ExportNotes notes = read_notes(archive, name);
  const Json json =
      parse_json(archive.get("models/" + model + ".json"), name + ": models/" + model + ".json");
  FlatProgram program = read_program(json, model, archive, name, notes.fixed_batch);

  std::vector<std::string> warnings;
  const std::optional<TensorId> loss = find_loss(program, name, options, warnings);
  Graph graph = build_graph(program, name, loss, notes.training);
  for (std::string& warning : unknown_warnings(graph)) warnings.push_back(std::move(warning));

  ExportedProgram result{.imported = {.graph = std::move(graph),
                                      .costs = std::nullopt,
                                      .cluster = std::nullopt,
                                      .plan = std::nullopt,
                                      .placement = std::nullopt,
                                      .warnings = std::move(warnings)},
                         .calls = {},
                         .stored = std::move(program.stored),
                         .inputs = user_inputs(program, archive, name)};
  result.calls.reserve(program.nodes.size());
  for (FlatNode& node : program.nodes) result.calls.push_back(std::move(node.call));
  return result;
}

std::vector<UnknownOperator> unknown_operators(const Graph& graph) {
  std::vector<UnknownOperator> result;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const Operator& op = graph.operators()[i];
    if (op.known) continue;
    const auto seen = std::find_if(result.begin(), result.end(), [&](const UnknownOperator& unknown) {
      return unknown.target == op.target;
    });
    if (seen != result.end()) {
      ++seen->count;
    } else {
      result.push_back({op.target, 1, OperatorId(i)});
    }
  }
  return result;
}

}  // namespace espalier
