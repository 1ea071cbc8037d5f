// A tree of parts (modules, what stands in them directly, operators without a module), each with its flows:
// what goes from which place to which. The lines begin as the outermost parts; the part with most moved work
// that does not go one way is replaced by those inside it, as long as the lines are few enough.
//
// The renaming: flow[i][j] is the work that stands on device i in a and on j in b. The best renaming within
// a kind is a matching of rows and columns of the largest sum (Kuhn 1955; here by shortest augmenting paths
// with potentials, Jonker, Volgenant 1987, O(n³)). Staying counts as a little more, so that devices are
// renamed only where that explains something.

#include "espalier/app/moved_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/graph/module_names.h"

namespace espalier {
namespace {

__extension__ using WideWork = __int128;

struct MovedSum {
  std::size_t operators = 0;
  Duration work;
  Bytes parameters;
  MovedSum& operator+=(const MovedSum& other) {
    operators += other.operators;
    work += other.work;
    parameters += other.parameters;
    return *this;
  }
};

constexpr std::size_t kMostFlows = 4;  // of a part, each with a line of its own

constexpr std::size_t kMostNamedDevices = 2;  // of a place

using Flow = std::pair<std::uint32_t, std::uint32_t>;  // places, from and to

struct MovedPart {
  std::string name;
  std::vector<std::uint32_t> inside;  // parts, by first operator
  std::size_t operators = 0;          // all, moved or not
  std::map<Flow, MovedSum> flows;
  Duration work;  // moved

  bool one_way() const { return flows.size() == 1 && flows.begin()->second.operators == operators; }
};

// "h.12" is "h." and 12.
struct NumberedName {
  std::string before;
  std::uint64_t number = 0;
};
std::optional<NumberedName> numbered_name(const std::string& name) {
  const std::size_t last = name.find_last_not_of("0123456789");
  const std::size_t at = last == std::string::npos ? 0 : last + 1;
  if (at == 0 || at == name.size() || name.size() - at > 9 || (name[at] == '0' && at + 1 < name.size())) {
    return std::nullopt;
  }
  NumberedName result{name.substr(0, at), 0};
  std::from_chars(name.data() + at, name.data() + name.size(), result.number);
  return result;
}

class MovedWorkTeller {
 public:
  MovedWorkTeller(const Graph& graph, const Standing& standing, const std::vector<Duration>& work)
      : graph_(graph), standing_(standing), work_(work), names_(graph) {
    for (const Duration time : work) whole_ += time;
    find_parameters();
    for (std::size_t i = 0; i < graph.operators().size(); ++i) {
      from_.push_back(place(standing.a[i]));
      to_.push_back(place(standing.b[i]));
      if (from_.back() != to_.back()) moved_ += work[i];
    }
    add_parts();
  }

