#include "espalier/runtime/checkpoint.h"

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/safetensors.h"
#include "espalier/frontend/zip.h"

namespace espalier {
namespace {

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 13> kTypes{{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"C64", at::kComplexFloat},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
    {"U16", at::kUInt16},
    {"U32", at::kUInt32},
}};

std::string_view type_name(const std::string& path, const std::string& tensor, at::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  throw InputError(path + ": tensor '" + tensor + "' has type " + c10::toString(type) +
                   ", which safetensors does not have");
}

}  // namespace

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const MappedFile file(path);
  const SafetensorsReader reader(file.bytes(), path);
  std::map<std::string, at::Tensor> tensors;
  for (const SafetensorsReader::Entry& entry : reader.entries()) {
    const auto known = std::find_if(kTypes.begin(), kTypes.end(),
                                    [&](const auto& type) { return type.first == entry.dtype; });
    if (known == kTypes.end()) {
      throw InputError(path + ": tensor '" + entry.name + "' has type " + entry.dtype +
                       ", which cannot be computed with");
    }
    at::Tensor tensor = at::empty(entry.shape, known->second);
    ESP_CHECK(tensor.nbytes() == entry.data.size(), entry.name);
    if (!entry.data.empty()) std::memcpy(tensor.mutable_data_ptr(), entry.data.data(), entry.data.size());
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, std::string(type_name(path, name, tensor.scalar_type())), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, entries, {metadata.begin(), metadata.end()});
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.cpu().contiguous();
    writer.write({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
  }
  writer.finish();
}

}  // namespace espalier
