#include "espalier/frontend/imported.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/frontend/exported_program.h"
#include "espalier/frontend/onnx_file.h"
#include "espalier/frontend/recipes.h"
#include "espalier/frontend/zip.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"

namespace espalier {
namespace {

std::string_view without_spaces(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

Imported import_json(std::string_view bytes, const std::string& name, const ImportOptions& options) {
  const Json json = parse_json(bytes, name);
  const JsonCursor root(json, name);
  if (root.has("format")) return {.graph = graph_from_json(json, name)};
  if (root.has("maxFPGAs")) return import_msr(bytes, name, options);
  if (root.has("mbsInBatch") || root.has("maxMemoryPerDevice")) return import_piper(bytes, name, options);
  if (root.has("workflow")) return import_wfformat(bytes, name, options);
  if (root.has("fpgas")) {
    throw InputError(name + ": is a placement, not a model; give it together with the model it places");
  }
  throw InputError(
      name + ": is JSON of no known kind: expected \"format\": \"espalier.graph/1\", a dnn-partitioning " +
      "input (maxFPGAs), a Piper input (mbsInBatch) or a workflow of WfCommons (workflow)");
}

// The first line that says something is a node or an edge of PipeDream's.
bool is_pipedream(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const bool node = line.find("forward_compute_time=") != std::string_view::npos;
  const bool edge = line.starts_with('\t') && line.find(" -- ") != std::string_view::npos;
  return node || edge;
}

}  // namespace

Imported import_bytes(std::string_view bytes, const std::string& name, const ImportOptions& options) {
  if (is_archive(bytes)) {
    if (!options.dims.empty())
      throw InputError(name + ": --dim is for ONNX files; an exported program leaves only its batch open");
    return std::move(read_exported_program(bytes, name, options).imported);
  }
  if (is_onnx(bytes)) return import_onnx(bytes, name, options);
  refuse_other_files(bytes, name);
  if (!options.frozen.empty())
    throw InputError(name +
                     ": --freeze needs an exported program (.pt2) or ONNX, whose parameters have names");
  if (!options.dims.empty()) throw InputError(name + ": --dim is for ONNX files that leave sizes open");
  const std::string_view text = without_spaces(bytes);
  if (text.empty()) throw InputError(name + ": is empty");
  if (text.front() == '{') return import_json(bytes, name, options);
  const auto line = bytes.find_first_not_of("\r\n");
  if (is_pipedream(bytes.substr(line))) return import_pipedream(bytes, name, options);
  if (is_stg(bytes)) return import_stg(bytes, name, options);
  if (is_doppler(bytes)) return import_doppler(bytes, name, options);
  const bool binary = std::any_of(
      bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(bytes.size(), 1000)),
      [](unsigned char c) { return c < 9 || (c > 13 && c < 32); });
  if (binary) {
    throw InputError(
        name +
        ": is of no known kind: expected an exported program (.pt2), ONNX, a PipeDream profile, a "
        "dnn-partitioning or Piper input, or a graph of Espalier");
  }
  try {
    return {.graph = parse_graph(bytes)};
  } catch (const InputError& error) {  // only to name the file
    throw InputError(name + ": " + error.what());
  }
}

Imported import_file(const std::string& path, const ImportOptions& options) {
  const MappedFile file(path);
  return import_bytes(file.bytes(), path, options);
}

}  // namespace espalier
