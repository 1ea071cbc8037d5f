#include "espalier/frontend/exported_program.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/export_notes.h"
#include "espalier/frontend/libtorch_operators.h"
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

bool can_be_loss(const FlatTensor& tensor) {
  const bool complex =
      tensor.dtype == DType::kC32 || tensor.dtype == DType::kC64 || tensor.dtype == DType::kC128;
  return tensor.sizes.empty() && is_floating_point(tensor.dtype) && !complex;
}

std::string output_names(const FlatProgram& program) {
  std::string names;
  for (const TensorId id : program.outputs) {
    names += (names.empty() ? "" : ", ") + program.tensors[id.index()].name;
  }
  return names.empty() ? "none" : names;
}

// An output by its name in the program, as extra/espalier.json names it.
TensorId output_named(const FlatProgram& program, const std::string& tensor, const std::string& file) {
  const auto found = std::find(program.output_names.begin(), program.output_names.end(), tensor);
  if (found == program.output_names.end()) {
    throw InputError(file + ": extra/espalier.json names an output " + quote(tensor) +
                     ", which the program does not have");
  }
  return program.outputs[static_cast<std::size_t>(found - program.output_names.begin())];
}

std::vector<UserOutput> user_outputs(const FlatProgram& program, const ExportNotes& notes,
                                     const std::string& file) {
  std::vector<UserOutput> result;
  for (const auto& [name, tensor] : notes.outputs) {
    if (name == "loss") continue;
    const TensorId id = output_named(program, tensor, file);
    if (!is_floating_point(program.tensors[id.index()].dtype))
      throw InputError(file + ": its output " + quote(name) + " is not floating-point");
    result.push_back({name, id});
  }
  return result;
}

// The loss by the rules of docs/semantics.md; fills `warning` where there is none and none is required.
std::optional<TensorId> find_loss(const FlatProgram& program, const ExportNotes& notes,
                                  const std::string& file, const ImportOptions& options,
                                  std::vector<std::string>& warnings) {
  std::vector<TensorId> candidates;
  for (const TensorId id : program.outputs) {
    if (can_be_loss(program.tensors[id.index()])) candidates.push_back(id);
  }
  if (!options.loss.empty()) {
    for (const TensorId id : program.outputs) {
      if (program.tensors[id.index()].name != options.loss) continue;
      if (std::find(candidates.begin(), candidates.end(), id) != candidates.end()) return id;
      throw InputError(file + ": output " + quote(options.loss) +
                       " cannot be the loss: it is not one real floating-point number");
    }
    throw InputError(file + ": has no output " + quote(options.loss) +
                     "; its outputs: " + output_names(program));
  }
  if (program.declared_loss) return program.declared_loss;
  for (const auto& [name, tensor] : notes.outputs) {
    if (name != "loss") continue;
    const TensorId id = output_named(program, tensor, file);
    if (!can_be_loss(program.tensors[id.index()]))
      throw InputError(file + ": its loss " + quote(tensor) + " is not one floating-point number");
    return id;
  }
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
  std::vector<std::optional<ValueRange>> samples;
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

Graph build_graph(const FlatProgram& program, const ExportNotes& notes, const std::string& name,
                  std::optional<TensorId> loss) {
  try {
    GraphParts parts = derive_graph(program, notes.operators);
    parts.name = file_stem(name);
    parts.loss = loss;
    parts.training_mode = notes.training.value_or(training_flags(program).value_or(true));
    return Graph(std::move(parts));
  } catch (const InputError& error) {  // only to name the file
    throw InputError(name + ": " + error.what());
  }
}

// Parameters that match a pattern are trained no more: the rest follows from the flat program.
void freeze(FlatProgram& program, const std::vector<std::string>& patterns, const std::string& name) {
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (Parameter& parameter : program.parameters) {
      const bool matches =
          std::any_of(parameter.names.begin(), parameter.names.end(),
                      [&](const std::string& each) { return matches_pattern(pattern, each); });
      if (matches) found = true, parameter.trainable = false;
    }
    if (!found) {
      throw InputError(name + ": --freeze '" + pattern + "' matches no parameter, such as '" +
                       (program.parameters.empty() ? "" : program.parameters.front().names.front()) + "'");
    }
  }
  for (FlatTensor& tensor : program.tensors) {
    if (tensor.parameter && !program.parameters[tensor.parameter->index()].trainable)
      tensor.trainable = false;
  }
}

// Operators of other libraries: their schemas are in the file, they themselves are not in libtorch.
std::vector<std::string> foreign_warnings(const FlatProgram& program) {
  std::vector<std::pair<const FlatNode*, std::size_t>> found;
  for (const FlatNode& node : program.nodes) {
    if (in_libtorch(node.call.target)) continue;
    const auto seen = std::find_if(found.begin(), found.end(), [&](const auto& other) {
      return other.first->call.target == node.call.target;
    });
    if (seen != found.end()) {
      ++seen->second;
    } else {
      found.emplace_back(&node, 1);
    }
  }
  std::vector<std::string> result;
  for (const auto& [node, count] : found) {
    result.push_back("operator " + node->call.target + " (" + std::to_string(count) +
                     (count == 1 ? " use, " : " uses, first ") +
                     (node->source.empty() ? node->name : node->source) +
                     ") is not in libtorch: it runs only in a program that registers it");
  }
  return result;
}

}  // namespace

ExportedProgram read_exported_program(std::string_view bytes, const std::string& name,
                                      const ImportOptions& options) {
  refuse_what_is_only_planned(bytes, name);
  const ZipReader archive(bytes, name);
  refuse_other_archives(archive, name);
  expect_entry(archive, name, "archive_format", "pt2");
  expect_entry(archive, name, "archive_version", "0");
  if (archive.find("byteorder")) expect_entry(archive, name, "byteorder", "little");
  const std::string model = find_model(archive, name);
  const ExportNotes notes = read_export_notes(archive, name);
  const Json json =
      parse_json(archive.get("models/" + model + ".json"), name + ": models/" + model + ".json");
  FlatProgram program = read_program(json, model, archive, name, notes);
  freeze(program, options.frozen, name);

  std::vector<std::string> warnings;
  const std::optional<TensorId> loss = find_loss(program, notes, name, options, warnings);
  Graph graph = build_graph(program, notes, name, loss);
  for (std::string& warning : foreign_warnings(program)) warnings.push_back(std::move(warning));

  // What may throw comes before the braces: g++ 12 destroys members twice if a later one throws.
  std::vector<UserInput> inputs = user_inputs(program, archive, name);
  std::vector<UserOutput> outputs = user_outputs(program, notes, name);
  ExportedProgram result{.imported = {.graph = std::move(graph),
                                      .costs = std::nullopt,
                                      .cluster = std::nullopt,
                                      .plan = std::nullopt,
                                      .placement = std::nullopt,
                                      .warnings = std::move(warnings)},
                         .calls = {},
                         .stored = std::move(program.stored),
                         .inputs = std::move(inputs),
                         .outputs = std::move(outputs)};
  result.calls.reserve(program.nodes.size());
  for (FlatNode& node : program.nodes) result.calls.push_back(std::move(node.call));
  return result;
}

void require_weights(const ExportedProgram& program, const std::string& file) {
  for (const StoredTensor& stored : program.stored) {
    if (!stored.absent) continue;
    throw InputError(
        file + ": holds no weights, since its model was made on the meta device: it can be planned and " +
        "simulated; to compute, export the model with its weights");
  }
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
