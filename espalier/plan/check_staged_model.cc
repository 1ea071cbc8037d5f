// The checker of staged models: what schedules and the simulator rely on. Plan files come from outside, so
// it holds against any values.

#include <algorithm>
#include <iterator>
#include <set>

#include "espalier/plan/staged_model.h"

namespace espalier {
namespace {

// Of one figure, and of all of a step together: whoever adds figures up stays within 63 bits.
constexpr std::int64_t kLimit = std::int64_t{1} << 56;
constexpr double kLimitOfSums = static_cast<double>(std::int64_t{1} << 60);

bool in_range(Duration time) {
  return time >= Duration() && time.count() <= kLimit;
}
bool in_range(Bytes bytes) {
  return bytes >= Bytes() && bytes.count() <= kLimit;
}

class StagedChecker {
 public:
  StagedChecker(const StagedModel& model, const Cluster& cluster) : model_(model), cluster_(cluster) {}

  std::vector<std::string> run() {
    if (model_.stages.empty()) found_.push_back("the model has no stage");
    std::set<std::string> names;
    for (std::size_t x = 0; x < model_.stages.size(); ++x) {
      const StagedStage& stage = model_.stages[x];
      if (stage.name.empty()) found_.push_back("stage " + std::to_string(x) + " has no name");
      if (!stage.name.empty() && !names.insert(stage.name).second) {
        found_.push_back("two stages are called '" + stage.name + "'");
      }
      check_after(x);
      check_shares(x);
      check_devices(x);
      check_figures(x);
    }
    for (std::size_t i = 0; i < model_.crossings.size(); ++i) check_crossing(i);
    for (const Tie& tie : model_.ties) check_tie(tie);
    check_orders();
    if (found_.empty()) check_sums();
    return std::move(found_);
  }

 private:
  void violate(std::size_t x, const std::string& problem) {
    found_.push_back("stage '" + model_.stages[x].name + "': " + problem);
  }

  void check_after(std::size_t x) {
    const std::vector<StageId>& after = model_.stages[x].after;
    if (!ascending(after)) violate(x, "`after` does not ascend, each once");
    for (const StageId before : after) {
      if (before.index() >= x) violate(x, "stands after stage number " + std::to_string(before.index()));
    }
  }

  void check_shares(std::size_t x) {
    const StagedStage& stage = model_.stages[x];
    if (stage.micro_batches < 1) violate(x, "has no micro-batch");
    if (stage.replicas.empty()) violate(x, "has no replica");
    std::set<std::uint32_t> taken;
    std::size_t largest = 0;
    for (const StagedReplica& replica : stage.replicas) {
      largest = std::max(largest, replica.micro_batches.size());
      if (replica.micro_batches.empty()) violate(x, "a replica takes no micro-batch");
      if (!ascending(replica.micro_batches)) violate(x, "a replica's micro-batches do not ascend, each once");
      for (const std::uint32_t j : replica.micro_batches) {
        if (j >= stage.micro_batches)
          violate(x, "takes micro-batch " + std::to_string(j) + ", which does not exist");
        taken.insert(j);
      }
    }
    std::size_t sum = 0;
    for (const StagedReplica& replica : stage.replicas) sum += replica.micro_batches.size();
    if (sum != stage.micro_batches || taken.size() != sum) {
      violate(x, "the replicas' shares are not a partition of its " + std::to_string(stage.micro_batches) +
                     " micro-batches");
    }
    if (stage.in_flight < 1 || stage.in_flight > std::max<std::size_t>(largest, 1)) {
      violate(x, "in-flight limit " + std::to_string(stage.in_flight) + "; expected 1 to " +
                     std::to_string(largest));
    }
    if (stage.slots == 0U) violate(x, "has no receive slot");
  }

  void check_devices(std::size_t x) {
    std::set<DeviceId> used;
    for (const StagedReplica& replica : model_.stages[x].replicas) {
      if (replica.devices.empty()) violate(x, "a replica has no device");
      for (const DeviceId device : replica.devices) {
        if (device.index() >= cluster_.devices().size()) {
          violate(x, "device number " + std::to_string(device.index()) + " does not exist");
        } else if (!used.insert(device).second) {
          violate(x, "device '" + cluster_.device(device).name + "' stands twice");
        }
      }
    }
  }

