#include "espalier/graph/module_names.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"

namespace espalier {
namespace {

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Where the last part of a path begins to be cut off: at its last separator, a first '/' counts for none.
std::size_t last_cut(std::string_view path) {
  const std::size_t cut = path.find_last_of("./");
  return cut == 0 ? std::string_view::npos : cut;
}

// A pattern without its '*' and with the first number of each range: what it looks most like.
std::string plainest(std::string_view pattern) {
  std::string text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '[') {
      while (++i < pattern.size() && pattern[i] >= '0' && pattern[i] <= '9') text += pattern[i];
      while (i < pattern.size() && pattern[i] != ']') ++i;
    } else if (pattern[i] != '*') {
      text += pattern[i];
    }
  }
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::string with_ranges(std::string_view name) {
  std::string text;
  while (true) {
    const std::size_t end = std::min(name.find_first_of("./"), name.size());
    const std::string_view part = name.substr(0, end);
    const std::size_t dash = part.find('-');
    const bool range =
        dash != std::string_view::npos && is_digits(part.substr(0, dash)) && is_digits(part.substr(dash + 1));
    text += range ? "[" + std::string(part) + "]" : std::string(part);
    if (end == name.size()) return text;
    text += name[end];
    name.remove_prefix(end + 1);
  }
}

ModuleNames::ModuleNames(const Graph& graph) : graph_(graph) {
  std::unordered_map<std::string, std::uint32_t> by_path;
  const auto module_at = [&](std::string_view path) {  // made with those around it
    std::vector<std::string_view> missing;
    std::optional<std::uint32_t> at;
    for (std::string_view rest = path; !rest.empty();) {
      const auto found = by_path.find(std::string(rest));
      if (found != by_path.end()) {
        at = found->second;
        break;
      }
      missing.push_back(rest);
      const std::size_t cut = last_cut(rest);
      rest = cut == std::string_view::npos ? std::string_view() : rest.substr(0, cut);
    }
    for (std::size_t i = missing.size(); i-- > 0;) {
      const std::uint32_t index = narrow(modules_.size());
      (at ? modules_[*at].modules : outermost_).push_back(index);
      modules_.push_back({.path = std::string(missing[i]), .inside = at, .modules = {}, .own = {}});
      by_path.emplace(modules_.back().path, index);
      at = index;
    }
    return at;
  };
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const Operator& op = graph.operators()[i];
    std::string_view path = op.module_path;
    if (path.empty()) {
      const std::size_t cut = last_cut(op.name);
      if (cut != std::string::npos) path = std::string_view(op.name).substr(0, cut);
    }
    const auto module = module_at(path);
    (module ? modules_[*module].own : without_).push_back(OperatorId(i));
  }
}

std::vector<OperatorId> ModuleNames::operators_of(std::uint32_t module) const {
  std::vector<OperatorId> operators;
  std::vector<std::uint32_t> open{module};
  while (!open.empty()) {
    const Module& next = modules_[open.back()];
    open.pop_back();
    operators.insert(operators.end(), next.own.begin(), next.own.end());
    open.insert(open.end(), next.modules.begin(), next.modules.end());
  }
  std::sort(operators.begin(), operators.end());
  return operators;
}

std::vector<OperatorId> ModuleNames::find(std::string_view name) const {
  const std::string quoted = "'" + std::string(name.substr(0, 80)) + "'";
  if (name.empty()) throw InputError("'': expected the name of a module or operator");
  std::string pattern = with_ranges(name);
  if (pattern.size() > 2 && pattern.ends_with(".*")) pattern.resize(pattern.size() - 2);
  if (const auto wrong = wrong_range(pattern)) throw InputError(quoted + ": " + *wrong);

  std::vector<char> meant(graph_.operators().size(), 0);
  bool any = false;
  const auto take = [&](std::span<const OperatorId> operators) {
    for (const OperatorId op : operators) meant[op.index()] = 1, any = true;
  };
  const auto result = [&] {
    std::vector<OperatorId> operators;
    for (std::size_t i = 0; i < meant.size(); ++i) {
      if (meant[i]) operators.push_back(OperatorId(i));
    }
    return operators;
  };
  std::vector<char> inside(modules_.size(), 0);
  for (std::size_t m = 0; m < modules_.size(); ++m) {
    inside[m] =
        (modules_[m].inside && inside[*modules_[m].inside]) || matches_pattern(pattern, modules_[m].path);
    if (inside[m]) take(modules_[m].own);
  }
  for (std::size_t i = 0; i < meant.size(); ++i) {
    if (!meant[i] && matches_pattern(pattern, graph_.operators()[i].name)) {
      meant[i] = 1;
      any = true;
    }
  }
  if (any) return result();
  if (pattern.front() == '*') fail_nothing(name);

  std::map<std::string, std::uint32_t> before;  // what was left out, with the first module that it gives
  std::fill(inside.begin(), inside.end(), 0);
  for (std::size_t m = 0; m < modules_.size(); ++m) {
    const std::string_view path = modules_[m].path;
    inside[m] = modules_[m].inside && inside[*modules_[m].inside];
    for (std::size_t cut = path.find_first_of("./"); cut != std::string_view::npos;
         cut = path.find_first_of("./", cut + 1)) {
      if (!matches_pattern(pattern, path.substr(cut + 1))) continue;
      before.emplace(std::string(path.substr(0, cut)), narrow(m));
      inside[m] = 1;
    }
    if (inside[m]) take(modules_[m].own);
  }
  if (before.size() > 1) {
    throw InputError(quoted + " could be '" + modules_[before.begin()->second].path + "' or '" +
                     modules_[std::next(before.begin())->second].path + "'" +
                     (before.size() > 2 ? " or one of " + std::to_string(before.size() - 2) + " more" : "") +
                     "; '*." + pattern.substr(0, 80) + "' means all of them");
  }
  if (!any) fail_nothing(name);
  return result();
}

void ModuleNames::fail_nothing(std::string_view name) const {
  std::vector<std::string_view> known;
  for (const Module& module : modules_) known.push_back(module.path);
  for (const OperatorId op : without_) known.push_back(graph_.op(op).name);
  // Names may leave out what stands before them, so their last parts count, too.
  const std::string wanted = plainest(with_ranges(name));
  const std::size_t parts = static_cast<std::size_t>(std::count(wanted.begin(), wanted.end(), '.')) + 1;
  std::vector<std::string> ends;
  std::vector<std::string_view> end_of;
  for (const std::string_view path : known) {
    std::size_t begin = path.size();
    for (std::size_t i = 0; i < parts && begin != std::string_view::npos; ++i) {
      begin = begin == 0 ? std::string_view::npos : path.find_last_of("./", begin - 1);
    }
    ends.emplace_back(begin == std::string_view::npos ? path : path.substr(begin + 1));
  }
  end_of.assign(ends.begin(), ends.end());
  const auto whole = nearest_word(wanted, known);
  const auto part = nearest_word(wanted, end_of);
  std::string nearest(whole.value_or(""));
  if (whole && part && edit_distance(wanted, *part) < edit_distance(wanted, *whole)) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] != *part) continue;
      nearest = known[i];
      break;
    }
  }
  throw InputError("'" + std::string(name.substr(0, 80)) + "' matches no operator or module" +
                   (nearest.empty() ? "" : "; did you mean '" + nearest.substr(0, 80) + "'?") +
                   " (`espalier inspect MODEL --modules` lists them)");
}

}  // namespace espalier
