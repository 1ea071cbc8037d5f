#include <algorithm>
#include <set>
#include <string>

#include "espalier/placement/instance.h"

namespace espalier::placement {
namespace {

class InstanceChecker {
 public:
  explicit InstanceChecker(const Instance& instance) : i_(instance) {}

  std::vector<std::string> run() {
    shape();
    if (!found_.empty()) return std::move(found_);
    lists();
    if (!found_.empty()) return std::move(found_);
    values();
    units();
    sizes();
    return std::move(found_);
  }

 private:
  void violate(const std::string& text) { found_.push_back(text); }
  static std::string number(const char* what, std::size_t i) {
    return what + std::string(" ") + std::to_string(i);
  }

  void size(const char* what, std::size_t is, std::size_t expected) {
    if (is == expected) return;
    violate(std::string("shape: ") + what + " has " + std::to_string(is) + " entries, expected " +
            std::to_string(expected));
  }
  template <class T>
  void divides(const char* what, const Lists<T>& list, std::size_t parts) {
    size(what, list.size(), parts);
    if (list.begin.front() != 0 || list.begin.back() != list.items.size() ||
        !std::is_sorted(list.begin.begin(), list.begin.end())) {
      violate(std::string("shape: the offsets of ") + what + " do not divide its entries");
    }
  }

  void shape() {
    const std::size_t tasks = i_.tasks(), values = i_.values();
    size("op", i_.op.size(), tasks);
    size("pass", i_.pass.size(), tasks);
    size("time", i_.time.size(), tasks * i_.kinds);
    size("workspace", i_.workspace.size(), tasks);
    size("bytes", i_.bytes.size(), values);
    if (!i_.own_bytes.empty()) size("own_bytes", i_.own_bytes.size(), values);
    if (!i_.within.empty()) size("within", i_.within.size(), values);
    if (!i_.here_only.empty()) size("here_only", i_.here_only.size(), values);
    size("memory", i_.memory.size(), i_.devices());
    size("ways", i_.ways.size(), i_.devices() * i_.devices());
    if (i_.devices() == 0 || i_.kinds == 0) return violate("shape: there is a device, and a kind");
    size("duplicate_time", i_.duplicate_time.size() % i_.kinds, 0);
    divides("produces", i_.produces, tasks);
    divides("reads", i_.reads, tasks);
    divides("duplicates", i_.duplicates, tasks);
    divides("readers", i_.readers, values);
    divides("resident", i_.resident, i_.units());
    divides("allowed", i_.allowed, i_.units());
    divides("tasks_of", i_.tasks_of, i_.tasks_of.size());
    size("trained_bytes", i_.trained_bytes.size(), i_.trained.size());
    size("update_time", i_.update_time.size(), i_.trained.size() * i_.kinds);
    if (!i_.trained.empty()) size("update_fixed", i_.update_fixed.size(), i_.kinds);
  }

  template <class T, class Index>
  void ascends(const char* what, const Lists<T>& list, std::size_t bound, Index index) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto entries = list[i];
      for (std::size_t k = 0; k < entries.size(); ++k) {
        if (index(entries[k]) >= bound || (k > 0 && index(entries[k]) <= index(entries[k - 1]))) {
          violate("list: " + number(what, i) + " does not ascend, or names what is not there");
          break;
        }
      }
    }
  }

  void lists() {
    const auto id = [](auto entry) { return entry.index(); };
    const auto plain = [](std::uint32_t entry) { return std::size_t{entry}; };
    ascends("produces of task", i_.produces, i_.values(), id);
    ascends("reads of task", i_.reads, i_.values(), id);
    ascends("duplicates of task", i_.duplicates, i_.duplicate_time.size() / i_.kinds, plain);
    ascends("readers of value", i_.readers, i_.tasks(), id);
    ascends("tasks of unit", i_.tasks_of, i_.tasks(), id);
    ascends("residents of unit", i_.resident, i_.resident_bytes.size(), plain);
    ascends("devices of unit", i_.allowed, i_.devices(), id);
    for (std::size_t p = 0; p < i_.trained.size(); ++p) {
      if (i_.trained[p] >= i_.resident_bytes.size() || (p > 0 && i_.trained[p] <= i_.trained[p - 1])) {
        violate("list: " + number("trained", p) + " does not ascend, or names what is not there");
      }
    }
    for (const UnitId unit : i_.unit) {
      if (unit.index() >= i_.units()) violate("list: there is no " + number("unit", unit.index()));
    }
    for (const KindId kind : i_.kind) {
      if (kind.index() >= i_.kinds) violate("list: there is no " + number("kind", kind.index()));
    }
    for (const TaskId task : i_.producer) {
      if (task.index() >= i_.tasks()) violate("list: there is no " + number("task", task.index()));
    }
    for (const Route& way : i_.ways) {
      std::set<LinkIndex> links(way.links.begin(), way.links.end());
      if (links.size() != way.links.size() || (!links.empty() && *links.rbegin() >= i_.links)) {
        violate("list: a way holds a link twice, or one that is not there");
      }
    }
  }

