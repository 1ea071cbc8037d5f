#include "espalier/planners/rating_net.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {
namespace {

using Sizes = std::vector<std::int64_t>;

std::vector<float> floats_of(const SafetensorsReader& file, const std::string& name, const Sizes& sizes,
                             std::string_view where) {
  const SafetensorsReader::Entry& entry = file.get(name);
  if (entry.dtype != "F32" || entry.shape != sizes) {
    throw InputError(
        std::string(where) + ": " + name +
        ": expected f32 of another shape; this is no guide of this search, or one of another version");
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

RatingNet::RatingNet(Net net) : net_(std::move(net)) {
  std::size_t inputs = net_.middle.size();
  ESP_CHECK(net_.scale.size() == inputs && inputs <= kMostUnits && !net_.layers.empty());
  for (const Layer& layer : net_.layers) {
    ESP_CHECK(layer.inputs == inputs && layer.weights.size() == inputs * layer.units &&
                  layer.offsets.size() == layer.units && layer.units <= kMostUnits,
              layer.inputs, layer.units);
    inputs = layer.units;
    std::vector<float>& column = columns_.emplace_back();
    for (std::size_t i = 0; i < layer.inputs; ++i) {
      for (std::size_t u = 0; u < layer.units; ++u) column.push_back(layer.weights[u * layer.inputs + i]);
    }
  }
  ESP_CHECK(inputs == 1, inputs);
}

RatingNet RatingNet::parse(std::string_view bytes, std::string_view where, std::size_t inputs,
                           std::string_view verb) {
  const SafetensorsReader file(bytes, std::string(where));
  if (!file.find("middle")) {
    throw InputError(std::string(where) + ": is no guide of a search; `" + std::string(verb) +
                     "` writes one");
  }
  const auto count = static_cast<std::int64_t>(inputs);
  Net net{.middle = floats_of(file, "middle", {count}, where),
          .scale = floats_of(file, "scale", {count}, where),
          .layers = {}};
  for (std::int64_t into = count; into != 1;) {
    const std::size_t number = net.layers.size();
    const std::string offsets = layer_name(number, "offsets");
    const std::vector<std::int64_t>& shape = file.get(offsets).shape;
    if (shape.size() != 1 || shape[0] < 1 || shape[0] > static_cast<std::int64_t>(kMostUnits)) {
      throw InputError(std::string(where) + ": " + offsets + ": expected one number for each of 1 to " +
                       std::to_string(kMostUnits) + " units");
    }
    net.layers.push_back({.inputs = static_cast<std::size_t>(into),
                          .units = static_cast<std::size_t>(shape[0]),
                          .weights = floats_of(file, layer_name(number, "weights"), {shape[0], into}, where),
                          .offsets = floats_of(file, offsets, shape, where)});
    into = shape[0];
  }
  return RatingNet(std::move(net));
}

void RatingNet::write(const std::string& path, const SafetensorsMetadata& remarks) const {
  const auto size = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  std::vector<SafetensorsWriter::Entry> entries{{"middle", "F32", {size(inputs())}},
                                                {"scale", "F32", {size(inputs())}}};
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

float RatingNet::rate(std::span<const float> row) const {
  ESP_CHECK(row.size() == inputs(), row.size());
  std::array<float, kMostUnits> in, out;
  for (std::size_t i = 0; i < row.size(); ++i) in[i] = (row[i] - net_.middle[i]) * net_.scale[i];
  for (std::size_t l = 0; l < net_.layers.size(); ++l) {
    const Layer& layer = net_.layers[l];
    std::copy(layer.offsets.begin(), layer.offsets.end(), out.begin());
    const float* column = columns_[l].data();
    for (std::size_t i = 0; i < layer.inputs; ++i, column += layer.units) {
      for (std::size_t u = 0; u < layer.units; ++u) out[u] += column[u] * in[i];
    }
    for (std::size_t u = 0; u < layer.units; ++u) in[u] = layer.units > 1 ? std::max(out[u], 0.0F) : out[u];
  }
  // Weights that are too large for sums: such a row comes last.
  return std::isfinite(in[0]) ? in[0] : std::numeric_limits<float>::lowest();
}

}  // namespace espalier
