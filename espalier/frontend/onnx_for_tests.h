#pragma once

// ONNX files made by hand: fields of protocol buffers, and the messages that tests need.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::testing {

inline std::string onnx_varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
inline std::string onnx_field(std::uint32_t number, std::string_view bytes) {
  return onnx_varint(number << 3 | 2) + onnx_varint(bytes.size()) + std::string(bytes);
}
inline std::string onnx_number(std::uint32_t number, std::int64_t value) {
  return onnx_varint(number << 3) + onnx_varint(static_cast<std::uint64_t>(value));
}

// A value and its type; sizes are numbers, names, or (empty) open.
inline std::string onnx_value(const std::string& name, const std::vector<std::string>& sizes,
                              std::int64_t element = 1) {
  std::string shape;
  for (const std::string& size : sizes) {
    const bool number = !size.empty() && size.find_first_not_of("0123456789") == std::string::npos;
    shape += onnx_field(1, number         ? onnx_number(1, std::stoll(size))
                           : size.empty() ? ""
                                          : onnx_field(2, size));
  }
  const std::string tensor = onnx_number(1, element) + onnx_field(2, shape);
  return onnx_field(1, name) + onnx_field(2, onnx_field(1, tensor));
}

// A tensor, its elements (of 64-bit integers) or none.
inline std::string onnx_tensor(const std::string& name, const std::vector<std::int64_t>& dims,
                               std::int64_t element = 1, const std::vector<std::int64_t>& elements = {}) {
  std::string bytes;
  for (const std::int64_t dim : dims) bytes += onnx_number(1, dim);
  bytes += onnx_number(2, element) + onnx_field(8, name);
  for (const std::int64_t each : elements) bytes += onnx_number(7, each);
  return bytes;
}

inline std::string onnx_attribute(const std::string& name, std::int64_t value) {
  return onnx_field(1, name) + onnx_number(3, value) + onnx_number(20, 2);
}
inline std::string onnx_attribute(const std::string& name, const std::vector<std::int64_t>& values) {
  std::string bytes = onnx_field(1, name);
  for (const std::int64_t value : values) bytes += onnx_number(8, value);
  return bytes + onnx_number(20, 7);
}

inline std::string onnx_node(const std::string& type, const std::vector<std::string>& inputs,
                             const std::vector<std::string>& outputs,
                             const std::vector<std::string>& attributes = {}, const std::string& name = {}) {
  std::string bytes;
  for (const std::string& input : inputs) bytes += onnx_field(1, input);
  for (const std::string& output : outputs) bytes += onnx_field(2, output);
  if (!name.empty()) bytes += onnx_field(3, name);
  bytes += onnx_field(4, type);
  for (const std::string& attribute : attributes) bytes += onnx_field(5, attribute);
  return bytes;
}

struct OnnxParts {
  std::vector<std::string> nodes, initializers, inputs, outputs, values;
  std::string more = {};  // fields of the model behind its graph
};

inline std::string onnx_model(const OnnxParts& parts) {
  std::string graph;
  for (const std::string& node : parts.nodes) graph += onnx_field(1, node);
  graph += onnx_field(2, "main");
  for (const std::string& tensor : parts.initializers) graph += onnx_field(5, tensor);
  for (const std::string& input : parts.inputs) graph += onnx_field(11, input);
  for (const std::string& output : parts.outputs) graph += onnx_field(12, output);
  for (const std::string& value : parts.values) graph += onnx_field(13, value);
  return onnx_number(1, 10) + onnx_field(2, "by hand") + onnx_field(7, graph) +
         onnx_field(8, onnx_field(1, "") + onnx_number(2, 20)) + parts.more;
}

}  // namespace espalier::testing
