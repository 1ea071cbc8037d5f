#include "espalier/runtime/weights_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/runtime/program.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamesShown = 10;

std::string first_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); ++i)
    text += (i > 0 ? ", " : "") + names[i];
  return text + (names.size() > kNamesShown ? ", … (" + std::to_string(names.size()) + " in all)" : "");
}

// What stands before every name on one side alone. "model." + "fc.weight" on the model's side: taken off
// there when the file is asked.
struct Prefix {
  enum class Side : std::uint8_t { kModel, kFile } side = Side::kModel;
  std::string text;
  friend auto operator<=>(const Prefix&, const Prefix&) = default;
};

// `name` as the file calls it.
std::optional<std::string> in_file(const Prefix& prefix, const std::string& name) {
  if (prefix.side == Prefix::Side::kFile) return prefix.text + name;
  if (name.starts_with(prefix.text)) return name.substr(prefix.text.size());
  return std::nullopt;
}

// Each dotted tail of `name` that `known` has: what stands before it.
template <class Known, class Count>
void count_tails(const std::string& name, const Known& known, const Count& count) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (known(name.substr(dot + 1))) count(name.substr(0, dot + 1));
  }
}

// The prefix that most parameters agree on; none where two would do equally well.
template <class Contains>
std::optional<Prefix> best_prefix(const std::vector<std::string>& unmatched,
                                  const std::vector<std::string>& file_names, const Contains& in_the_file) {
  std::map<Prefix, std::size_t> votes;
  const std::set<std::string> wanted(unmatched.begin(), unmatched.end());
  for (const std::string& name : unmatched) {
    count_tails(name, in_the_file, [&](std::string text) {
      ++votes[{Prefix::Side::kModel, std::move(text)}];
    });
  }
  for (const std::string& name : file_names) {
    count_tails(
        name, [&](const std::string& tail) { return wanted.contains(tail); },
        [&](std::string text) {
          ++votes[{Prefix::Side::kFile, std::move(text)}];
        });
  }
  std::optional<Prefix> best;
  std::size_t most = 0;
  for (const auto& [prefix, count] : votes) {
    if (count == most) best.reset();
    if (count > most) best = prefix, most = count;
  }
  return best;
}

std::string shape_of(at::IntArrayRef sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

}  // namespace

WeightsFile::WeightsFile(const std::string& path, const Graph& graph, MissingNames missing) : path_(path) {
  open(path);
  match(graph);
  note_what_differs(graph, missing);
  note_conversions(graph);
}

void WeightsFile::open(const std::string& path) {
  constexpr const char* kIndex = "model.safetensors.index.json";
  if (path.ends_with(".index.json")) return open_index(fs::path(path).parent_path().string(), path);
  std::error_code ignored;
  std::string file = path;
  if (fs::is_directory(path, ignored)) {
    const fs::path index = fs::path(path) / kIndex, single = fs::path(path) / "model.safetensors";
    if (fs::exists(index, ignored)) return open_index(path, index.string());
    if (!fs::exists(single, ignored)) {
      throw InputError(path + ": holds neither model.safetensors nor " + kIndex +
                       "; name the safetensors file itself");
    }
    file = single.string();
  }
  files_.push_back(std::make_unique<TensorFile>(file));
  for (const auto& entry : files_.back()->header().entries()) names_[entry.name] = files_.back().get();
}

void WeightsFile::open_index(const std::string& folder, const std::string& index) {
  const Json json = parse_json(read_file(index), index);
  std::map<std::string, const TensorFile*> opened;
  for (const auto& [name, place] : JsonCursor(json, index).at("weight_map").members()) {
    const std::string file = place.string();
    if (file.empty() || file[0] == '.' || file.find_first_of("/\\") != std::string::npos)
      place.fail("is not the name of a file beside this one");
    const auto [found, is_new] = opened.try_emplace(file, nullptr);
    if (is_new) {
      files_.push_back(std::make_unique<TensorFile>((fs::path(folder) / file).string()));
      found->second = files_.back().get();
    }
    if (!found->second->contains(name))
      place.fail("names '" + file + "', which has no tensor '" + name + "'");
    names_[name] = found->second;
  }
}

