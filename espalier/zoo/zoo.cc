#include "espalier/zoo/zoo.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/zoo/gnmt.h"
#include "espalier/zoo/multi_modal_transformer.h"

namespace espalier {

const std::vector<ZooModel>& zoo_models() {
  constexpr std::int64_t kWidest = 1 << 20;
  static const std::vector<ZooModel> kModels{
      {"mmt",
       "GraphPipe, arXiv 2406.17145, A.2",
       "Multi-Modal Transformer: branches of Transformer layers, joined at the end",
       {{"branches", "branches side by side", 4, 1, 64},
        {"layers", "layers of a branch", 8, 1, 10'000},
        {"positions", "positions of each input", 256, 1, kWidest},
        {"hidden", "width of a position", 1024, 1, kWidest},
        {"heads", "attention heads; they divide the hidden size", 16, 1, kWidest},
        {"feed-forward", "width inside the feed-forward part", 4096, 1, kWidest}},
       [](const ZooValues& all) {
         return build(MultiModalTransformer{.branches = all.at("branches"),
                                            .layers = all.at("layers"),
                                            .positions = all.at("positions"),
                                            .hidden = all.at("hidden"),
                                            .heads = all.at("heads"),
                                            .feed_forward = all.at("feed-forward")});
       }},
      {"gnmt",
       "arXiv 1609.08144; unrolled as in GDP, arXiv 1910.01578",
       "translation by recurrent layers and attention, an operator for each step in time",
       {{"layers", "layers of the encoder, and of the decoder", 8, 2, 100},
        {"hidden", "width of a layer", 1024, 1, kWidest},
        {"vocabulary", "words of either language", 32'000, 1, 10'000'000},
        {"length", "words of source and target", Gnmt().length, 1, 10'000}},
       [](const ZooValues& all) {
         return build(Gnmt{.layers = all.at("layers"),
                           .hidden = all.at("hidden"),
                           .vocabulary = all.at("vocabulary"),
                           .length = all.at("length")});
       }},
  };
  return kModels;
}

const ZooModel& find_zoo_model(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ZooModel& model : zoo_models()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  throw InputError("there is no model '" + std::string(name.substr(0, 40)) + "' in the zoo; did you mean '" +
                   std::string(*nearest_word(name, names)) + "'? (`espalier zoo --list` lists all)");
}

Graph build_zoo_model(std::string_view name, const ZooValues& given) {
  const ZooModel& model = find_zoo_model(name);
  ZooValues all;
  for (const ZooSetting& setting : model.settings) all.emplace(setting.name, setting.usual);
  for (const auto& [key, value] : given) {
    const auto setting = std::find_if(model.settings.begin(), model.settings.end(),
                                      [&key = key](const ZooSetting& s) { return s.name == key; });
    if (setting == model.settings.end()) {
      std::string known;
      for (const ZooSetting& s : model.settings) known += (known.empty() ? "" : ", ") + s.name;
      throw InputError(model.name + " has no setting '" + key + "'; it has " + known);
    }
    if (value < setting->least || value > setting->most) {
      throw InputError(model.name + ": " + key + " is " + std::to_string(value) + "; expected " +
                       std::to_string(setting->least) + " to " + std::to_string(setting->most));
    }
    all[key] = value;
  }
  return model.build(all);
}

}  // namespace espalier
