#include "espalier/frontend/export_notes.h"

#include "espalier/base/json.h"
#include "espalier/frontend/decode.h"

namespace espalier {
namespace {

SchemaFacts read_schema(const JsonCursor& json) {
  json.only({"writes", "shares", "random"});
  SchemaFacts facts{
      .writes = json.at("writes").strings(), .shares = {}, .random = json.at("random").boolean()};
  const JsonCursor shares = json.at("shares");
  for (std::size_t i = 0; i < shares.size(); ++i) facts.shares.push_back(shares.at(i).strings());
  return facts;
}

}  // namespace

ExportNotes read_export_notes(const ZipReader& archive, const std::string& file) {
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
  if (cursor.has("operators")) {
    for (const auto& [name, schema] : cursor.at("operators").members())
      notes.operators.emplace(name, read_schema(schema));
  }
  if (cursor.has("outputs")) {
    for (const auto& [name, tensor] : cursor.at("outputs").members())
      notes.outputs.emplace_back(one_line(name), tensor.string());
  }
  if (cursor.has("ties")) {
    for (const auto& [name, first] : cursor.at("ties").members()) notes.ties.emplace(name, first.string());
  }
  return notes;
}

}  // namespace espalier