  void check_figures(std::size_t x) {
    const StagedStage& stage = model_.stages[x];
    for (const StagedReplica& replica : stage.replicas) {
      const StageTimes& t = replica.times;
      const Duration times[] = {t.forward,   t.input_gradient, t.weight_gradient,
                                t.recompute, t.update,         t.overhead};
      if (!std::all_of(std::begin(times), std::end(times), [](Duration d) { return in_range(d); })) {
        violate(x, "a time is outside 0 to 2^56 ns");
      }
    }
    const StageMemory& m = stage.memory;
    const Bytes sizes[] = {m.parameters,
                           m.buffers,
                           m.gradients,
                           m.optimizer_state,
                           m.saved,
                           m.recomputed,
                           m.between_halves,
                           m.forward_workspace,
                           m.backward_workspace,
                           stage.reduced,
                           m.saved_for_input,
                           m.recomputed_for_input,
                           m.update_workspace};
    if (!std::all_of(std::begin(sizes), std::end(sizes), [](Bytes b) { return in_range(b); })) {
      violate(x, "a size is outside 0 to 2^56 bytes");
    } else if (m.saved < m.saved_for_input || m.recomputed < m.recomputed_for_input) {
      violate(x, "more of what it keeps is for I alone than it keeps");
    }
    if (stage.replicas.size() < 2 && stage.reduced != Bytes())
      violate(x, "reduces gradients without replicas");
  }

  void check_crossing(std::size_t i) {
    const Crossing& crossing = model_.crossings[i];
    const auto bad = [&](const std::string& problem) {
      found_.push_back("crossing '" + crossing.tensor + "': " + problem);
    };
    if (crossing.from.index() >= model_.stages.size()) return bad("comes from a stage that does not exist");
    if (crossing.tensor.empty()) bad("has no name");
    if (crossing.readers.empty()) bad("has no reader");
    bool gradient = false;
    for (std::size_t r = 0; r < crossing.readers.size(); ++r) {
      const Crossing::Reader& reader = crossing.readers[r];
      if (r > 0 && !(crossing.readers[r - 1].stage < reader.stage)) bad("readers do not ascend, each once");
      if (reader.stage.index() >= model_.stages.size()) {
        bad("is read by a stage that does not exist");
      } else {
        const std::vector<StageId>& after = model_.stages[reader.stage.index()].after;
        if (!std::binary_search(after.begin(), after.end(), crossing.from)) {
          bad("is read by stage '" + model_.stages[reader.stage.index()].name +
              "', which does not stand after its producer");
        }
        if (!pieces_fit(crossing.from, reader.stage)) bad("its stages' micro-batches do not fit one another");
      }
      if (!in_range(reader.bytes) || !in_range(reader.gradient)) bad("a size is outside 0 to 2^56 bytes");
      if (crossing.token && (reader.bytes != Bytes() || reader.gradient != Bytes() || reader.saved)) {
        bad("is a token with bytes");
      }
      if (reader.for_input_only && !reader.saved) bad("is kept for I alone, but not saved");
      gradient = gradient || reader.gradient != Bytes();
    }
    if (!in_range(crossing.output)) bad("a size is outside 0 to 2^56 bytes");
    if (crossing.token && crossing.output != Bytes()) bad("is a token with bytes");
    if (crossing.for_input_only && !crossing.saved_by_producer) bad("is kept for I alone, but not saved");
    if (!crossing.token && gradient != crossing.returns) {
      bad(gradient ? "has a gradient but does not return" : "returns without a gradient");
    }
    check_position(i, bad);
  }

  // Every action, message and collective of a step one after the other, each message over the slowest links;
  // and all that could be held at once. In floating point: far from the limit it need not be exact.
  void check_sums() {
    double slowest = 0;  // nanoseconds for a byte
    double each = 0;     // of a message, beside its bytes
    for (const Group& group : cluster_.groups()) {
      if (group.bandwidth) slowest = std::max(slowest, 1e9 / static_cast<double>(*group.bandwidth));
      each += number(group.latency) + number(group.send.fixed) + number(group.receive.fixed);
      slowest +=
          static_cast<double>(group.send.picoseconds_per_byte + group.receive.picoseconds_per_byte) / 1e3;
    }
    for (const NamedLink& link : cluster_.links()) {
      slowest = std::max(slowest, 1e9 / static_cast<double>(link.bandwidth));
      each += number(link.latency) + number(link.send.fixed) + number(link.receive.fixed);
      slowest +=
          static_cast<double>(link.send.picoseconds_per_byte + link.receive.picoseconds_per_byte) / 1e3;
    }
    const auto message = [&](double bytes) { return each + 1 + bytes * slowest; };
    double time = 0, held = 0;
    for (const StagedStage& stage : model_.stages) {
      const StageMemory& m = stage.memory;
      for (const StagedReplica& replica : stage.replicas) {
        const StageTimes& t = replica.times;
        time += static_cast<double>(replica.micro_batches.size()) *
                    (number(t.forward) + number(t.backward()) + number(t.overhead) + number(t.recompute)) +
                number(t.update);
        const auto members = static_cast<double>(stage.replicas.size() * replica.devices.size());
        time += 4 * members * message(number(stage.reduced));
        held += number(m.parameters) + number(m.buffers) + number(m.gradients) + number(m.optimizer_state) +
                number(m.forward_workspace) + number(m.backward_workspace) + number(m.update_workspace) +
                3 * number(stage.reduced) +
                stage.in_flight * (number(m.saved) + number(m.recomputed) + number(m.between_halves));
      }
    }
    for (const Crossing& crossing : model_.crossings) {
      const StagedStage& from = model_.stages[crossing.from.index()];
      held += from.micro_batches * number(crossing.output);
      for (const Crossing::Reader& reader : crossing.readers) {
        const double pieces = std::max(from.micro_batches, model_.stages[reader.stage.index()].micro_batches);
        time += pieces * (message(number(reader.bytes)) + message(number(reader.gradient)));
        held += 2 * pieces * (number(reader.bytes) + number(reader.gradient));
      }
    }
    for (const Tie& tie : model_.ties) {
      time += 2 * static_cast<double>(tie.stages.size()) * message(number(tie.bytes));
      held += 3 * number(tie.bytes);
    }
    if (time > kLimitOfSums)
      found_.push_back("all actions and messages of a step together take over 2^60 ns");
    if (held > kLimitOfSums) found_.push_back("all that a step may hold at once is over 2^60 bytes");
  }