  void values() {
    std::set<std::pair<std::size_t, std::size_t>> read, readers;
    for (std::size_t task = 0; task < i_.tasks(); ++task) {
      for (const ValueId value : i_.reads[task]) read.emplace(value.index(), task);
      for (const ValueId value : i_.produces[task]) {
        if (i_.producer[value.index()] != TaskId(task)) {
          violate("value: " + number("task", task) + " is not the producer of " +
                  number("value", value.index()));
        }
      }
    }
    for (std::size_t v = 0; v < i_.values(); ++v) {
      const auto made = i_.produces[i_.producer[v].index()];
      if (!std::binary_search(made.begin(), made.end(), ValueId(v))) {
        violate("value: " + number("value", v) + " is not among what its producer gives");
      }
      for (const TaskId reader : i_.readers[v]) {
        readers.emplace(v, reader.index());
        if (reader <= i_.producer[v]) violate("value: " + number("value", v) + " is read before it is there");
      }
      if (!i_.here_only.empty() && i_.here_only[v] != 0 && i_.bytes[v] != Bytes()) {
        violate("value: " + number("value", v) + " holds on one device alone, but has bytes");
      }
      within(ValueId(v));
    }
    if (read != readers) violate("value: `reads` and `readers` differ");
  }

  void within(ValueId value) {
    if (i_.within.empty() || i_.within[value.index()] == value) return;
    const ValueId outer = i_.within[value.index()];
    const TaskId task = i_.producer[value.index()];
    const bool smaller = outer < value;
    const auto reads = i_.reads[task.index()];
    const bool known = smaller && (i_.producer[outer.index()] == task ||
                                   std::binary_search(reads.begin(), reads.end(), outer));
    if (!known) {
      violate("value: " + number("value", value.index()) +
              " shares memory with one that its producer does not have");
    }
  }

  void units() {
    std::vector<int> stands(i_.tasks(), 0);
    for (std::size_t unit = 0; unit < i_.units(); ++unit) {
      if (i_.tasks_of[unit].empty()) violate("unit: " + number("unit", unit) + " has no task");
      if (i_.allowed[unit].empty()) violate("unit: " + number("unit", unit) + " stands on no device");
      for (const TaskId task : i_.tasks_of[unit]) {
        ++stands[task.index()];
        if (i_.unit[task.index()] != UnitId(unit)) {
          violate("unit: " + number("task", task.index()) + " says another unit than that which lists it");
        }
      }
    }
    for (std::size_t task = 0; task < stands.size(); ++task) {
      if (stands[task] != 1) violate("unit: " + number("task", task) + " is in no unit, or in several");
    }
  }

  template <class T>
  void sums(const char* what, const std::vector<T>& all) {
    T sum;
    for (const T& one : all) {
      if (one < T() || one.count() > (std::int64_t{1} << 62) - sum.count()) {
        return violate(std::string("size: ") + what + " are negative, or more than 2^62 together");
      }
      sum += one;
    }
  }

  void sizes() {
    sums("times", i_.time);
    sums("times of copies", i_.duplicate_time);
    sums("workspaces", i_.workspace);
    sums("bytes", i_.bytes);
    sums("own bytes", i_.own_bytes);
    sums("residents", i_.resident_bytes);
    sums("gradients", i_.trained_bytes);
    sums("updates", i_.update_time);
    sums("fixed times of updates", i_.update_fixed);
    for (const Route& way : i_.ways) {
      if (way.latency < Duration() || (way.bandwidth && *way.bandwidth <= 0)) {
        violate("size: a way has a negative latency, or no bandwidth");
      }
    }
  }

  const Instance& i_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> check_instance(const Instance& instance) {
  return InstanceChecker(instance).run();
}

}  // namespace espalier::placement
