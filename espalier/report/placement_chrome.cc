#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "espalier/placement/message_uses.h"
#include "espalier/report/placement_picture.h"
#include "espalier/trace/chrome_text.h"

namespace espalier {
namespace {

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
      metadata("process_name", d, 0, "\"name\": " + chrome_string(device_name(DeviceId(d))));
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
    event("\"ph\": \"X\", \"name\": " + chrome_string(name) + ", \"cat\": \"" + std::string(category) +
          "\", \"pid\": " + std::to_string(pid) + ", \"tid\": " + std::to_string(tid) + ", \"ts\": " +
          chrome_time(from) + ", \"dur\": " + chrome_time(to - from) + ", \"args\": {" + args + "}");
  }

  void task_slice(std::size_t device, placement::TaskId task) {
    const Operator& op = op_of(task);
    const std::string_view direction = direction_of(op, p_.instance.pass[task.index()]);
    const bool second = op.role == OperatorRole::kForward && direction == "backward";
    slice(device, 1, p_.timeline.start[task.index()], p_.timeline.end[task.index()],
          op.name + (second ? " (backward)" : ""), direction,
          "\"module\": " + chrome_string(op.module_path) + ", \"type\": " + chrome_string(op.target));
  }

  // Each way has as many threads as it has messages at once: a message goes to the first that is free.
  // Arrows lead from the operator that sends to the message, and on to the first that reads it there.
  void messages() {
    uses_ = placement::message_uses(p_.instance, p_.assignment, p_.timeline);
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
                 "\"name\": " + chrome_string("to " + device_name(way.second) +
                                              (r == 0 ? "" : " (" + std::to_string(r + 1) + ")")));
        for (const std::size_t m : rows[r]) {
          message_slice(tid, m);
          flow(tid, m);
        }
      }
    }
  }

  void message_slice(std::size_t tid, std::size_t m) {
    const placement::Timeline::Message& message = p_.timeline.messages[m];
    const std::string& sender = op_of(p_.instance.producer[message.value.index()]).name;
    slice(message.from.index(), tid, message.start, message.arrival, "of " + sender, "message",
          "\"to\": " + chrome_string(device_name(message.to)) +
              ", \"bytes\": " + std::to_string(p_.instance.bytes[message.value.index()].count()) +
              ", \"device_waited_us\": " + chrome_time(uses_[m].waited));
  }

  // A point for each slice that an arrow touches, at its start; slices without length have none.
  void flow(std::size_t tid, std::size_t m) {
    const placement::Timeline::Message& message = p_.timeline.messages[m];
    struct Point {
      DeviceId device;
      std::size_t tid = 0;
      Duration start;
    };
    std::vector<Point> points;
    const auto add = [&points](const Point& point, Duration end) {
      if (end > point.start) points.push_back(point);
    };
    const std::size_t producer = p_.instance.producer[message.value.index()].index();
    const std::size_t reader = uses_[m].reader.index();
    add({message.from, 1, p_.timeline.start[producer]}, p_.timeline.end[producer]);
    add({message.from, tid, message.start}, message.arrival);
    add({message.to, 1, p_.timeline.start[reader]}, p_.timeline.end[reader]);
    if (points.size() < 2) return;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const char* kind = i == 0 ? "\"s\"" : i + 1 < points.size() ? "\"t\"" : "\"f\", \"bp\": \"e\"";
      event(
          std::string("\"ph\": ") + kind + ", \"id\": " + std::to_string(m) +
          ", \"name\": \"message\", \"cat\": \"flow\", \"pid\": " + std::to_string(points[i].device.index()) +
          ", \"tid\": " + std::to_string(points[i].tid) + ", \"ts\": " + chrome_time(points[i].start));
    }
  }

  void counters() {
    const auto curves = placement::held_over_time(p_.instance, p_.rules, p_.assignment, p_.timeline);
    for (std::size_t d = 0; d < curves.size(); ++d) {
      for (const placement::HeldFrom& point : curves[d]) {
        event("\"ph\": \"C\", \"name\": \"memory\", \"pid\": " + std::to_string(d) + ", \"ts\": " +
              chrome_time(point.time) + ", \"args\": {\"held\": " + std::to_string(point.held.count()) + "}");
      }
    }
  }

  const PlacementPicture& p_;
  std::vector<placement::MessageUse> uses_;  // by message
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string chrome_placement(const PlacementPicture& picture) {
  return PlacementChrome(picture).run();
}

}  // namespace espalier
