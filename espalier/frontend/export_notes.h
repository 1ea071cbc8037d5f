#pragma once

// What our exporter writes beside the program (extra/espalier.json, docs/export.md): what a reader without
// torch cannot know. All of it is optional, since other exporters write none. Internal to the frontend.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/frontend/zip.h"
#include "espalier/graph/graph.h"

namespace espalier {

// What an operator's schema says of memory and randomness.
struct SchemaFacts {
  std::vector<std::string> writes;               // arguments
  std::vector<std::vector<std::string>> shares;  // of each output: the arguments whose memory it shares
  bool random = false;
  friend bool operator==(const SchemaFacts&, const SchemaFacts&) = default;
};
using SchemaTable = std::map<std::string, SchemaFacts>;  // by "mylib::scale_.default"

struct ExportNotes {
  std::optional<bool> training;
  std::optional<BatchSize> fixed_batch;
  SchemaTable operators;
  std::vector<std::pair<std::string, std::string>> outputs;  // name, tensor of the program; "loss" among them
  std::map<std::string, std::string> ties;  // of tensors without bytes: further name, first name
};

// Throws InputError naming file and member.
ExportNotes read_export_notes(const ZipReader& archive, const std::string& file);

}  // namespace espalier
