#pragma once

// Shapes of the literature's models, by name and at any size: what there is to plan without a file. A new
// model is one entry in zoo.cc.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

struct ZooSetting {
  std::string name;  // "layers"
  std::string what;  // one line
  std::int64_t usual = 1;
  std::int64_t least = 1;
  std::int64_t most = 1;
};

using ZooValues = std::map<std::string, std::int64_t, std::less<>>;  // by the name of a setting

struct ZooModel {
  std::string name;
  std::string source;  // the paper that describes or uses it
  std::string what;    // one line
  std::vector<ZooSetting> settings;
  std::function<Graph(const ZooValues& all)> build;  // with a value for every setting
};

const std::vector<ZooModel>& zoo_models();

// Throws InputError with the nearest name.
const ZooModel& find_zoo_model(std::string_view name);

// A value for every setting: the given one, or the usual. Throws InputError for a setting that `name` does
// not have, or a value out of its range.
ZooValues all_values(std::string_view name, const std::vector<ZooSetting>& settings, const ZooValues& given);

// What is not given has its usual value. Throws InputError as all_values does.
Graph build_zoo_model(std::string_view name, const ZooValues& given = {});

}  // namespace espalier
