#pragma once

// Families of task graphs by name, each with the devices that it is usually placed on. A new family is one
// entry in task_families.cc.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/frontend/imported.h"
#include "espalier/zoo/zoo.h"

namespace espalier {

struct TaskFamily {
  std::string name;
  std::string source;
  std::string what;  // one line
  std::vector<ZooSetting> settings;
  std::function<Imported(const ZooValues& all)> build;  // graph, costs and cluster
};

const std::vector<TaskFamily>& task_families();

// Null if there is no such family.
const TaskFamily* find_task_family(std::string_view name);

// What is not given has its usual value. Throws InputError as build_zoo_model does.
Imported build_task_family(const TaskFamily& family, const ZooValues& given = {});

}  // namespace espalier
