#include "espalier/schedule/pytorch_csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "espalier/base/check.h"

namespace espalier {
namespace {

struct Cell {
  ActionKind kind = ActionKind::kForward;
  std::size_t stage = 0;
  std::uint32_t micro_batch = 0;
};

std::string_view stripped(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Calls each(part) for what stands between separators.
template <class Each>
void split_at(std::string_view text, char separator, Each each) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    each(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::optional<std::uint32_t> leading_number(std::string_view& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool is_no_compute(std::string_view word) {
  constexpr std::array<std::string_view, 7> kWords{"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                                   "UNSHARD", "RESHARD", "REDUCE_GRAD"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

std::string quoted(std::string_view cell) {
  std::string text;
  for (const char c : cell.substr(0, 40)) text += c >= ' ' && c < 127 ? c : '?';
  return "'" + text + "'";
}

// One device's row.
class RowReader {
 public:
  RowReader(const StagedModel& model, std::string where) : model_(model), where_(std::move(where)) {}

  void read(std::string_view text) {
    text = stripped(text);
    if (text.empty()) return;
    if (text.front() != '(') return read_one(text);
    const std::size_t close = text.find(')');
    if (close == std::string_view::npos || stripped(text.substr(close + 1)) != "OVERLAP_F_B") {
      fail(quoted(text) + " is no action; two that run side by side are written (0F1;3B0)OVERLAP_F_B");
    }
    split_at(text.substr(1, close - 1), ';', [&](std::string_view part) { read_one(stripped(part)); });
  }

  // Of the device of its stages; none if it has no actions.
  std::optional<DeviceId> device() const { return device_; }
  std::vector<Step> take() { return std::move(steps_); }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError(where_ + ": " + what); }

  void read_one(std::string_view text) {
    const auto refuse = [&] {
      fail(quoted(text) + " is no action; expected stage, F, B, I or W, and micro-batch, such as 0F0");
    };
    std::string_view rest = text;
    const std::optional<std::uint32_t> stage = leading_number(rest);
    if (!stage) refuse();
    const std::string_view word = rest.substr(0, rest.find_first_of("0123456789"));
    rest.remove_prefix(word.size());
    if (is_no_compute(word)) {
      if (!rest.empty() && (!leading_number(rest) || !rest.empty())) refuse();
      return;
    }
    constexpr std::string_view kLetters = "FBIW";
    const std::size_t kind = word.size() == 1 ? kLetters.find(word) : std::string_view::npos;
    const std::optional<std::uint32_t> number = leading_number(rest);
    if (kind == std::string_view::npos || !number || !rest.empty()) refuse();
    add({static_cast<ActionKind>(kind), *stage, *number}, text);
  }

  void add(Cell cell, std::string_view text) {
    if (cell.stage >= model_.stages.size()) {
      fail(quoted(text) + ": the plan has " + std::to_string(model_.stages.size()) + " stages");
    }
    const StagedStage& stage = model_.stages[cell.stage];
    if (stage.replicas.size() != 1 || stage.replicas.front().devices.size() != 1) {
      fail("stage '" + stage.name + "' stands on several devices, which PyTorch's schedules do not know");
    }
    const DeviceId device = stage.replicas.front().devices.front();
    if (device_ && *device_ != device) {
      fail(quoted(text) + ": stage '" + stage.name + "' stands on another device than the row's first stage");
    }
    device_ = device;
    Progress& progress = progress_[cell.stage];
    const bool whole = !can_split(stage);
    if (cell.kind == ActionKind::kForward) {
      expect(cell, progress.forwards++, text);
    } else if (cell.kind == ActionKind::kWeightGradient) {
      if (whole) return;
      if (progress.weights == progress.split.size()) fail(quoted(text) + " has no I before it");
      expect(cell, progress.split[progress.weights++], text);
    } else {
      expect(cell, progress.backwards++, text);
      if (cell.kind == ActionKind::kInputGradient && whole) cell.kind = ActionKind::kBackward;
      if (cell.kind == ActionKind::kInputGradient) progress.split.push_back(cell.micro_batch);
    }
    steps_.emplace_back(cell.kind, StageId(cell.stage));
  }

  void expect(const Cell& cell, std::uint32_t number, std::string_view text) const {
    if (cell.micro_batch == number) return;
    fail(quoted(text) + ": micro-batch " + std::to_string(number) +
         " would be next; those of a stage come in order");
  }

  struct Progress {
    std::uint32_t forwards = 0, backwards = 0;
    std::size_t weights = 0;
    std::vector<std::uint32_t> split;  // micro-batches of the I
  };

  const StagedModel& model_;
  std::string where_;
  std::optional<DeviceId> device_;
  std::map<std::size_t, Progress> progress_;  // by stage
  std::vector<Step> steps_;
};

}  // namespace

OrderLists parse_pytorch_csv(std::string_view text, const std::string& where, const StagedModel& model,
                             const Cluster& cluster) {
  OrderLists lists(cluster.devices().size());
  std::vector<std::size_t> row_of(lists.size(), 0);  // 0: none yet
  std::size_t number = 0;
  split_at(text, '\n', [&](std::string_view line) {
    const std::string row = where + ": row " + std::to_string(++number);
    RowReader reader(model, row);
    split_at(line, ',', [&](std::string_view cell) { reader.read(cell); });
    if (!reader.device()) return;
    std::size_t& before = row_of.at(reader.device()->index());
    if (before > 0)
      throw InputError(row + ": its stages stand on the device of row " + std::to_string(before));
    before = number;
    lists[reader.device()->index()] = reader.take();
  });
  if (std::all_of(row_of.begin(), row_of.end(), [](std::size_t row) { return row == 0; })) {
    throw InputError(where + ": has no action; expected a row for each rank, such as 0F0,0F1,0B0,0B1");
  }
  return lists;
}

std::string print_pytorch_csv(const StagedModel& model, const Schedule& schedule) {
  std::vector<DeviceId> ranks;
  for (const StagedStage& stage : model.stages) {
    if (stage.replicas.size() != 1 || stage.replicas.front().devices.size() != 1) {
      throw InputError("stage '" + stage.name +
                       "' stands on several devices, which PyTorch's schedules do not know");
    }
    const DeviceId device = stage.replicas.front().devices.front();
    if (std::find(ranks.begin(), ranks.end(), device) == ranks.end()) ranks.push_back(device);
  }
  std::string text;
  for (const DeviceId device : ranks) {
    bool first = true;
    for (const Action& action : schedule.devices.at(device.index())) {
      if (once_per_step(action.kind) || action.kind == ActionKind::kRecompute) continue;
      text += (first ? "" : ",") + std::to_string(action.stage().index()) + letter(action.kind) +
              std::to_string(action.micro_batch);
      first = false;
    }
    text += "\n";
  }
  return text;
}

}  // namespace espalier