void WeightsFile::match(const Graph& graph) {
  const auto in_the_file = [&](const std::string& name) { return names_.contains(name); };
  std::vector<ParameterId> open;
  const auto place = [&](ParameterId id, const std::string& name) {
    const auto found = names_.find(name);
    if (found == names_.end()) return false;
    places_[id] = {found->second, name};
    return true;
  };
  std::vector<std::string> unmatched, file_names;
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    const Parameter& parameter = graph.parameters()[p];
    types_[ParameterId(p)] = torch_type(parameter.dtype);
    known_.insert(parameter.names.begin(), parameter.names.end());
    const bool found = std::any_of(parameter.names.begin(), parameter.names.end(),
                                   [&](const std::string& name) { return place(ParameterId(p), name); });
    if (found || !parameter.persistent) continue;
    open.push_back(ParameterId(p));
    unmatched.insert(unmatched.end(), parameter.names.begin(), parameter.names.end());
  }
  for (const auto& [name, file] : names_) file_names.push_back(name);
  const std::optional<Prefix> prefix = best_prefix(unmatched, file_names, in_the_file);
  if (!prefix) return;
  for (const ParameterId id : open) {
    for (const std::string& name : graph.parameter(id).names) {
      const std::optional<std::string> renamed = in_file(*prefix, name);
      if (!renamed) continue;
      known_.insert(*renamed);
      if (!places_.contains(id)) place(id, *renamed);
    }
  }
  notes_.push_back(path_ + ": its names " +
                   (prefix->side == Prefix::Side::kModel ? "lack '" : "have a further '") + prefix->text +
                   "' in front");
}

void WeightsFile::note_what_differs(const Graph& graph, MissingNames missing) {
  std::vector<std::string> absent;
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    const Parameter& parameter = graph.parameters()[p];
    const auto found = places_.find(ParameterId(p));
    if (found == places_.end()) {
      if (parameter.persistent) absent.push_back(parameter.names[0]);
      continue;
    }
    const auto& entry = found->second.file->header().get(found->second.name);
    if (entry.shape != parameter.sizes) {
      throw InputError(found->second.file->path() + ": tensor '" + found->second.name + "' has shape " +
                       shape_of(entry.shape) + ", the model's '" + parameter.names[0] + "' " +
                       shape_of(parameter.sizes));
    }
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, file] : names_) {
    if (!known_.contains(name)) unexpected.push_back(name);
  }
  const std::string others =
      unexpected.empty() ? "" : "; it has, and the model has not: " + first_names(unexpected);
  if (!absent.empty() && missing == MissingNames::kRefused) {
    throw InputError(path_ + ": lacks " + std::to_string(absent.size()) + " of the model's tensors: " +
                     first_names(absent) + others + " (--load-partial starts them with the model's values)");
  }
  if (!absent.empty())
    notes_.push_back(path_ + ": lacks, so the model's values are taken: " + first_names(absent));
  if (!unexpected.empty())
    notes_.push_back(path_ + ": has, and the model has not: " + first_names(unexpected));
}

void WeightsFile::note_conversions(const Graph& graph) {
  std::map<std::string, std::size_t> conversions;
  for (const auto& [id, place] : places_) {
    const at::ScalarType from = place.file->type(place.name), to = types_.at(id);
    if (from == to) continue;
    if (!at::isFloatingType(from) || !at::isFloatingType(to)) {
      throw InputError(place.file->path() + ": tensor '" + place.name + "' has type " + c10::toString(from) +
                       ", the model's '" + graph.parameter(id).names[0] + "' " + c10::toString(to));
    }
    ++conversions[std::string("from ") + c10::toString(from) + " to " + c10::toString(to)];
  }
  for (const auto& [what, count] : conversions) {
    notes_.push_back(path_ + ": " + std::to_string(count) + " tensor" + (count == 1 ? "" : "s") +
                     " converted " + what);
  }
}

at::Tensor WeightsFile::value(ParameterId id) const {
  const auto found = places_.find(id);
  if (found == places_.end()) return {};
  return found->second.file->read(found->second.name).to(types_.at(id));
}

}  // namespace espalier
