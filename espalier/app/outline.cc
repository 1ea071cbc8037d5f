#include "espalier/app/outline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "espalier/graph/part_names.h"

namespace espalier {
namespace {

using Branch = Outline::Branch;
using Section = Outline::Section;

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The first components that two paths have in common.
std::string common(const std::string& a, const std::string& b) {
  std::size_t end = 0;
  for (std::size_t i = 0;; ++i) {
    const bool end_a = i == a.size() || a[i] == '.', end_b = i == b.size() || b[i] == '.';
    if (end_a && end_b) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) return a.substr(0, end);
  }
}

// A run of children of a series, or one part: operators in a row.
struct Range {
  std::size_t first_operator = 0, end_operator = 0;
  std::vector<PartId> parts = {};
};

class Writer {
 public:
  Writer(const Structure& structure, const Graph& graph, std::span<const Duration> times)
      : s_(structure), graph_(graph), until_{Duration()} {
    for (const OperatorId op : s_.operators) until_.push_back(until_.back() + times[op.index()]);
  }

  Outline write() {
    Outline result;
    if (s_.empty()) return result;
    result.sections = sections(PartId(0));
    result.inside = inside();
    return result;
  }

 private:
  Duration time(std::size_t first, std::size_t end) const { return until_[end] - until_[first]; }
  Duration time(PartId p) const { return time(s_.part(p).first_operator, s_.part(p).end_operator); }
  double share(const Range& range) const {
    return ratio(time(range.first_operator, range.end_operator), until_.back());
  }
  bool at_least(Duration some, std::int64_t percent) const {
    return some.count() * 100 >= until_.back().count() * percent;
  }

  // What the modules of all operators that decide have in common; none if none of them has a module.
  std::optional<std::string> module_of(std::size_t first, std::size_t end) const {
    std::optional<std::string> module;
    for (std::size_t i = first; i < end; ++i) {
      const std::string& path = graph_.op(s_.operators[i]).module_path;
      if (path.empty() || s_.carried[i] != 0) continue;
      module = module ? common(*module, path) : path;
    }
    return module;
  }
  // "encoder.layers.3.mlp": one of its components is a number.
  static bool in_a_layer(const std::string& module) {
    for (std::size_t at = 0; at < module.size();) {
      const std::size_t end = std::min(module.find('.', at), module.size());
      if (is_number(std::string_view(module).substr(at, end - at))) return true;
      at = end + 1;
    }
    return false;
  }

  // Work beside the heaviest branch.
  Duration gain(PartId parallel) const {
    Duration most;
    for (const PartId child : s_.children_of(parallel)) most = std::max(most, time(child));
    return time(parallel) - most;
  }
  bool shown(PartId part) const {
    if (s_.part(part).kind != PartKind::kParallel || !at_least(gain(part), 4)) return false;
    const auto module = module_of(s_.part(part).first_operator, s_.part(part).end_operator);
    return !module || !in_a_layer(*module);
  }

  Range range_of(PartId part) const {
    return {s_.part(part).first_operator, s_.part(part).end_operator, {part}};
  }

  std::vector<Section> sections(PartId part) {
    std::vector<std::vector<Range>> ranges;
    if (s_.part(part).kind != PartKind::kSeries) {
      ranges.push_back(shown(part) ? branches(part) : std::vector<Range>{range_of(part)});
    } else {
      Range run;
      const auto end_run = [&] {
        if (!run.parts.empty()) {
          for (Range& piece : pieces(run)) ranges.push_back({std::move(piece)});
        }
        run = Range();
      };
      for (const PartId child : s_.children_of(part)) {
        if (shown(child)) {
          end_run();
          ranges.push_back(branches(child));
          continue;
        }
        if (run.parts.empty()) run.first_operator = s_.part(child).first_operator;
        run.end_operator = s_.part(child).end_operator;
        run.parts.push_back(child);
      }
      end_run();
    }
    return named(ranges);
  }

  std::vector<Range> branches(PartId parallel) const {
    std::vector<Range> result;
    for (const PartId child : s_.children_of(parallel)) {
      if (at_least(time(child), 1)) result.push_back(range_of(child));
    }
    return result;
  }

