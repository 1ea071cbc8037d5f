#include <algorithm>
#include <map>

#include "espalier/base/json.h"
#include "espalier/report/placement_picture.h"

namespace espalier {
namespace {

std::string json_string(std::string_view words) {
  return Json(words).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string microsecond_text(Duration time) {
  const std::string decimals = std::to_string(time.count() % 1000);
  return std::to_string(time.count() / 1000) + "." + std::string(3 - decimals.size(), '0') + decimals;
}

std::string_view direction_of(const Operator& op, placement::Pass pass) {
  if (op.role == OperatorRole::kUpdate) return "update";
  return op.role == OperatorRole::kBackward || pass == placement::Pass::kBackward ? "backward" : "forward";
}

class PlacementChrome {
 public:
  explicit PlacementChrome(const PlacementPicture& picture) : p_(picture) {}

  std::string run() {
    out_ = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
    for (std::size_t d = 0; d < p_.instance.devices(); ++d) {
      metadata("process_name", d, 0, "\"name\": " + json_string(device_name(DeviceId(d))));
      metadata("process_sort_index", d, 0, "\"sort_index\": " + std::to_string(d));
      metadata("thread_name", d, 1, "\"name\": \"operators\"");
      for (const placement::TaskId task : p_.timeline.lists[d]) task_slice(d, task);
    }
    messages();
    counters();
    return out_ + "\n]}\n";
  }

 private:
  const std::string& device_name(DeviceId device) const { return p_.cluster.device(device).name; }
  const Operator& op_of(placement::TaskId task) const { return p_.graph.op(p_.instance.op[task.index()]); }

  void event(const std::string& fields) {
    out_ += first_ ? "\n{" : ",\n{";
    first_ = false;
    out_ += fields;
    out_ += '}';
  }
  void metadata(const char* name, std::size_t pid, std::size_t tid, const std::string& args) {
    event(std::string("\"ph\": \"M\", \"name\": \"") + name + "\", \"pid\": " + std::to_string(pid) +
          (tid == 0 ? "" : ", \"tid\": " + std::to_string(tid)) + ", \"args\": {" + args + "}");
  }
  void slice(std::size_t pid, std::size_t tid, Duration from, Duration to, const std::string& name,
             std::string_view category, const std::string& args) {
    event("\"ph\": \"X\", \"name\": " + json_string(name) + ", \"cat\": \"" + std::string(category) +
          "\", \"pid\": " + std::to_string(pid) + ", \"tid\": " + std::to_string(tid) +
          ", \"ts\": " + microsecond_text(from) + ", \"dur\": " + microsecond_text(to - from) +
          ", \"args\": {" + args + "}");
  }

  void task_slice(std::size_t device, placement::TaskId task) {
    const Operator& op = op_of(task);
    const std::string_view direction = direction_of(op, p_.instance.pass[task.index()]);
    const bool second = op.role == OperatorRole::kForward && direction == "backward";
    slice(device, 1, p_.timeline.start[task.index()], p_.timeline.end[task.index()],
          op.name + (second ? " (backward)" : ""), direction,
          "\"module\": " + json_string(op.module_path) + ", \"type\": " + json_string(op.target));
  }

  // Each way has as many threads as it has messages at once: a message goes to the first that is free.
  void messages() {
    std::map<std::pair<DeviceId, DeviceId>, std::vector<std::vector<std::size_t>>> ways;
    const std::vector<placement::Timeline::Message>& all = p_.timeline.messages;
    for (std::size_t m = 0; m < all.size(); ++m) {
      auto& rows = ways[{all[m].from, all[m].to}];
      const auto free = std::find_if(rows.begin(), rows.end(), [&](const std::vector<std::size_t>& row) {
        return all[row.back()].arrival <= all[m].start;
      });
      if (free == rows.end()) {
        rows.push_back({m});
      } else {
        free->push_back(m);
      }
    }
    std::vector<std::size_t> threads(p_.instance.devices(), 1);
    for (const auto& [way, rows] : ways) {
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const std::size_t from = way.first.index(), tid = ++threads[from];
        metadata("thread_name", from, tid,
                 "\"name\": " + json_string("to " + device_name(way.second) +
                                            (r == 0 ? "" : " (" + std::to_string(r + 1) + ")")));
        for (const std::size_t m : rows[r]) message_slice(tid, all[m]);
      }
    }
  }

  void message_slice(std::size_t tid, const placement::Timeline::Message& message) {
    const std::string& sender = op_of(p_.instance.producer[message.value.index()]).name;
    slice(message.from.index(), tid, message.start, message.arrival, "of " + sender, "message",
          "\"to\": " + json_string(device_name(message.to)) +
              ", \"bytes\": " + std::to_string(p_.instance.bytes[message.value.index()].count()));
  }

  void counters() {
    const auto curves = placement::held_over_time(p_.instance, p_.rules, p_.assignment, p_.timeline);
    for (std::size_t d = 0; d < curves.size(); ++d) {
      for (const placement::HeldFrom& point : curves[d]) {
        event("\"ph\": \"C\", \"name\": \"memory\", \"pid\": " + std::to_string(d) +
              ", \"ts\": " + microsecond_text(point.time) +
              ", \"args\": {\"held\": " + std::to_string(point.held.count()) + "}");
      }
    }
  }

  const PlacementPicture& p_;
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string chrome_placement(const PlacementPicture& picture) {
  return PlacementChrome(picture).run();
}

}  // namespace espalier
