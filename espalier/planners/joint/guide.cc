#include "espalier/planners/joint/guide.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "espalier/base/check.h"

namespace espalier::joint {
namespace {

using Sizes = std::vector<std::int64_t>;

std::vector<float> floats_of(const SafetensorsReader& file, const std::string& name, const Sizes& sizes,
                             std::string_view where) {
  const SafetensorsReader::Entry& entry = file.get(name);
  if (entry.dtype != "F32" || entry.shape != sizes) {
    throw InputError(std::string(where) + ": " + name +
                     ": expected f32 of another shape; this is no guide of this version");
  }
  std::vector<float> values(entry.data.size() / sizeof(float));
  std::memcpy(values.data(), entry.data.data(), entry.data.size());
  for (const float value : values) {
    if (!std::isfinite(value))
      throw InputError(std::string(where) + ": " + name + ": expected finite numbers");
  }
  return values;
}

std::string layer_name(std::size_t layer, const char* part) {
  return "layer" + std::to_string(layer) + "." + part;
}

}  // namespace

MoveGuide::MoveGuide(Net net) : net_(std::move(net)) {
  std::size_t inputs = MoveFigures::kCount;
  ESP_CHECK(net_.middle.size() == inputs && net_.scale.size() == inputs && !net_.layers.empty());
  for (const Layer& layer : net_.layers) {
    ESP_CHECK(layer.inputs == inputs && layer.weights.size() == inputs * layer.units &&
                  layer.offsets.size() == layer.units,
              layer.inputs, layer.units);
    inputs = layer.units;
  }
  ESP_CHECK(inputs == 1, inputs);
}

MoveGuide MoveGuide::parse(std::string_view bytes, std::string_view where) {
  const SafetensorsReader file(bytes, std::string(where));
  if (!file.find("middle")) {
    throw InputError(std::string(where) + ": is no guide of a search; `espalier learn guide` writes one");
  }
  const auto count = static_cast<std::int64_t>(MoveFigures::kCount);
  Net net{.middle = floats_of(file, "middle", {count}, where),
          .scale = floats_of(file, "scale", {count}, where),
          .layers = {}};
  for (std::int64_t inputs = count; inputs != 1;) {
    const std::size_t number = net.layers.size();
    const std::string offsets = layer_name(number, "offsets");
    const std::vector<std::int64_t>& shape = file.get(offsets).shape;
    if (shape.size() != 1 || shape[0] < 1) {
      throw InputError(std::string(where) + ": " + offsets + ": expected one number for each unit");
    }
    net.layers.push_back(
        {.inputs = static_cast<std::size_t>(inputs),
         .units = static_cast<std::size_t>(shape[0]),
         .weights = floats_of(file, layer_name(number, "weights"), {shape[0], inputs}, where),
         .offsets = floats_of(file, offsets, shape, where)});
    inputs = shape[0];
  }
  return MoveGuide(std::move(net));
}

void MoveGuide::write(const std::string& path, const SafetensorsMetadata& remarks) const {
  const auto size = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  std::vector<SafetensorsWriter::Entry> entries{{"middle", "F32", {size(MoveFigures::kCount)}},
                                                {"scale", "F32", {size(MoveFigures::kCount)}}};
  for (std::size_t l = 0; l < net_.layers.size(); ++l) {
    const Layer& layer = net_.layers[l];
    entries.push_back({layer_name(l, "weights"), "F32", {size(layer.units), size(layer.inputs)}});
    entries.push_back({layer_name(l, "offsets"), "F32", {size(layer.units)}});
  }
  SafetensorsWriter writer(path, entries, remarks);
  const auto put = [&](const std::vector<float>& values) {
    writer.write({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  };
  put(net_.middle);
  put(net_.scale);
  for (const Layer& layer : net_.layers) {
    put(layer.weights);
    put(layer.offsets);
  }
  writer.finish();
}

std::vector<float> MoveGuide::rate(std::span<const MoveFigures> moves) const {
  std::vector<float> rates;
  std::vector<float> in, out;
  for (const MoveFigures& move : moves) {
    in.clear();
    for (std::size_t i = 0; i < MoveFigures::kCount; ++i) {
      in.push_back((move.values[i] - net_.middle[i]) * net_.scale[i]);
    }
    for (const Layer& layer : net_.layers) {
      out.assign(layer.offsets.begin(), layer.offsets.end());
      for (std::size_t u = 0; u < layer.units; ++u) {
        const float* const weights = layer.weights.data() + u * layer.inputs;
        for (std::size_t i = 0; i < layer.inputs; ++i) out[u] += weights[i] * in[i];
      }
      if (layer.units > 1) {
        for (float& each : out) each = std::max(each, 0.0F);
      }
      std::swap(in, out);
    }
    // Weights that are too large for sums: such a move comes last.
    rates.push_back(std::isfinite(in.front()) ? in.front() : std::numeric_limits<float>::lowest());
  }
  return rates;
}

}  // namespace espalier::joint