  MovedWork tell(const MovedWorkOptions& options) {
    MovedWork result;
    for (const std::uint32_t part : outermost_) sum_up(part);
    std::vector<std::uint32_t> shown = joined(outermost_);
    while (split_one(shown, options.most_lines)) {
    }
    struct Row {
      std::string module;
      PartRow row;
    };
    std::vector<Row> rows;
    MovedSum all;
    for (const std::uint32_t part : shown) {
      for (PartRow& row : rows_of(part)) {
        all += row.sum;
        rows.push_back({parts_[part].name, std::move(row)});
      }
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Row& a, const Row& b) { return a.row.sum.work > b.row.sum.work; });
    MovedSum rest;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i < options.most_lines) {
        result.lines.push_back(line(rows[i].module, rows[i].row.sum));
        result.lines.back().from = std::move(rows[i].row.from);
        result.lines.back().to = std::move(rows[i].row.to);
      } else {
        rest += rows[i].row.sum;
        ++result.more;
      }
    }
    result.rest = line("", rest);
    result.all = line("", all);
    return result;
  }

 private:
  MovedWork::Line line(const std::string& module, const MovedSum& sum) const {
    return {module, "", "", sum.operators, ratio(sum.work, whole_), sum.parameters};
  }

  // A parameter counts with the first operator that reads it.
  void find_parameters() {
    parameters_.resize(graph_.operators().size());
    std::vector<char> counted(graph_.parameters().size());
    for (std::size_t i = 0; i < graph_.operators().size(); ++i) {
      for (const TensorId input : graph_.op(OperatorId(i)).inputs) {
        const std::optional<ParameterId> parameter = graph_.tensor(input).parameter;
        if (!parameter || counted[parameter->index()] != 0) continue;
        counted[parameter->index()] = 1;
        parameters_[i] += graph_.parameter(*parameter).bytes();
      }
    }
  }

  // Places are sets of devices, numbered as they come.
  std::uint32_t place(const std::vector<std::uint32_t>& devices) {
    const auto [at, added] = places_.emplace(devices, narrow(place_names_.size()));
    if (added) {
      std::string name;
      for (const std::uint32_t device : devices) name += (name.empty() ? "" : ", ") + standing_.names[device];
      if (devices.size() > kMostNamedDevices) name = std::to_string(devices.size()) + " devices";
      place_names_.push_back(std::move(name));
    }
    return at->second;
  }

  std::uint32_t add(std::string name) {
    parts_.push_back({std::move(name), {}, 0, {}, {}});
    own_.emplace_back();
    return narrow(parts_.size() - 1);
  }

  void add_parts() {
    const auto modules = names_.modules();
    for (const Module& module : modules) add(module.path);
    for (std::size_t m = 0; m < modules.size(); ++m) {
      const Module& module = modules[m];
      parts_[m].inside.assign(module.modules.begin(), module.modules.end());
      if (module.modules.empty()) {
        own_[m] = module.own;
      } else if (!module.own.empty()) {
        const std::uint32_t itself = add(module.path + " itself");
        own_[itself] = module.own;
        parts_[m].inside.push_back(itself);
      }
    }
    outermost_.assign(names_.outermost().begin(), names_.outermost().end());
    if (names_.without_module().empty()) return;
    const std::uint32_t without = add("no module");
    for (const OperatorId op : names_.without_module()) {
      const std::uint32_t single = add(graph_.op(op).name);
      own_[single] = {op};
      parts_[without].inside.push_back(single);
    }
    outermost_.push_back(without);
  }

  void sum_up(std::uint32_t part) {
    for (const OperatorId op : own_[part]) {
      const std::size_t i = op.index();
      ++parts_[part].operators;
      if (from_[i] == to_[i]) continue;
      parts_[part].flows[{from_[i], to_[i]}] += {1, work_[i], parameters_[i]};
      parts_[part].work += work_[i];
    }
    for (const std::uint32_t inner : std::vector<std::uint32_t>(parts_[part].inside)) {
      sum_up(inner);
      merge(part, inner);
    }
  }
  void merge(std::uint32_t into, std::uint32_t from) {
    parts_[into].operators += parts_[from].operators;
    parts_[into].work += parts_[from].work;
    for (const auto& [flow, sum] : parts_[from].flows) parts_[into].flows[flow] += sum;
  }

  // Those of which something moved; neighbours that go one and the same way as one part: "h.3-7".
  std::vector<std::uint32_t> joined(const std::vector<std::uint32_t>& parts) {
    std::vector<std::uint32_t> result;
    for (std::size_t i = 0; i < parts.size();) {
      std::size_t next = i + 1;
      while (next < parts.size() && follows(parts[next - 1], parts[next])) ++next;
      if (next - i > 1) {
        const std::string last = parts_[parts[next - 1]].name;
        const std::uint32_t run =
            add(parts_[parts[i]].name + "-" + last.substr(last.find_last_not_of("0123456789") + 1));
        for (std::size_t k = i; k < next; ++k) merge(run, parts[k]);
        result.push_back(run);
      } else if (!parts_[parts[i]].flows.empty()) {
        result.push_back(parts[i]);
      }
      i = next;
    }
    return result;
  }
  bool follows(std::uint32_t a, std::uint32_t b) const {
    if (!parts_[a].one_way() || !parts_[b].one_way()) return false;
    if (parts_[a].flows.begin()->first != parts_[b].flows.begin()->first) return false;
    const auto x = numbered_name(parts_[a].name), y = numbered_name(parts_[b].name);
    return x && y && x->before == y->before && x->number + 1 == y->number;
  }

  struct PartRow {
    std::string from, to;
    MovedSum sum;
  };

  // Each flow; of many the one that is most of the work, and the others as one.
  std::vector<PartRow> rows_of(std::uint32_t part) const {
    const std::map<Flow, MovedSum>& flows = parts_[part].flows;
    const bool many = flows.size() > kMostFlows;
    std::vector<PartRow> rows;
    std::set<std::uint32_t> from, to;
    MovedSum others;
    for (const auto& [flow, sum] : flows) {
      if (!many || sum.work + sum.work > parts_[part].work) {
        rows.push_back({place_names_[flow.first], place_names_[flow.second], sum});
      } else {
        others += sum;
        from.insert(flow.first);
        to.insert(flow.second);
      }
    }
    if (others.operators > 0) rows.push_back({several(from), several(to), others});
    return rows;
  }
  std::string several(const std::set<std::uint32_t>& places) const {
    return places.size() == 1 ? place_names_[*places.begin()] : std::to_string(places.size()) + " places";
  }

  // Not what is less than a thousandth of all that moved.
  bool counts(const PartRow& row) const { return row.sum.work * 1000 >= moved_; }

  std::size_t lines_of(const std::vector<std::uint32_t>& parts) const {
    std::size_t lines = 0;
    for (const std::uint32_t part : parts) {
      for (const PartRow& row : rows_of(part)) lines += counts(row) ? 1 : 0;
    }
    return lines;
  }

  // Replaces one part by those inside it. False where none can be within `most` lines.
  bool split_one(std::vector<std::uint32_t>& shown, std::size_t most) {
    std::vector<std::size_t> order(shown.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
      return parts_[shown[x]].work > parts_[shown[y]].work;
    });
    const std::size_t lines = lines_of(shown);
    for (const std::size_t at : order) {
      const std::uint32_t part = shown[at];
      if (parts_[part].inside.empty() || parts_[part].one_way()) continue;
      const std::vector<std::uint32_t> inside = joined(parts_[part].inside);
      const std::size_t before = lines_of({part});
      std::size_t after = 0;  // crumbs as well: nothing is split into crumbs
      for (const std::uint32_t inner : inside) after += rows_of(inner).size();
      // A module with one module inside is told by that one, however many lines there are.
      if (lines - before + after > most && after > before) continue;
      shown.erase(shown.begin() + static_cast<std::ptrdiff_t>(at));
      shown.insert(shown.begin() + static_cast<std::ptrdiff_t>(at), inside.begin(), inside.end());
      return true;
    }
    return false;
  }

  const Graph& graph_;
  const Standing& standing_;
  const std::vector<Duration>& work_;
  ModuleNames names_;
  Duration whole_, moved_;
  std::vector<Bytes> parameters_;  // by operator
  std::map<std::vector<std::uint32_t>, std::uint32_t> places_;
  std::vector<std::string> place_names_;
  std::vector<std::uint32_t> from_, to_;  // by operator: places
  std::vector<MovedPart> parts_;
  std::vector<std::vector<OperatorId>> own_;  // by part
  std::vector<std::uint32_t> outermost_;
};

