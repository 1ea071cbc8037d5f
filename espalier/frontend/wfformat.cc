// A workflow of WfCommons (Coleman et al., FGCS 2022) in WfFormat 1.5 or 1.6, as it was run once:
//
//   workflow.specification.tasks[]   id, name, parents[], children[], inputFiles[], outputFiles[]
//   workflow.specification.files[]   id, sizeInBytes
//   workflow.execution.tasks[]       id, runtimeInSeconds
//
// - An edge is what `parents` of the one or `children` of the other says. It carries the files that the one
//   writes and the other reads; edges of one task with equal bytes carry one tensor.
// - Files that no task writes are inputs and are not moved. Machines, cores and energy are not looked at:
//   every device takes the time that was measured.

#include <algorithm>
#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/profile.h"

namespace espalier {
namespace {

constexpr double kMostTaskSeconds = 17'000;  // what a cost cell holds

class WfReader {
 public:
  WfReader(const JsonCursor& root, const std::string& file) : root_(root) {
    profile_.file = file;
    profile_.name = file_stem(file);
  }

  Profile read() {
    const JsonCursor workflow = root_.at("workflow");
    if (!workflow.has("specification")) {
      workflow.fail(
          "has no \"specification\"; expected WfFormat 1.5 or 1.6 (WfCommons converts older files)");
    }
    const JsonCursor specification = workflow.at("specification");
    read_files(specification);
    const JsonCursor tasks = specification.at("tasks");
    for (std::size_t i = 0; i < tasks.size(); ++i) add_task(tasks.at(i));
    for (std::size_t i = 0; i < tasks.size(); ++i) read_relations(tasks.at(i), i);
    if (!workflow.has("execution")) {
      workflow.fail(
          "has no \"execution\"; expected an instance that was run, with a runtimeInSeconds for each task");
    }
    read_times(workflow.at("execution").at("tasks"));
    for (const auto& [from, to] : edges_) profile_.edges.push_back({from, to, passed(from, to)});
    return std::move(profile_);
  }

 private:
  void read_files(const JsonCursor& specification) {
    if (!specification.has("files")) return;
    const JsonCursor files = specification.at("files");
    for (std::size_t i = 0; i < files.size(); ++i) {
      const JsonCursor in = files.at(i);
      const Bytes size(static_cast<std::int64_t>(in.at("sizeInBytes").number(0, kMostProfiledBytes)));
      if (!size_.emplace(in.at("id").string(), size).second) in.at("id").fail("is that of another file, too");
    }
  }

  void add_task(const JsonCursor& in) {
    const std::string id = in.at("id").string();
    if (id.empty()) in.at("id").fail("is empty");
    if (!task_.emplace(id, profile_.nodes.size()).second) in.at("id").fail("is that of another task, too");
    ProfileNode node;
    node.name = one_line(id);
    std::replace(node.name.begin(), node.name.end(), ' ', '_');
    node.target = in.has("name") ? one_line(in.at("name").string()) : node.name;
    profile_.nodes.push_back(std::move(node));
    writes_.push_back(file_names(in, "outputFiles"));
    reads_.push_back(file_names(in, "inputFiles"));
  }

  std::set<std::string> file_names(const JsonCursor& in, const char* key) const {
    std::set<std::string> names;
    if (!in.has(key)) return names;
    for (std::size_t i = 0; i < in.at(key).size(); ++i) {
      const JsonCursor name = in.at(key).at(i);
      if (!size_.contains(name.string())) name.fail("is not the id of a file");
      names.insert(name.string());
    }
    return names;
  }

  std::size_t task(const JsonCursor& id) const {
    const auto found = task_.find(id.string());
    if (found == task_.end()) id.fail("is not the id of a task");
    return found->second;
  }

  void read_relations(const JsonCursor& in, std::size_t at) {
    if (in.has("parents")) {
      for (std::size_t i = 0; i < in.at("parents").size(); ++i)
        edges_.emplace(task(in.at("parents").at(i)), at);
    }
    if (in.has("children")) {
      for (std::size_t i = 0; i < in.at("children").size(); ++i)
        edges_.emplace(at, task(in.at("children").at(i)));
    }
  }

  void read_times(const JsonCursor& tasks) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const JsonCursor in = tasks.at(i);
      ProfileNode& node = profile_.nodes[task(in.at("id"))];
      if (!node.costs.empty()) in.at("id").fail("is that of another task, too");
      const double seconds = in.at("runtimeInSeconds").number(0, kMostTaskSeconds);
      node.costs.push_back(task_time(round_duration(seconds * 1e9)));
    }
    for (const ProfileNode& node : profile_.nodes) {
      if (node.costs.empty())
        tasks.fail("has no time of task " + quote(node.name) + "; expected a runtimeInSeconds for each task");
    }
  }

  Bytes passed(std::size_t from, std::size_t to) const {
    Bytes sum;
    for (const std::string& file : writes_[from]) {
      if (reads_[to].contains(file)) sum += size_.at(file);
    }
    return sum;
  }

  const JsonCursor& root_;
  Profile profile_;
  std::map<std::string, Bytes> size_;
  std::map<std::string, std::size_t> task_;
  std::vector<std::set<std::string>> writes_, reads_;
  std::set<std::pair<std::size_t, std::size_t>> edges_;
};

}  // namespace

Imported import_wfformat(std::string_view text, const std::string& name, const ImportOptions&) {
  const Json json = parse_json(text, name);
  const JsonCursor root(json, name);
  return task_graph_of(WfReader(root, name).read(), false);
}

}  // namespace espalier