  // A run, cut where its modules change; pieces of less than a hundredth of all join the one before.
  std::vector<Range> pieces(const Range& run) const {
    const auto module = module_of(run.first_operator, run.end_operator);
    std::vector<Range> result;
    std::string current;
    for (const PartId part : run.parts) {
      const Structure::Part& p = s_.part(part);
      std::string own = current;
      for (std::size_t i = p.first_operator; i < p.end_operator; ++i) {
        const std::string& path = graph_.op(s_.operators[i]).module_path;
        if (path.empty()) continue;
        const std::size_t begin = module && !module->empty() ? module->size() + 1 : 0;
        own = begin < path.size() ? path.substr(begin, path.find('.', begin) - begin) : "";
        if (is_number(own)) own = "#";  // layers are one piece
        break;
      }
      if (result.empty() || own != current) result.push_back({p.first_operator, p.end_operator, {}});
      current = own;
      result.back().parts.push_back(part);
      result.back().end_operator = p.end_operator;
    }
    std::vector<Range> deeper;  // what is most of all is looked into, as far as to its layers
    for (Range& piece : result) {
      const auto own = module_of(piece.first_operator, piece.end_operator);
      const bool most = at_least(time(piece.first_operator, piece.end_operator), 60);
      if (!most || !module || !own || own->size() <= module->size() || in_a_layer(*own)) {
        deeper.push_back(std::move(piece));
      } else {
        for (Range& inner : pieces(piece)) deeper.push_back(std::move(inner));
      }
    }
    std::vector<Range> merged;
    for (Range& piece : deeper) {
      const bool small = !at_least(time(piece.first_operator, piece.end_operator), 1);
      const bool after_small =
          !merged.empty() && !at_least(time(merged.back().first_operator, merged.back().end_operator), 1);
      if (merged.empty() || !(small || after_small)) {
        merged.push_back(std::move(piece));
        continue;
      }
      merged.back().end_operator = piece.end_operator;
      merged.back().parts.insert(merged.back().parts.end(), piece.parts.begin(), piece.parts.end());
    }
    return merged;
  }

  std::vector<Section> named(const std::vector<std::vector<Range>>& ranges) {
    std::vector<std::vector<OperatorId>> sets;
    for (const auto& section : ranges) {
      for (const Range& range : section) {
        sets.emplace_back(s_.operators.begin() + static_cast<std::ptrdiff_t>(range.first_operator),
                          s_.operators.begin() + static_cast<std::ptrdiff_t>(range.end_operator));
      }
    }
    const std::vector<std::string> names = part_names(graph_, sets);
    std::vector<Section> result;
    std::size_t next = 0;
    for (const auto& section : ranges) {
      Section& written = result.emplace_back();
      for (const Range& range : section) {
        Branch branch{.name = names[next], .share = share(range), .operators = sets[next].size()};
        ++next;
        if (section.size() > 1 && has_branches(range.parts.front())) {
          branch.sections = sections(range.parts.front());
        }
        written.branches.push_back(std::move(branch));
      }
      if (section.size() == 1) written.equal_steps = equal_steps(section.front().parts);
    }
    return result;
  }

  bool has_branches(PartId part) const {
    const auto children = s_.children_of(part);
    return std::any_of(children.begin(), children.end(), [&](PartId child) { return shown(child); });
  }

  // Of the parts that occur several times take the heaviest; the distance of its first two is a step. As
  // many steps as agree with the next one, and that one.
  std::size_t equal_steps(const std::vector<PartId>& parts) const {
    std::map<PartId, std::vector<std::size_t>> places;
    for (std::size_t i = 0; i < parts.size(); ++i) places[s_.part(parts[i]).like].push_back(i);
    const std::vector<std::size_t>* best = nullptr;
    for (const auto& [like, list] : places) {
      const bool heavier = !best || s_.part(like).work > s_.part(parts[best->front()]).work;
      if (list.size() > 1 && heavier) best = &list;
    }
    if (!best) return 0;
    const std::size_t step = (*best)[1] - (*best)[0];
    std::size_t end = (*best)[0];
    while (end + step < parts.size() && s_.part(parts[end]).like == s_.part(parts[end + step]).like) ++end;
    const std::size_t steps = (end - (*best)[0]) / step + 1;
    const Duration of_steps =
        time(s_.part(parts[(*best)[0]]).first_operator, s_.part(parts[end + step - 1]).end_operator);
    const Duration of_all = time(s_.part(parts.front()).first_operator, s_.part(parts.back()).end_operator);
    return steps > 1 && of_steps.count() * 2 > of_all.count() ? steps : 0;
  }