using WorkMatrix = std::vector<std::vector<WideWork>>;

// By row its column, so that the sum of entries is largest.
std::vector<std::size_t> best_matching(const WorkMatrix& gain) {
  const std::size_t n = gain.size();
  std::vector<WideWork> row_price(n + 1), column_price(n + 1);
  std::vector<std::size_t> row_of(n + 1), before(n + 1);  // by column; 0: none, numbers from 1
  for (std::size_t row = 1; row <= n; ++row) {
    row_of[0] = row;
    std::size_t column = 0;
    std::vector<std::optional<WideWork>> least(n + 1);
    std::vector<char> done(n + 1);
    while (row_of[column] != 0) {
      done[column] = 1;
      const std::size_t at = row_of[column];
      std::size_t next = 0;
      for (std::size_t c = 1; c <= n; ++c) {
        if (done[c] != 0) continue;
        const WideWork cost = -gain[at - 1][c - 1] - row_price[at] - column_price[c];
        if (!least[c] || cost < *least[c]) {
          least[c] = cost;
          before[c] = column;
        }
        if (next == 0 || *least[c] < *least[next]) next = c;
      }
      const WideWork step = *least[next];
      for (std::size_t c = 0; c <= n; ++c) {
        if (done[c] != 0) {
          row_price[row_of[c]] += step;
          column_price[c] -= step;
        } else if (least[c]) {
          *least[c] -= step;
        }
      }
      column = next;
    }
    for (; column != 0; column = before[column]) row_of[column] = row_of[before[column]];
  }
  std::vector<std::size_t> result(n);
  for (std::size_t c = 1; c <= n; ++c) result[row_of[c] - 1] = c - 1;
  return result;
}

