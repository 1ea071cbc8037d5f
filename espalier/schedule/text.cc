#include <algorithm>
#include <charconv>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/schedule/names.h"
#include "espalier/schedule/schedule.h"

namespace espalier {
namespace {

constexpr std::string_view kLetters = "FBIWRATU";

[[noreturn]] void fail(const std::string& where, const std::string& problem) {
  throw InputError(where + ": " + problem);
}

std::vector<std::string_view> words(std::string_view line) {
  std::vector<std::string_view> result;
  std::size_t at = 0;
  while ((at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos) {
    const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    result.push_back(line.substr(at, end - at));
    at = end;
  }
  return result;
}

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

StageId stage_named(std::string_view name, const StagedModel& model) {
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    if (model.stages[s].name == name) return StageId(s);
  }
  throw InputError("stage '" + std::string(name) + "' is not in the plan");
}

}  // namespace

std::string action_name(const StagedModel& model, const Action& action, StageName with) {
  std::string text(1, letter(action.kind));
  if (action.kind == ActionKind::kTieSum) return text + std::to_string(action.tie().index());
  if (!once_per_step(action.kind) || action.micro_batch != 0) text += std::to_string(action.micro_batch);
  if (with == StageName::kLeftOut) return text;
  const std::size_t stage = action.stage().index();
  return (stage < model.stages.size() ? model.stages[stage].name : "#" + std::to_string(stage)) + ":" + text;
}

Action parse_action(std::string_view text, const StagedModel& model, std::optional<StageId> only_stage) {
  const std::size_t colon = text.rfind(':');
  const std::string_view rest = colon == std::string_view::npos ? text : text.substr(colon + 1);
  const std::size_t kind = rest.empty() ? std::string_view::npos : kLetters.find(rest.front());
  if (kind == std::string_view::npos) {
    throw InputError("'" + std::string(text) + "' is not an action; expected such as F0, img:B3, A, T0 or U");
  }
  const bool tie = static_cast<ActionKind>(kind) == ActionKind::kTieSum;
  const bool once = once_per_step(static_cast<ActionKind>(kind)) && !tie;
  const auto index = rest.size() == 1 && once ? std::optional<std::uint32_t>(0) : number(rest.substr(1));
  if (!index) {
    throw InputError("'" + std::string(text) + "' has no " + (tie ? "tie" : "micro-batch") +
                     "; expected a number after " + rest.front());
  }
  if (tie) {
    if (*index >= model.ties.size())
      throw InputError("'" + std::string(text) + "': there is no tie " + std::to_string(*index));
    return Action(TieId(*index));
  }
  if (colon == std::string_view::npos && !only_stage) {
    throw InputError("'" + std::string(text) + "' names no stage; expected 'stage:" + std::string(rest) +
                     "', because this device has not exactly one stage");
  }
  const StageId stage =
      colon == std::string_view::npos ? *only_stage : stage_named(text.substr(0, colon), model);
  return {static_cast<ActionKind>(kind), stage, *index};
}

std::vector<std::optional<StageId>> only_stages(const StagedModel& model, std::size_t devices) {
  std::vector<std::optional<StageId>> only(devices);
  std::vector<bool> several(devices, false);
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    for (const StagedReplica& replica : model.stages[s].replicas) {
      for (const DeviceId device : replica.devices) {
        if (device.index() >= devices) continue;
        std::optional<StageId>& mine = only[device.index()];
        if (mine && *mine != StageId(s)) several[device.index()] = true;
        mine = StageId(s);
      }
    }
  }
  for (std::size_t d = 0; d < devices; ++d) {
    if (several[d]) only[d].reset();
  }
  return only;
}

std::string print_schedule(const StagedModel& model, const Cluster& cluster, const Schedule& schedule) {
  const auto only = only_stages(model, schedule.devices.size());
  std::size_t width = 0;
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    if (!schedule.devices[d].empty()) width = std::max(width, cluster.device(DeviceId(d)).name.size());
  }
  std::string out;
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    if (schedule.devices[d].empty()) continue;
    std::string line = cluster.device(DeviceId(d)).name;
    line.resize(width + 1, ' ');
    for (const Action& action : schedule.devices[d]) {
      const bool plain = only[d] && action.is_of(*only[d]);
      line += ' ' + action_name(model, action, plain ? StageName::kLeftOut : StageName::kShown);
    }
    out += line + '\n';
  }
  return out;
}

Schedule parse_schedule(std::string_view text, const StagedModel& model, const Cluster& cluster) {
  const auto only = only_stages(model, cluster.devices().size());
  std::vector<std::vector<Action>> devices(cluster.devices().size());
  std::vector<bool> seen(devices.size(), false);
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto parts = words(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (parts.empty()) continue;
    const std::string where = "line " + std::to_string(number);
    const auto device = cluster.find_device(parts.front());
    if (!device) fail(where, "device '" + std::string(parts.front()) + "' is not in the cluster");
    if (seen[device->index()]) fail(where, "device '" + std::string(parts.front()) + "' stands here twice");
    seen[device->index()] = true;
    try {
      for (std::size_t i = 1; i < parts.size(); ++i) {
        devices[device->index()].push_back(parse_action(parts[i], model, only[device->index()]));
      }
    } catch (const InputError& error) {
      fail(where, error.what());
    }
  }
  return with_channels(model, std::move(devices));
}

}  // namespace espalier
