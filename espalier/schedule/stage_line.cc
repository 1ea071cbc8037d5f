#include "espalier/schedule/stage_line.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/schedule/schedule.h"

namespace espalier {

namespace {

std::string not_a_chain(const StagedModel& model) {
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const StagedStage& stage = model.stages[s];
    if (stage.replicas.size() != 1 || stage.replicas.front().devices.size() != 1) {
      return "stage '" + stage.name + "' stands on several devices; it is made for stages of one device each";
    }
    if (stage.micro_batches != model.stages.front().micro_batches) {
      return "stage '" + stage.name + "' has another micro-batch than '" + model.stages.front().name +
             "'; it is made for micro-batches of one size";
    }
    const std::vector<StageId>& after = stage.after;
    if (s > 0 && std::find(after.begin(), after.end(), StageId(s - 1)) == after.end()) {
      return "stage '" + stage.name + "' does not follow '" + model.stages[s - 1].name +
             "'; it is made for a chain of stages";
    }
  }
  return model.stages.empty() ? "there are no stages" : "";
}

}  // namespace

FoundLine find_line(const StagedModel& model, StageLine::Layout layout) {
  if (std::string why = not_a_chain(model); !why.empty()) return {{}, std::move(why)};
  StageLine line{.layout = layout, .micro_batches = model.stages.front().micro_batches};
  const auto device_of = [&](std::size_t s) { return model.stages[s].replicas.front().devices.front(); };
  std::size_t places = 0;
  for (; places < model.stages.size(); ++places) {
    const DeviceId device = device_of(places);
    if (std::find(line.devices.begin(), line.devices.end(), device) != line.devices.end()) break;
    line.devices.push_back(device);
  }
  line.chunks = model.stages.size() / places;
  const char* const shape = layout == StageLine::Layout::kV ? "a V" : "a loop";
  const std::string expected = std::string("; it is made for stages that are laid in ") + shape +
                               " over the devices (planner 'looped' makes such plans)";
  if (model.stages.size() % places != 0) {
    return {
        {},
        std::to_string(model.stages.size()) + " stages on " + std::to_string(places) + " devices" + expected};
  }
  for (std::size_t place = 0; place < places; ++place) {
    for (std::size_t chunk = 0; chunk < line.chunks; ++chunk) {
      const StageId stage = line.stage(place, chunk);
      if (device_of(stage.index()) == line.devices[place]) continue;
      return {{}, "stage '" + model.stages[stage.index()].name + "' stands on another device" + expected};
    }
  }
  return {std::move(line), ""};
}

FoundLine find_line(const StagedModel& model, StageLine::Layout layout, std::size_t chunks) {
  FoundLine found = find_line(model, layout);
  if (!found.line || found.line->chunks == chunks) return found;
  const std::string stages = std::to_string(found.line->chunks);
  return {{},
          "each device has " + stages + (found.line->chunks == 1 ? " stage" : " stages") +
              "; it is made for " + std::to_string(chunks) +
              (chunks == 1 ? "" : " (planner 'looped' makes such plans)")};
}

void add_pass(ActionKind pass, StageId stage, bool in_halves, std::vector<Step>& list) {
  if (!in_halves && pass == ActionKind::kWeightGradient) return;
  const bool whole = !in_halves && pass == ActionKind::kInputGradient;
  list.emplace_back(whole ? ActionKind::kBackward : pass, stage);
}

OrderLists lists_on_devices(const StageLine& line, const StagedModel& model, std::size_t devices,
                            const LineOrder& order) {
  OrderLists lists(devices);
  for (std::size_t place = 0; place < line.places(); ++place) {
    std::vector<Step>& list = lists.at(line.devices[place].index());
    for (const LineStep& step : order[place]) {
      const StageId stage = line.stage(place, step.chunk);
      add_pass(step.kind, stage, can_split(model.stages[stage.index()]), list);
    }
  }
  return lists;
}

}  // namespace espalier