// The same by the largest entries first.
std::vector<std::size_t> greedy_matching(const WorkMatrix& gain) {
  std::vector<std::tuple<WideWork, std::size_t, std::size_t>> entries;
  for (std::size_t row = 0; row < gain.size(); ++row) {
    for (std::size_t c = 0; c < gain.size(); ++c) entries.emplace_back(-gain[row][c], row, c);
  }
  std::sort(entries.begin(), entries.end());
  std::vector<std::optional<std::size_t>> column(gain.size());
  std::vector<char> taken(gain.size());
  for (const auto& [loss, row, c] : entries) {
    if (column[row] || taken[c] != 0) continue;
    column[row] = c;
    taken[c] = 1;
  }
  std::vector<std::size_t> result;
  for (const auto& c : column) result.push_back(*c);
  return result;
}

// By device of a the device that it is called in b.
std::vector<std::uint32_t> best_names(const Standing& standing, const std::vector<Duration>& work) {
  std::map<Flow, WideWork> flows;
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (standing.a[i].size() != 1 || standing.b[i].size() != 1) continue;
    flows[{standing.a[i].front(), standing.b[i].front()}] += work[i].count();
  }
  std::vector<std::uint32_t> result(standing.names.size());
  std::iota(result.begin(), result.end(), 0U);
  std::map<std::string, std::vector<std::uint32_t>> of_kind;
  for (std::uint32_t d = 0; d < standing.names.size(); ++d) {
    const bool used = std::any_of(flows.begin(), flows.end(), [&](const auto& entry) {
      return entry.first.first == d || entry.first.second == d;
    });
    if (used) of_kind[standing.kinds[d]].push_back(d);
  }
  for (const auto& [kind, devices] : of_kind) {
    const std::size_t n = devices.size();
    WorkMatrix gain(n, std::vector<WideWork>(n));
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const auto flow = flows.find({devices[i], devices[j]});
        const WideWork moved = flow == flows.end() ? 0 : flow->second;
        gain[i][j] = moved * static_cast<WideWork>(n + 1) + (i == j ? 1 : 0);
      }
    }
    const auto match = n <= kMostMatchedDevices ? best_matching(gain) : greedy_matching(gain);
    for (std::size_t i = 0; i < n; ++i) result[devices[i]] = devices[match[i]];
  }
  return result;
}

// "gpu:0 <-> gpu:1, gpu:2 -> gpu:3 -> gpu:4 -> gpu:2".
std::string cycles_text(const std::vector<std::uint32_t>& names, const Standing& standing) {
  std::string out;
  std::vector<char> told(names.size());
  for (std::uint32_t first = 0; first < names.size(); ++first) {
    if (told[first] != 0 || names[first] == first) continue;
    out += (out.empty() ? "" : ", ") + standing.names[first];
    told[first] = 1;
    const bool pair = names[names[first]] == first;
    for (std::uint32_t d = names[first]; d != first; d = names[d]) {
      out += (pair ? " <-> " : " -> ") + standing.names[d];
      told[d] = 1;
    }
    if (!pair) out += " -> " + standing.names[first];
  }
  return out;
}

std::optional<MovedWork::Renaming> find_renaming(const Standing& standing,
                                                 const std::vector<Duration>& work) {
  const std::vector<std::uint32_t> names = best_names(standing, work);
  Duration whole, moved, left;
  for (std::size_t i = 0; i < work.size(); ++i) {
    whole += work[i];
    if (standing.a[i] != standing.b[i]) moved += work[i];
    std::vector<std::uint32_t> renamed;
    for (const std::uint32_t device : standing.a[i]) renamed.push_back(names[device]);
    std::sort(renamed.begin(), renamed.end());
    if (renamed != standing.b[i]) left += work[i];
  }
  std::string devices = cycles_text(names, standing);
  if (devices.empty() || left + left >= moved) return std::nullopt;
  return MovedWork::Renaming{std::move(devices), ratio(left, whole)};
}

}  // namespace

MovedWork moved_work(const Graph& graph, const Standing& standing, const std::vector<Duration>& work,
                     const MovedWorkOptions& options) {
  const std::size_t operators = graph.operators().size();
  ESP_CHECK(standing.a.size() == operators && standing.b.size() == operators && work.size() == operators,
            operators);
  ESP_CHECK(standing.names.size() == standing.kinds.size(), standing.kinds.size());
  MovedWork result = MovedWorkTeller(graph, standing, work).tell(options);
  result.renaming = find_renaming(standing, work);
  return result;
}

}  // namespace espalier