  template <class Amount>
  static double number(Amount amount) {
    return static_cast<double>(amount.count());
  }

  // One micro-batch holds a whole number of the other's.
  bool pieces_fit(StageId a, StageId b) const {
    const std::uint32_t m = model_.stages[a.index()].micro_batches;
    const std::uint32_t n = model_.stages[b.index()].micro_batches;
    return m > 0 && n > 0 && (m % n == 0 || n % m == 0);
  }

  template <class Bad>
  void check_position(std::size_t i, const Bad& bad) {
    const Crossing& crossing = model_.crossings[i];
    if (!names_.emplace(crossing.from, crossing.token, crossing.tensor).second) bad("stands twice");
    if (i == 0) return;
    const Crossing& last = model_.crossings[i - 1];
    if (crossing.from < last.from) bad("crossings do not ascend by producer");
    if (crossing.from == last.from && last.token) bad("stands behind the token of its stage");
  }

  // Lists of any length and content are values; check_schedule says what is wrong with them.
  void check_orders() {
    const std::size_t stages = model_.stages.size();
    if (const OrderRule* rule = model_.orders.rule()) {
      if (rule->group.size() > 1 && rule->group.size() != stages) {
        found_.push_back("orders: k is given for " + std::to_string(rule->group.size()) + " stages of " +
                         std::to_string(stages));
      }
      if (std::count(rule->group.begin(), rule->group.end(), 0U) > 0) found_.push_back("orders: k is 0");
      return;
    }
    const OrderLists& lists = *model_.orders.lists();
    if (lists.size() != cluster_.devices().size()) found_.push_back("orders: not one list for each device");
    for (const std::vector<Step>& list : lists) {
      for (const Step& step : list) {
        const bool tie = step.kind == ActionKind::kTieSum;
        if (tie ? step.tie().index() < model_.ties.size() : step.stage().index() < stages) continue;
        return found_.push_back("orders: a list names a stage or tie that does not exist");
      }
    }
  }

  void check_tie(const Tie& tie) {
    const std::string where = "tie '" + tie.parameter + "': ";
    if (!ties_.insert(tie.parameter).second) found_.push_back(where + "stands twice");
    if (tie.stages.size() < 2) found_.push_back(where + "has fewer than two stages");
    if (!ascending(tie.stages)) found_.push_back(where + "stages do not ascend, each once");
    if (!in_range(tie.bytes)) found_.push_back(where + "a size is outside 0 to 2^56 bytes");
    for (const StageId stage : tie.stages) {
      if (stage.index() >= model_.stages.size())
        found_.push_back(where + "names a stage that does not exist");
    }
  }

  template <class T>
  static bool ascending(const std::vector<T>& items) {
    return std::adjacent_find(items.begin(), items.end(), [](const T& a, const T& b) { return !(a < b); }) ==
           items.end();
  }

  const StagedModel& model_;
  const Cluster& cluster_;
  std::vector<std::string> found_;
  std::set<std::tuple<StageId, bool, std::string>> names_;
  std::set<std::string> ties_;
};

}  // namespace

std::vector<std::string> check_staged_model(const StagedModel& model, const Cluster& cluster) {
  return StagedChecker(model, cluster).run();
}

}  // namespace espalier