  std::vector<Outline::Inside> inside() const {
    std::map<std::string, std::pair<Duration, std::size_t>> found;
    std::map<PartId, std::string> text_of;
    for (std::size_t p = 0; p < s_.parts.size(); ++p) {
      const PartId part(p);
      if (s_.part(part).kind != PartKind::kParallel || shown(part) || gain(part) == Duration()) continue;
      const PartId like = s_.part(part).like;
      const auto [text, fresh] = text_of.try_emplace(like);
      if (fresh && has_modules(part)) text->second = branch_text(part);
      if (text->second.empty()) continue;
      auto& [gained, count] = found[text->second];
      gained += gain(part);
      ++count;
    }
    std::vector<std::pair<Duration, Outline::Inside>> sorted;
    for (const auto& [text, entry] : found) {
      if (at_least(entry.first, 2)) sorted.push_back({entry.first, {text, entry.second}});
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<Outline::Inside> result;
    for (auto& [gained, entry] : sorted) result.push_back(std::move(entry));
    return result;
  }

  // Whether one of its branches has a module to itself: they differ not only in their operators.
  bool has_modules(PartId parallel) const {
    std::map<std::string, std::size_t> branches;  // that a module is in
    for (const PartId child : s_.children_of(parallel)) {
      std::set<std::string> modules;
      for (const OperatorId op : s_.operators_of(child)) modules.insert(graph_.op(op).module_path);
      for (const std::string& module : modules) ++branches[module];
    }
    return std::any_of(branches.begin(), branches.end(), [](const auto& entry) { return entry.second == 1; });
  }

  // The names of a part's branches without what they have in common.
  std::string branch_text(PartId part) const {
    constexpr std::size_t kMost = 8;
    std::vector<std::vector<OperatorId>> sets;
    for (const PartId child : s_.children_of(part)) {
      const auto operators = s_.operators_of(child);
      sets.emplace_back(operators.begin(), operators.end());
    }
    std::vector<std::string> names = part_names(graph_, sets);
    std::string shared = names.front();
    for (const std::string& name : names) shared = common(shared, name);
    const std::size_t cut = shared.empty() ? 0 : shared.size() + 1;
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < kMost; ++i) {
      const std::string rest = names[i].size() > cut ? names[i].substr(cut) : names[i];
      text += (text.empty() ? "" : " | ") + rest;
    }
    if (names.size() > kMost) text += fmt::format(" | {} more", names.size() - kMost);
    return text;
  }

  const Structure& s_;
  const Graph& graph_;
  std::vector<Duration> until_;  // of the operators before a place
};

void print(const std::vector<Section>& sections, std::size_t depth, std::string& out) {
  for (const Section& section : sections) {
    out += std::string(2 * depth, ' ');
    for (const Branch& branch : section.branches) {
      if (&branch != &section.branches.front()) out += " | ";
      out += fmt::format("{} {:.0f} %", branch.name, 100 * branch.share);
    }
    if (section.equal_steps > 1) out += fmt::format(", {} equal steps", section.equal_steps);
    out += '\n';
    for (const Branch& branch : section.branches) {
      if (branch.sections.empty()) continue;
      out += fmt::format("{}{}:\n", std::string(2 * depth + 2, ' '), branch.name);
      print(branch.sections, depth + 2, out);
    }
  }
}

}  // namespace

Outline outline(const Structure& structure, const Graph& graph, std::span<const Duration> times) {
  return Writer(structure, graph, times).write();
}

std::string to_text(const Outline& outline) {
  std::string out;
  print(outline.sections, 1, out);
  constexpr std::size_t kMost = 3;
  for (std::size_t i = 0; i < outline.inside.size() && i < kMost; ++i) {
    const Outline::Inside& inside = outline.inside[i];
    out += fmt::format("  inside its layers: {} (×{})\n", inside.branches, inside.count);
  }
  return out;
}

}  // namespace espalier
