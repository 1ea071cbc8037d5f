#include "espalier/schedule/order_file.h"

#include <algorithm>
#include <numeric>

#include "espalier/base/hash.h"
#include "espalier/base/json.h"
#include "espalier/base/words.h"
#include "espalier/plan/fragments.h"
#include "espalier/schedule/json.h"

namespace espalier {
namespace {

// "F0", "img:B3"; not "T0" and not "3F".
bool has_micro_batch(const Word& word) {
  const std::string_view text = std::string_view(word.text).substr(word.text.rfind(':') + 1);
  return !word.quoted && text.size() > 1 &&
         std::string_view("FBIWR").find(text[0]) != std::string_view::npos &&
         text.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

// Numbers are implied, so lists stand for a schedule only if these are the implied ones.
OrderLists without_numbers(const StagedModel& model, const Cluster& cluster, const Schedule& schedule) {
  OrderLists lists = lists_of(model, schedule);
  const Schedule again = make_schedule(with_orders(model, Orders(lists)), cluster.devices().size());
  if (again == schedule) return lists;
  const std::vector<std::string> problems = check_schedule(model, schedule);
  throw InputError(problems.empty() ? "its messages are not in the order of their producers"
                                    : problems.front());
}

Orders parse(std::string_view text, const std::string& where, const StagedModel& model,
             const Cluster& cluster) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') {
    return Orders(
        without_numbers(model, cluster, schedule_from_json(parse_json(text, where), where, model, cluster)));
  }
  const auto lines = split_lines(text);
  if (lines.empty()) throw InputError("is empty; expected a rule such as 1f1b or a list for each device");
  const std::vector<Word>& head = lines.front().second;
  if (lines.size() == 1 && head.size() == 1 && !cluster.find_device(head.front().text)) {
    return parse_order_rule(head.front().text);
  }
  for (const auto& [number, words] : lines) {
    if (std::any_of(words.begin() + 1, words.end(), has_micro_batch)) {
      return Orders(without_numbers(model, cluster, parse_schedule(text, model, cluster)));
    }
  }
  return Orders(parse_order_lists(text, order_names(model, cluster)));
}

}  // namespace

Schedule schedule_of(const PlanFile& file, const std::string& where) {
  Schedule schedule = make_schedule(file.staged, file.cluster.devices.size());
  if (file.expansion && file.staged.orders.rule() && *file.expansion != schedule_hash(schedule)) {
    throw InputError(where + ": its rule '" + to_text(file.staged.orders) + "' stands for schedule " +
                     hex_text(schedule_hash(schedule)) + ", not " + hex_text(*file.expansion) +
                     " as when the plan was made; plan again");
  }
  std::vector<std::string> problems;
  if (file.placement) problems = check_fragment_orders(file.staged, Cluster(file.cluster));
  if (problems.empty()) problems = check_schedule(file.staged, schedule);
  if (!problems.empty()) throw InputError(where + ": the plan has no legal order: " + problems.front());
  return schedule;
}

Orders parse_order_file(std::string_view text, const std::string& where, const StagedModel& model,
                        const Cluster& cluster) {
  try {
    return parse(text, where, model, cluster);
  } catch (const InputError& error) {
    const std::string what = error.what();
    throw InputError(what.rfind(where + ":", 0) == 0 ? what : where + ": " + what);
  }
}

StagedModel with_orders(StagedModel model, Orders orders) {
  PipelinePlan plan;  // as much of it as limits need
  std::int64_t batch = 1;
  for (const StagedStage& stage : model.stages) batch = std::lcm(batch, std::int64_t{stage.micro_batches});
  plan.batch = BatchSize(batch);
  plan.orders = orders;
  for (const StagedStage& staged : model.stages) {
    Stage stage;
    stage.after = staged.after;
    stage.micro_batch = BatchSize(batch / staged.micro_batches);
    for (const StagedReplica& replica : staged.replicas) {
      stage.replicas.push_back({replica.devices, replica.micro_batches});
    }
    plan.stages.push_back(std::move(stage));
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < limits.size(); ++s) model.stages[s].in_flight = limits[s];
  model.orders = std::move(orders);
  return model;
}

}  // namespace espalier
